"""Test each cell of docs/concepts/failure_modes.md: a failure in a state has the result on the page.

The page is the expectation; ``OPERATIONS`` only gives the operations and their states. ``World`` checks the
invariants at every epoch.
"""

import dataclasses
import re
from functools import cache, partial

import msgspec
import pytest
from msgspec.structs import fields

from stele.coordinator.settings import CoordinatorSettings
from stele.domain.commands import Cancel, Exclude
from stele.domain.names import RequestKind, RequestStatus
from stele.domain.topology.operations.table import OPERATIONS, State
from stele_simulator.mutants import PLANTED
from stele_simulator.patching import Patch
from stele_simulator.violation import Violation
from tests.coordinator.failures import (
    FORWARD,
    NEVER,
    PAGE,
    REFUSED,
    THEN_UNDONE,
    UNDONE,
    WAITS,
    WAITS_LATER,
    WHEN_EXCLUDED,
    Cell,
    Row,
    cells_of_the_reference,
    rows,
)
from tests.coordinator.operations import begin, begin_undone, is_over, serving_ranges, stand_still
from tests.coordinator.stories import error_of, reach, status_of, undoing
from tests.coordinator.waits import blockers
from tests.coordinator.world import again

replace = msgspec.structs.replace
ROWS = rows()
LONG_S = 75.0
"""Longer than every patience of a coordinator."""
AWAY_S = 4.0
"""A node that restarts, shorter than the patience with it."""
SHOWN_SETTINGS = {
    *("heartbeat_timeout_s", "barrier_patience_s", "dead_node_patience_s"),
    *("silence_s", "work_attempts"),
}
ROOT = PAGE.parents[2]
STORIES = ROOT / "tests" / "sim" / "stories"


def state_of(row: Row) -> State:
    return OPERATIONS[row.kind].states[row.state]


def works(row: Row) -> bool:
    """Return whether nodes receive orders in this state, and it is rolled back when they fail."""
    state = state_of(row)
    return state.streams or (state.work_of_members is not None and state.on_failure is not None)


FROM = {kind: again(partial(begin, kind)) for kind in OPERATIONS}
UNDONE_FROM = {kind: again(partial(begin_undone, kind)) for kind in OPERATIONS}
"""The first world of a case, by the kind of its operation."""


class Case:
    """An operation that has just entered a state, with the ranges that served before its request."""

    def __init__(self, row: Row, *, fenced: bool = False) -> None:
        self.row = row
        begins = UNDONE_FROM if state_of(row).undoing else FROM
        self.world, self.request_id = begins[row.kind]()
        asked = (i for i in self.world.images if i.request(self.request_id) is not None)
        before = next(asked)
        self.before, self.normal = serving_ranges(before), before.membership.normal()
        self.gone = {name for name, node in self.world.nodes.items() if not node.alive}
        stand_still(self.world, works(row))
        reach(self.world, self.request_id, row.state, fenced=fenced)
        stand_still(self.world, False)

    def receivers(self) -> list[str]:
        return OPERATIONS[self.row.kind].receivers(self.world.transition(self.request_id))

    def a_replica_set(self) -> set[str]:
        """Return the replicas of a touched range, without the operation's own nodes if such a range exists."""
        transition = self.world.transition(self.request_id)
        unmarked = replace(transition, mark="")
        touched = OPERATIONS[self.row.kind].touched(self.world.image, unmarked)
        own = {*transition.nodes()}
        return {*min(touched, key=lambda nodes: (len(nodes & own), sorted(nodes)))}

    def is_acknowledged_by(self, name: str) -> None:
        """Wait until a node has acknowledged the state's version."""
        node, version = self.world.nodes[name], self.world.version
        self.world.until(lambda: node.image.topology.version >= version, f"an ack of {name}")

    def kill(self, *names: str) -> None:
        for name in names:
            self.world.nodes[name].alive = False

    def recover(self) -> None:
        """Restart all nodes that are not dead."""
        stand_still(self.world, False)
        for name, node in self.world.nodes.items():
            node.alive, node.fails = name not in self.gone, 0

    def end(self) -> None:
        self.world.until(lambda: is_over(self.world, self.request_id), "the end")

    def becomes(self, expected: str) -> None:
        """Check the text of the page while nodes are dead. Afterwards no step is left."""
        world, row = self.world, self.row
        if expected.startswith(WAITS):
            world.pass_s(LONG_S)
            is_later = world.transition(self.request_id).state is not row.state
            assert is_later == (expected == WAITS_LATER)
            assert {b.node_id for b in blockers(world.brain.steps)}, "it says on whom"
            self.recover()
        self.end()
        if expected == UNDONE or expected.endswith(THEN_UNDONE):
            assert status_of(world, self.request_id) in (
                RequestStatus.FAILED,
                RequestStatus.CANCELLED,
            )
            assert error_of(world, self.request_id).startswith("Rolled back: ")
            assert serving_ranges(world.image) == self.before
            assert {*self.normal} - self.gone <= {*world.image.membership.normal()}
        else:
            assert expected in (WAITS, WAITS_LATER, FORWARD)
            assert status_of(world, self.request_id) is RequestStatus.DONE
            assert serving_ranges(world.image) == served_when_done(row.kind)
        self.recover()
        world.run()


