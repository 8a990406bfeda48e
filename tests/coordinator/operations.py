"""Requests of each kind of operation in a small cluster, shared by the tests of all kinds.

A new kind needs a line in ``BEGIN``, and rows in docs/concepts/failure_modes.md.
"""

from collections.abc import Callable, Mapping
from typing import Final

import pytest

from stele.coordinator.steps import Limits
from stele.domain import decide
from stele.domain.commands import (
    AnnounceNode,
    AnyCommand,
    Cancel,
    Cleanup,
    DropKeyspace,
    DropTable,
    EnableFeatures,
    Exclude,
    KeyspaceRfChange,
    Leave,
    MoveNode,
    MoveTablets,
    NewCdcGeneration,
    NoopRequest,
    Quiesce,
    Rebuild,
    ReconfigureCatchUp,
    Remove,
    RepairTable,
    RepairTablets,
    ResizeTable,
    RestoreTable,
    RestoreTablets,
    SetSetting,
    SnapshotTable,
    Truncate,
)
from stele.domain.image import Image
from stele.domain.model.operations import TabletMove, TabletRepair, TabletRestore
from stele.domain.names import RequestKind, RequestStatus, TransitionState
from stele.domain.topology.operations.base import new_replicas
from stele.domain.topology.operations.table import OPERATIONS
from stele_simulator.ranges_in_use import sides
from tests.coordinator.stories import reach, status_of
from tests.coordinator.world import World, empty_cluster, three_nodes

DOWN_S: Final = Limits().down_after_s + 1
REQUEST: Final = "the-request"
FEATURE: Final = "tablets"
TABLE: Final = "music.songs"


def with_dead(rf: int, *dead: str, nodes: str = "b2 c2") -> World:
    """Return a1, b1, c1 and ``nodes`` in three racks. The ``dead`` nodes have been down for a while."""
    world = three_nodes(rf)
    if nodes:
        world.add(nodes)
        world.run()
    for name in dead:
        world.nodes[name].alive = False
    world.pass_s(DOWN_S)
    return world


def _join() -> tuple[World, str]:
    world = three_nodes()
    world.add("a2")
    return world, "join-a2"


def _replace() -> tuple[World, str]:
    world = with_dead(3, "b1")
    assert world.replace("b9", "b1") is None
    return world, "replace-b9"


def _with_table() -> World:
    """Return three nodes, and a table of four tablets with two replicas each."""
    world = three_nodes()
    world.create_table({"dc1": 2}, 4)
    return world


def _tablet_migration() -> tuple[World, str]:
    """Move the first tablet from its first replica to the node without a replica."""
    world = _with_table()
    serving = world.image.schema.serving(TABLE)
    assert serving is not None
    row = world.image.ring.placements[serving.placement].rows[0]
    (free,) = {"a1", "b1", "c1"} - {*row.reads}
    move = TabletMove(table=TABLE, tablet=0, from_node=row.reads[0], to_node=free)
    return _asks(world, MoveTablets((move,)))


def _intranode_migration() -> tuple[World, str]:
    """Move the first tablet from the first shard of a node to the second."""
    world = empty_cluster()
    for rack in ("a", "b", "c"):
        world.add(f"{rack}1", rack=rack, shards=2)
    world.run()
    world.create_table({"dc1": 2}, 4)
    serving = world.image.schema.serving(TABLE)
    assert serving is not None
    row = world.image.ring.placements[serving.placement].rows[0]
    node, shard = row.reads[0], 1 - row.shard_of(row.reads[0])
    move = TabletMove(table=TABLE, tablet=0, from_node=node, to_node=node, to_shard=shard)
    return _asks(world, MoveTablets((move,)))


def _tablet_rf_change() -> tuple[World, str]:
    """Add a replica of one tablet on the only node without one."""
    world = three_nodes()
    world.create_table({"dc1": 2}, 1)
    world.balances = True
    return _asks(world, KeyspaceRfChange("music", {"dc1": 3}))


def _table_repair() -> tuple[World, str]:
    world = _with_table()
    world.balances = True
    return _asks(world, RepairTable(TABLE))


def _with_snapshot() -> World:
    """Return a table with a snapshot."""
    world = _with_table()
    assert world.apply(SnapshotTable(name=TABLE, snapshot="monday")) is None
    world.run()
    return world


def _table_restore() -> tuple[World, str]:
    world = _with_snapshot()
    world.balances = True
    return _asks(world, RestoreTable(name=TABLE, snapshot="monday"))


def _tablet_restore() -> tuple[World, str]:
    """Restore one tablet of a table, before the balancer requests it."""
    world = _with_snapshot()
    world.balances = True
    assert world.apply(RestoreTable(name=TABLE, snapshot="monday"), "goal") is None
    return _asks(world, RestoreTablets((TabletRestore(table=TABLE, tablet=0),)))


def _reconfigure_catch_up() -> tuple[World, str]:
    """Let a second one of three replicas become a member."""
    world = three_nodes()
    assert world.apply(SetSetting("archive_replication", "1")) is None
    world.add_replicas("r1 r2 r3")
    return _asks(world, ReconfigureCatchUp(replication="2"))


def _enable_features() -> tuple[World, str]:
    """Request a feature. The writer must know it as well: see ``knows_features``."""
    world = three_nodes()
    for name, node in world.image.membership.nodes.items():
        said = AnnounceNode(
            node_id=name,
            address=node.address,
            supported_features=(FEATURE,),
            host_id=node.host_id,
        )
        assert world.apply(said) is None
    return _asks(world, EnableFeatures((FEATURE,)))


