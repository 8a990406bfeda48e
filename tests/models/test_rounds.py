"""Search all interleavings to justify two barriers, fence-aware sources and two versions per row.

The model moves processes and messages, and uses only production's rules: ``decide`` and ``evolve`` made the
log, ``check_token`` rejects, ``missing_of`` counts a barrier, ``write_satisfied`` and ``read_satisfied``
acknowledge. Without a rule a write must be lost, or the search proves nothing.

One range moves from three replicas to three others. One of them streams. One request is in flight, processes
apply the log at any time, and one coordinator of requests may lag without limit.
"""

from collections import deque
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from typing import Final, NamedTuple

import pytest

from stele.domain.commands import CreateKeyspace, Leave
from stele.domain.fencing import check_token, newest_fenced
from stele.domain.image import Image
from stele.domain.names import TransitionState
from stele.domain.ring.quorum import read_satisfied, write_satisfied
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.topology.barriers import AckTable, barrier, missing_of
from tests.coordinator.world import World, empty_cluster
from tests.domain.ack_of import ack_of

STATE: Final = TransitionState


class Scene(NamedTuple):
    """A real log of a leave with a separate epoch for every fence: its images, and one range that moves."""

    images: tuple[Image, ...]
    token: int
    keyspace_id: str
    nodes: tuple[str, ...]
    joiner: str
    source: str


@cache
def scene() -> Scene:
    """Return a log in which s leaves and its range moves to n: (s, x, y) -> (n, x, y).

    ``z`` is a lagging bystander, so that no Advance carries a fence: every fence is a separate epoch.
    """
    world = _cluster()
    began = len(world.images) - 1
    keyspace = world.image.schema.serving("library")
    assert keyspace is not None
    assert world.apply(Leave("s"), "leave-s") is None
    world.until(lambda: not world.image.requests.unfinished(), "the leave without the bystander")
    images = tuple(
        image
        for before, image in zip(world.images[began:], world.images[began + 1 :], strict=False)
        if image.topology != before.topology
    )
    plan = images[0].topology.open()[0].plans["dc1:3"]
    row = next(row for row in plan.rows if "s" in row.old and len({*row.old} & {*row.new}) == 2)
    (joiner,) = {*row.new} - {*row.old}
    (source,) = {*row.old} - {*row.new}
    nodes = tuple(sorted({*row.old, *row.new}))
    first = world.images[began]
    return Scene((first, *images), row.end, keyspace.data_id, nodes, joiner, source)


def _cluster() -> World:
    world = empty_cluster()
    world.add("s n x y", rack="r1")
    world.add("z", "dc2", "r9")
    world.run()
    assert world.apply(CreateKeyspace("library", {"dc1": 3})) is None
    world.pass_s(1)
    world.nodes["z"].applies = False
    return world


class Rules(NamedTuple):
    """The rules that hold in a search."""

    fence_known: bool = True
    source_knows: bool = True
    version_before: bool = True


class State(NamedTuple):
    written: int
    """Index of the newest image of the log."""
    applied: tuple[int, ...]
    """Index that each replica has applied."""
    lagging: int
    """Index that the coordinator of the request has applied."""
    sent: int = -1
    """Index by which the write was routed; -1 before."""
    landed: frozenset[str] = frozenset()
    acknowledged: bool = False
    streamed: bool = False


def row_at(index: int) -> RangeReplicas:
    found = scene()
    placement = found.images[index].placement_of("library")
    assert placement is not None
    return placement.row_for(found.token)


@cache
def accepts(index: int, version: int, version_before: bool) -> bool:
    """Return whether a replica at this index accepts a request of this version."""
    found = scene()
    image = found.images[index]
    if image.topology.version < version:
        return False  # it reads further first
    if version_before:
        return check_token(image, found.keyspace_id, found.token, version) is None
    row = row_at(index)
    return version >= newest_fenced(row.version, 0, image.topology.fence_version)


def version_at(index: int) -> int:
    return scene().images[index].topology.version


@cache
def covered(image_index: int, nodes: frozenset[str]) -> bool:
    """Apply the production rule of quorums to the transition at that index."""
    image = scene().images[image_index]
    return not missing_of(image, nodes, image.topology.version)


def may_write(state: State, rules: Rules) -> bool:
    """Return whether the topology coordinator may write the next epoch of the log."""
    found, here = scene(), scene().images[state.written]
    after = found.images[state.written + 1]
    passed = frozenset(
        n for n, i in zip(found.nodes, state.applied, strict=True) if i >= state.written
    )
    if after.topology.version == here.topology.version:  # a fence: all have applied the version
        return covered(state.written, passed)
    moves = here.topology.open()
    if any(t.state is STATE.WRITE_BOTH_READ_OLD for t in moves) and not state.streamed:
        return False
    return not rules.fence_known or not moves or covered(state.written, passed)