@cache
def served_when_done(kind: RequestKind) -> dict[str, object]:
    """Return the ranges that serve after an operation without any failure."""
    world, request_id = FROM[kind]()
    world.run()
    assert status_of(world, request_id) is RequestStatus.DONE
    return serving_ranges(world.image)


def undisturbed_end(row: Row) -> str:
    """Return the end of an operation that reaches this state without a lasting failure."""
    return UNDONE if state_of(row).undoing else FORWARD


def in_column(column: str) -> list[object]:
    """Return the rows with a value in a column, as parameters."""
    return [pytest.param(row, id=row.name) for row in ROWS if getattr(row, column) != NEVER]


EVERY_ROW = [pytest.param(row, id=row.name) for row in ROWS]


def test_page_has_a_row_for_every_state_of_every_operation() -> None:
    states = [(o.kind, state) for o in OPERATIONS.values() for state in o.states]
    assert sorted((row.kind, row.state) for row in ROWS) == sorted(states), (
        "docs/concepts/failure_modes.md needs a row for each state of each operation"
    )


def test_page_shows_the_defaults_of_the_coordinator() -> None:
    shown = re.findall(r"^\| `STELE_(\w+)` \| (\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert {(name, float(value)) for name, value in shown} == {
        (setting.name.upper(), float(setting.default))
        for setting in fields(CoordinatorSettings)
        if setting.name in SHOWN_SETTINGS
    }


@pytest.mark.parametrize("row", EVERY_ROW)
def test_every_row_has_stories_and_planted_bugs(row: Row) -> None:
    """tests/sim runs these stories, and checks that each planted bug is found."""
    for story in row.stories:
        text = (STORIES / f"{story}.txt").read_text()
        assert row.state in text, f"{story} never says {row.state}"
    assert row.mutants and {*row.mutants} <= {*PLANTED}


@pytest.mark.parametrize("cell", [pytest.param(c, id=c.name) for c in cells_of_the_reference()])
def test_every_cell_of_the_reference_has_a_planted_bug_or_a_test(cell: Cell) -> None:
    for name in cell.mutants:
        assert (ROOT / name).is_file() if name.endswith(".py") else name in PLANTED
    assert all((STORIES / f"{story}.txt").exists() for story in cell.stories)
    assert bool(cell.stories) == bool({*cell.mutants} & {*PLANTED})


@pytest.mark.parametrize("row", in_column("no_quorum"))
def test_no_quorum_answers(row: Row) -> None:
    case = Case(row)
    case.kill(*case.a_replica_set())
    case.becomes(row.no_quorum)


@pytest.mark.parametrize("row", in_column("stream_fails"))
def test_every_attempt_of_a_stream_fails(row: Row) -> None:
    case = Case(row)
    for node in case.world.nodes.values():
        node.fails = 99
    case.becomes(row.stream_fails)
    assert "disk full" in error_of(case.world, case.request_id)


