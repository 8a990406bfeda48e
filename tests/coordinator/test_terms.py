"""Changes of terms, lost memory, and commands that the log refuses."""

from collections.abc import Callable

import msgspec

from stele.coordinator.actions import CommandAction, carried_out
from stele.coordinator.model import StepContext
from stele.coordinator.steps import Memory, Observed, next_steps
from stele.coordinator.upkeep import _finish
from stele.coordinator.work import order_work
from stele.domain.commands import (
    Advance,
    AdvanceFence,
    Envelope,
    Leave,
    Rejection,
    command_name,
)
from stele.domain.model.requests import state_time_ms, time_ms
from stele.domain.names import OrderKind, RequestKind, RequestStatus, TransitionState
from stele.domain.not_taken import expired
from tests.coordinator.operations import begin
from tests.coordinator.stories import joining, spread, status_of
from tests.coordinator.waits import waiting_for
from tests.coordinator.world import three_nodes

STATE = TransitionState


def test_stale_term_sends_no_commands_or_orders() -> None:
    world = three_nodes()
    world.add("a2")
    seen = Observed(world.image, world.brain.acks, world.brain.reports, 0, world.now_s)
    steps = next_steps(Memory(), seen, world.limits)
    assert not steps.commands and not steps.orders
    assert "another coordinator" in waiting_for(steps)


def test_acks_of_a_node_restarted_with_an_earlier_clock_count_again() -> None:
    world = three_nodes()
    node = world.nodes["b1"]
    node.boot, node.sequence = 0, 0
    world.pass_s(3)
    assert world.brain.acks.silent_for_s("b1", world.now_s) > 2
    world.pass_s(12)
    assert world.brain.acks.silent_for_s("b1", world.now_s) < 1


INTERNAL = Rejection("internal", "The command could not be decided.", "Look into the log.")


def _refuse_to_open(*poison: str) -> Callable[[Envelope], Rejection | None]:
    """Return a metadata log that fails on openings: on all, or on those of these requests."""

    def refuse(envelope: Envelope) -> Rejection | None:
        command = envelope.command
        if not isinstance(command, Advance):
            return None
        opened = {i for group in command.open for i in group}
        return INTERNAL if opened and (not poison or opened & {*poison}) else None

    return refuse


def test_refused_opening_does_not_stop_a_transition_and_is_explained() -> None:
    world = joining(STATE.WRITE_BOTH_READ_OLD)
    world.refuse = _refuse_to_open()
    world.apply(Leave("c1"), "leave-c1")
    world.nodes["a2"].mute = False
    why = set()
    while status_of(world, "join-a2") is not RequestStatus.DONE:
        for wait in world.tick().waits:
            if "leave-c1" in wait.request_ids and "refused" in wait.what:
                why.add(wait.what)
        assert world.now_s < 200
    steps = world.pass_s(10)
    assert status_of(world, "leave-c1") is RequestStatus.PENDING
    assert any("internal" in wait.what for wait in steps.waits if "leave-c1" in wait.request_ids)
    world.refuse = _refuse_to_open("nobody")
    world.run()
    assert status_of(world, "leave-c1") is RequestStatus.DONE


def test_refused_opening_does_not_stop_other_openings() -> None:
    world = spread()
    world.refuse = _refuse_to_open("leave-a1")
    for name in ("a1", "a3", "a5", "a7"):
        world.apply(Leave(name), f"leave-{name}")
    world.until(
        lambda: all(
            status_of(world, f"leave-{n}") is RequestStatus.DONE for n in ("a3", "a5", "a7")
        ),
        "the other leaves",
    )
    assert status_of(world, "leave-a1") is RequestStatus.PENDING
    world.refuse = _refuse_to_open("nobody")
    world.run()
    assert status_of(world, "leave-a1") is RequestStatus.DONE


def test_refused_command_is_sent_again_under_a_new_id() -> None:
    world = three_nodes()
    world.refuse = _refuse_to_open()
    world.add("a2")
    ids = [
        envelope.request_id
        for _ in range(60)
        for envelope in world.tick().commands
        if command_name(envelope.command) == "advance"
    ]
    assert len(ids) == len({*ids}) > 3


