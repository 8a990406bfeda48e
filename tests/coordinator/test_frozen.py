"""A coordinator with a frozen log: it reports the freeze, sends no commands, and continues afterwards."""

from stele.coordinator.model import Observed
from stele.coordinator.progress import StreamRates, progress_of
from stele.domain.commands import Envelope, RestrictCommits
from stele.domain.names import COORDINATOR, CommitMode, RequestStatus, TransitionState, WaitKind
from stele.words.explain import explain
from tests.coordinator.stories import reach, status_of
from tests.coordinator.world import World, three_nodes


def restrict(world: World, mode: CommitMode, actor: str = "") -> None:
    command = RestrictCommits(mode=mode, actor=actor)
    name = f"restrict-{world.image.epoch}"
    envelope = Envelope(request_id=name, command=command, actor="ada", reason="brokers")
    assert world.history.submit(envelope) is None


def joining() -> World:
    world = three_nodes()
    world.add("a2")
    reach(world, "join-a2", TransitionState.WRITE_BOTH_READ_OLD)
    return world


def asked(world: World) -> list[str]:
    """Return the commands accepted since the freeze."""
    since = world.image.commits.since_epoch
    return [e.command for e in world.history.epochs if e.epoch > since]


def test_frozen_log_stops_commands_and_the_reason_is_explained() -> None:
    world = joining()
    restrict(world, CommitMode.FROZEN)
    world.pass_s(30)
    assert asked(world) == []
    waits = world.brain.steps.waits
    assert {wait.kind for wait in waits if "the log to take" in wait.what} == {WaitKind.RESTRICTED}
    brain = world.brain
    seen = Observed(world.image, brain.acks, brain.reports, brain.term, world.now_s)
    progress = progress_of(seen, world.limits, StreamRates(), waits, active=True)
    request = world.image.requests.requests["join-a2"]
    transition = world.image.topology.of_request("join-a2")
    lines = [*explain(request, transition, progress)]
    assert any("the log is frozen since epoch" in line and "ada: brokers" in line for line in lines)
    assert "`stele log thaw`" in lines[-1] and "stele cancel" not in lines[-1]


def test_work_continues_after_the_thaw() -> None:
    world = joining()
    restrict(world, CommitMode.FROZEN)
    world.pass_s(60)
    assert status_of(world, "join-a2") is RequestStatus.RUNNING
    restrict(world, CommitMode.OPEN)
    world.run()
    assert status_of(world, "join-a2") is RequestStatus.DONE


def test_coordinator_works_as_the_single_user() -> None:
    world = joining()
    restrict(world, CommitMode.SINGLE_USER, COORDINATOR)
    world.run()
    assert status_of(world, "join-a2") is RequestStatus.DONE