def may_stream(state: State, rules: Rules) -> bool:
    """Return whether the joiner may stream: in a fenced version that a quorum and the source know."""
    found = scene()
    image = found.images[state.written]
    streams = any(t.state is STATE.WRITE_BOTH_READ_OLD for t in image.topology.open())
    if state.streamed or not streams or not image.topology.settled():
        return False
    at = dict(zip(found.nodes, state.applied, strict=True))
    entered = state.written - 1
    passed = frozenset(n for n, i in at.items() if i >= state.written)
    return (
        at[found.joiner] >= entered
        and at[found.source] >= (state.written if rules.source_knows else entered)
        and (not rules.fence_known or covered(state.written, passed))
    )


def following(state: State, rules: Rules) -> Iterator[State]:
    found = scene()
    for position, index in enumerate(state.applied):
        if index < state.written:
            applied = (*state.applied[:position], index + 1, *state.applied[position + 1 :])
            yield state._replace(applied=applied)
    if state.lagging < state.written and state.sent < 0:
        yield state._replace(lagging=state.lagging + 1)
    if state.sent < 0:
        yield state._replace(sent=state.lagging)
    elif not state.acknowledged:
        row, version = row_at(state.sent), version_at(state.sent)
        at = dict(zip(found.nodes, state.applied, strict=True))
        for node in row.writes:
            if node not in state.landed and accepts(at[node], version, rules.version_before):
                yield state._replace(landed=state.landed | {node})
        if write_satisfied(state.landed, row):
            yield state._replace(acknowledged=True)
    if state.written + 1 < len(found.images) and may_write(state, rules):
        yield state._replace(written=state.written + 1)
    if may_stream(state, rules):
        got = {found.joiner} if found.source in state.landed else set()
        yield state._replace(streamed=True, landed=state.landed | got)


def lost(state: State, rules: Rules) -> bool:
    """Return whether a quorum can answer a read of some view without the write."""
    if not state.acknowledged:
        return False
    found = scene()
    at = dict(zip(found.nodes, state.applied, strict=True))
    for view in {state.written, *state.applied}:
        row, version = row_at(view), version_at(view)
        # A process behind the version reads first; it may apply any epoch up to the log's end.
        willing = [
            n
            for n in row.reads
            if accepts(max(at[n], view), version, rules.version_before) and n not in state.landed
        ]
        if read_satisfied({*willing}, row):
            return True
    return False


def search(rules: Rules, start: State) -> tuple[int, bool]:
    """Return the number of states, and whether one of them loses the write."""
    seen, waiting = {start}, deque([start])
    while waiting:
        state = waiting.popleft()
        if lost(state, rules):
            return len(seen), True
        for after in following(state, rules):
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    return len(seen), False


def beginning() -> State:
    return State(0, (0,) * len(scene().nodes), 0)


def test_log_of_the_model_is_real_with_a_separate_epoch_per_fence() -> None:
    found = scene()
    assert len(found.nodes) == 4
    states = [[t.state for t in image.topology.open()] for image in found.images]
    assert [STATE.WRITE_BOTH_READ_OLD] in states and [STATE.LEFT_TOKEN_RING] in states
    settled = [image.topology.settled() for image in found.images[:-1]]
    assert settled == [index % 2 == 0 for index in range(len(settled))]


def test_no_write_is_lost_with_both_barriers_and_a_fence_aware_source() -> None:
    states, broken = search(Rules(), beginning())
    assert not broken
    assert states > 10_000


@pytest.mark.parametrize(
    "rules",
    [
        Rules(fence_known=False),
        Rules(source_knows=False),
    ],
    ids=["no fence-known barrier", "source does not know the fence"],
)
def test_acknowledged_write_is_lost_without_one_of_the_rules(rules: Rules) -> None:
    _, broken = search(rules, beginning())
    assert broken


def asleep() -> State:
    """Return a state in which the range changed twice, the second change unfenced, and the write is older."""
    found = scene()
    states = [{t.state for t in image.topology.open()} for image in found.images]
    written = next(i for i, of in enumerate(states) if STATE.WRITE_BOTH_READ_NEW in of)
    row = row_at(written)
    assert version_at(0) < row.version_before < row.version == version_at(written)
    assert found.images[written].topology.fence_version < row.version
    applied = (written - 1,) * len(found.nodes)
    return State(written, applied, lagging=0, sent=0, streamed=True)


def test_request_two_changes_behind_loses_no_write() -> None:
    states, broken = search(Rules(), asleep())
    assert not broken
    assert states > 50


def test_request_two_changes_behind_loses_a_write_with_one_version() -> None:
    _, broken = search(Rules(version_before=False), asleep())
    assert broken


def test_model_counts_acks_like_the_barrier() -> None:
    """``covered`` leaves out the table of acks. This checks it against the real table."""
    found = scene()
    image = found.images[1]
    for size in range(len(found.nodes) + 1):
        for nodes in combinations(found.nodes, size):
            acks = AckTable()
            for node in nodes:
                acks = acks.with_ack(ack_of(image, node), 0.0)
            known = barrier(image, acks, image.epoch, image.topology.version, 0.0)
            assert known.satisfied == covered(1, frozenset(nodes))