def test_coordinator_creates_no_ids_of_the_future() -> None:
    """The writer of the newest state had a wrong clock; ids of its time would be rejected."""
    world = three_nodes()
    state_id = bytes([0xFF] * 6) + world.image.state_id[6:]
    image = msgspec.structs.replace(world.image, state_id=state_id)
    now_ms = 1_700_000_000_000
    seen = Observed(image, world.brain.acks, world.brain.reports, 1, 0.0, wall_ms=now_ms)
    context = StepContext(Memory(), seen, world.limits)
    steps = carried_out(context, [CommandAction(AdvanceFence(1, image.topology.version))])
    assert [time_ms(envelope.request_id) for envelope in steps.commands] == [now_ms]


def test_command_keeps_its_id_and_is_repeated_only_after_a_delay() -> None:
    """The log advances meanwhile. Under another id the command would be decided again."""
    world, fence, sent = three_nodes(), AdvanceFence(1, 1), list[str]()
    memory = Memory()
    for image, after_s in zip(world.images[-3:], (0.0, 0.5, 1.0), strict=True):
        now_s = after_s * world.limits.resend_s
        seen = Observed(image, world.brain.acks, world.brain.reports, 1, now_s)
        steps = carried_out(StepContext(memory, seen, world.limits), [CommandAction(fence)])
        sent.append("".join(envelope.request_id for envelope in steps.commands))
        memory = steps.memory
    assert sent[0] and sent == [sent[0], "", sent[0]]


def test_new_ids_are_above_the_horizon() -> None:
    """The log has forgotten ids ahead of its newest state. No other command makes the state newer, and the
    clock may be behind that time.
    """
    world, fence = three_nodes(), AdvanceFence(1, 1)
    image = world.image
    state_ms = state_time_ms(image.state_id)
    seen = Observed(image, world.brain.acks, world.brain.reports, 1, 0.0, wall_ms=state_ms + 900)
    steps = carried_out(StepContext(Memory(), seen, world.limits), [CommandAction(fence)])
    (first,) = steps.commands
    refusals = {first.request_id: expired(state_ms + 5_000)}
    later = msgspec.structs.replace(seen, now_s=world.limits.resend_s, refusals=refusals)
    steps = carried_out(StepContext(steps.memory, later, world.limits), [CommandAction(fence)])
    (second,) = steps.commands
    assert time_ms(first.request_id) == state_ms
    assert time_ms(second.request_id) == state_ms + 5_001


def test_feature_is_enabled_after_an_expired_request_id() -> None:
    """No decision was made, so the request is not rejected."""
    world, request_id = begin(RequestKind.ENABLE_FEATURES)
    request = world.image.request(request_id)
    assert request is not None
    seen = Observed(world.image, world.brain.acks, world.brain.reports, 1, world.now_s)
    context = StepContext(Memory(), seen, world.limits)
    steps = carried_out(context, [_finish(context, request)])
    (first,) = steps.commands
    horizon_ms = state_time_ms(world.image.state_id) + 5_000
    later = msgspec.structs.replace(
        seen,
        now_s=world.now_s + world.limits.resend_s,
        refusals={first.request_id: expired(horizon_ms)},
    )
    context = StepContext(steps.memory, later, world.limits)
    (second,) = carried_out(context, [_finish(context, request)]).commands
    assert second.command == first.command
    assert time_ms(second.request_id) == horizon_ms + 1


def test_order_is_repeated_only_after_a_delay() -> None:
    world, memory, sent = three_nodes(), Memory(), list[list[int]]()
    for after_s in (0.0, 0.5, 1.0):
        now_s = after_s * world.limits.resend_s
        seen = Observed(world.image, world.brain.acks, world.brain.reports, 1, now_s)
        context = StepContext(memory, seen, world.limits)
        work = order_work(context, OrderKind.STREAM, "session", "request", ["n1"], "it is undone")
        steps = carried_out(context, work.orders)
        sent.append([order.index for order in steps.orders])
        memory = steps.memory
    assert [len(each) for each in sent] == [1, 0, 1]
    assert sent[2] > sent[0], "a node refuses an index that it has seen"