def knows_features(patch: pytest.MonkeyPatch) -> None:
    """Let the deciding build know ``FEATURE``."""
    patch.setattr(decide, "KNOWN_FEATURES", frozenset({FEATURE}))


def _asks(world: World, command: AnyCommand) -> tuple[World, str]:
    assert world.apply(command, REQUEST) is None
    return world, REQUEST


BEGIN: Final[Mapping[RequestKind, Callable[[], tuple[World, str]]]] = {
    RequestKind.JOIN: _join,
    RequestKind.REPLACE: _replace,
    RequestKind.LEAVE: lambda: _asks(three_nodes(), Leave("c1")),
    RequestKind.REMOVE: lambda: _asks(with_dead(3, "b1"), Remove(node_id="b1")),
    RequestKind.EXCLUDE: lambda: _asks(with_dead(2, "b1"), Exclude(("b1",))),
    RequestKind.DROP_KEYSPACE: lambda: _asks(three_nodes(), DropKeyspace("library")),
    RequestKind.DROP_TABLE: lambda: _asks(_with_table(), DropTable(TABLE)),
    RequestKind.TABLET_MIGRATION: _tablet_migration,
    RequestKind.INTRANODE_MIGRATION: _intranode_migration,
    RequestKind.TABLET_RESIZE: lambda: _asks(_with_table(), ResizeTable(TABLE, 8)),
    RequestKind.TABLET_REPAIR: lambda: _asks(
        _with_table(), RepairTablets((TabletRepair(table=TABLE, tablet=0),))
    ),
    RequestKind.TABLE_REPAIR: _table_repair,
    RequestKind.TABLE_SNAPSHOT: lambda: _asks(
        _with_table(), SnapshotTable(name=TABLE, snapshot="monday")
    ),
    RequestKind.TABLE_RESTORE: _table_restore,
    RequestKind.TABLET_RESTORE: _tablet_restore,
    RequestKind.MOVE: lambda: _asks(three_nodes(), MoveNode(node_id="c1", tokens=(1, 2**60))),
    RequestKind.REBUILD: lambda: _asks(three_nodes(), Rebuild(node_id="c1")),
    RequestKind.KEYSPACE_RF_CHANGE: lambda: _asks(
        three_nodes(), KeyspaceRfChange("library", {"dc1": 3})
    ),
    RequestKind.TABLET_RF_CHANGE: _tablet_rf_change,
    RequestKind.TRUNCATE: lambda: _asks(three_nodes(), Truncate("library")),
    RequestKind.CLEANUP: lambda: _asks(three_nodes(), Cleanup()),
    RequestKind.QUIESCE: lambda: _asks(three_nodes(), Quiesce()),
    RequestKind.ENABLE_FEATURES: _enable_features,
    RequestKind.NEW_CDC_GENERATION: lambda: _asks(three_nodes(), NewCdcGeneration(force=True)),
    RequestKind.RECONFIGURE_CATCH_UP: _reconfigure_catch_up,
    RequestKind.NOOP_REQUEST: lambda: _asks(three_nodes(), NoopRequest()),
}
"""A cluster in which the operation has just been asked for, and the id of its request."""


def begin(kind: RequestKind) -> tuple[World, str]:
    """Begin an operation. Raise AssertionError for an unknown kind."""
    assert kind in BEGIN, f"say in tests/coordinator/operations.py how '{kind}' is asked for"
    return BEGIN[kind]()


def undoable(kind: RequestKind) -> TransitionState | None:
    """Return the last state of an operation that can be rolled back, or None."""
    states = OPERATIONS[kind].states
    before = [name for name, state in states.items() if state.on_failure is not None]
    return before[-1] if before else None


def begin_undone(kind: RequestKind) -> tuple[World, str]:
    """Begin an operation, and roll it back as late as possible.

    It is cancelled. Once reads have moved, its new replicas are down instead, until that has rolled it back.
    Streams never end if the last state with a rollback is one that streams.
    """
    world, request_id = begin(kind)
    last = undoable(kind)
    assert last is not None
    stand_still(world, OPERATIONS[kind].states[last].opens_session)
    reach(world, request_id, last, fenced=OPERATIONS[kind].states[last].opens_session)
    stand_still(world, False)
    if not OPERATIONS[kind].states[last].reads_have_moved:
        assert world.apply(Cancel(request_id), "cancel") is None
        return world, request_id
    down = new_replicas(world.transition(request_id))
    for name in down:
        world.nodes[name].alive = False
    world.until(lambda: world.transition(request_id).mark, "the way back")
    for name in down:
        world.nodes[name].alive = True
    return world, request_id


def stand_still(world: World, mute: bool) -> None:
    """Let nodes send heartbeats without working, or work again."""
    for node in world.nodes.values():
        node.mute = mute


def serving_ranges(image: Image) -> dict[str, object]:
    """Return ranges with their readers and writers by placement, and the tokens of the ring."""
    found: dict[str, object] = {
        name: [(row.start, row.end, sides(row)) for row in image.ring.placements[name].rows]
        for name in image.ring.placements
    }
    return {**found, "tokens": image.membership.ring_tokens()}


def is_over(world: World, request_id: str) -> bool:
    return status_of(world, request_id) not in (RequestStatus.PENDING, RequestStatus.RUNNING)