@pytest.mark.parametrize("row", in_column("stream_fails"))
def test_stream_makes_no_progress(row: Row) -> None:
    case = Case(row)
    undoing(case.world)
    stand_still(case.world, True)
    case.becomes(row.stream_fails)
    assert "no progress" in error_of(case.world, case.request_id)


@pytest.mark.parametrize("row", in_column("stream_fails"))
def test_stream_without_a_silence_limit_is_awaited(row: Row) -> None:
    if not OPERATIONS[row.kind].ends_by_silence:
        case = Case(row)
        stand_still(case.world, True)
        case.becomes(WAITS)


@pytest.mark.parametrize("row", in_column("stream_fails"))
def test_stream_fails_because_a_source_is_dead(row: Row) -> None:
    case = Case(row)
    undoing(case.world)
    own = {*case.world.transition(case.request_id).nodes()}
    source = min({n for n in case.world.nodes if n not in case.gone} - own)
    case.kill(source)
    for node in case.world.nodes.values():
        node.fails = 99
    case.becomes(row.stream_fails)
    assert source in error_of(case.world, case.request_id)


@pytest.mark.parametrize("row", in_column("receiver_dies"))
def test_receiver_dies(row: Row) -> None:
    case = Case(row)
    case.kill(case.receivers()[0])
    case.becomes(row.receiver_dies.partition(WHEN_EXCLUDED)[0])


@pytest.mark.parametrize("row", in_column("receiver_dies"))
def test_receiver_dies_and_is_excluded(row: Row) -> None:
    case = Case(row)
    dead = case.receivers()[0]
    case.kill(dead)
    refused = case.world.apply(Exclude((dead,)), "exclude")
    case.gone.add(dead)
    if refused is not None:
        assert refused.code == "node_left", refused
    case.becomes(row.receiver_dies.rpartition(WHEN_EXCLUDED)[2])


@pytest.mark.parametrize("fenced", [False, True], ids=["entered", "fenced"])
@pytest.mark.parametrize("row", EVERY_ROW)
def test_operation_is_cancelled(row: Row, fenced: bool) -> None:
    case = Case(row, fenced=fenced and works(row))
    refused = case.world.apply(Cancel(case.request_id))
    if row.cancel == REFUSED:
        assert refused is not None and refused.code == "past_point_of_no_return"
        case.becomes(undisturbed_end(row))
    else:
        assert refused is None
        case.becomes(row.cancel)
        assert status_of(case.world, case.request_id) is RequestStatus.CANCELLED


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before it acknowledges", "after it acknowledged"])
@pytest.mark.parametrize("row", EVERY_ROW)
def test_crash_and_restart_of_any_node_changes_nothing(row: Row, when: str) -> None:
    for name in sorted(begun(row)):
        case = Case(row)
        if "after" in when:
            case.is_acknowledged_by(name)
        case.world.crash(name)
        case.world.pass_s(AWAY_S)
        case.world.nodes[name].alive = True
        case.becomes(undisturbed_end(row))


def begun(row: Row) -> list[str]:
    """Return the nodes that are up when the operation reaches its state."""
    world, _ = FROM[row.kind]()
    return [name for name, node in world.nodes.items() if node.alive]


@pytest.mark.slow
@pytest.mark.parametrize("row", EVERY_ROW)
def test_removed_or_added_rollback_of_a_state_is_noticed(row: Row) -> None:
    """The tests above must fail with a planted bug in each row."""
    Case(row)  # The first world is made without the bug.
    operation, plain = OPERATIONS[row.kind], state_of(row)
    ways_back = [name for name, state in operation.states.items() if state.undoing]
    wrong = None if plain.on_failure else next(iter(ways_back), row.state)
    states = {**operation.states, row.state: replace(plain, on_failure=wrong)}
    with Patch() as patch:
        patch.item(OPERATIONS, row.kind, dataclasses.replace(operation, states=states))
        with pytest.raises((AssertionError, Violation)):
            if plain.reads_have_moved:
                test_receiver_dies_and_is_excluded(row)
            else:
                test_operation_is_cancelled(row, False)
