"""All nodes take snapshots of tables, and tables are restored from them tablet by tablet."""

from __future__ import annotations

from collections import Counter

import pytest

from stele.domain.balancer.load import Conditions
from stele.domain.balancer.proposals import proposal
from stele.domain.commands import (
    AlterSchema,
    AnyCommand,
    Cancel,
    CreateKeyspace,
    CreateTable,
    DeleteTableSnapshot,
    DropKeyspace,
    DropTable,
    Exclude,
    ExpireTableSnapshot,
    MoveTablets,
    Remove,
    ResizeTable,
    RestoreTable,
    RestoreTablets,
    SnapshotTable,
    Truncate,
)
from stele.domain.ddl.schema import SCHEMA_OBJECTS
from stele.domain.model.operations import TabletMove, TabletRestore
from stele.domain.model.requests import Request
from stele.domain.model.schema import AnyChange, ColumnDefinition, TableAlteration, TableCreation
from stele.domain.model.schema_objects import ColumnKind
from stele.domain.names import OrderKind, RequestStatus, TransitionState
from tests.coordinator.operations import DOWN_S, stand_still
from tests.coordinator.stories import error_of, reach, status_of
from tests.coordinator.test_tablet_replication import racked
from tests.coordinator.test_tablets import TABLE, tablets
from tests.coordinator.world import World

NODES = "dc1/r1/a1 dc1/r2/b1 dc1/r3/c1"
SIX = f"{NODES} dc1/r1/d1 dc1/r2/e1 dc1/r3/f1"
TAG, KEPT, BACK = "monday", "kept", "back"
DAY_S = 86_400


def snapshot(tag: str = TAG, table: str = TABLE, expire_s: int = 0) -> SnapshotTable:
    return SnapshotTable(name=table, snapshot=tag, expire_s=expire_s)


def restore(table: str = TABLE, tag: str = TAG) -> RestoreTable:
    return RestoreTable(name=table, snapshot=tag)


def asks(world: World, command: AnyCommand, request_id: str) -> None:
    assert world.apply(command, request_id) is None


def refused(world: World, command: AnyCommand) -> str:
    found = world.apply(command)
    assert found is not None, "it is taken"
    return found.code


def over(world: World, request_id: str, status: RequestStatus, limit_s: float = 900) -> None:
    world.until(lambda: status_of(world, request_id) is status, f"{request_id} {status}", limit_s)


def kept(nodes: str = NODES, rf: int = 3, count: int = 4, expire_s: int = 0) -> World:
    """Return a table with a snapshot, without a balancer."""
    world = racked(nodes, {"dc1": rf}, count)
    world.balances = False
    asks(world, snapshot(expire_s=expire_s), KEPT)
    world.run()
    return world


def failures(world: World) -> list[str]:
    tried = (r for r in world.image.requests.requests.values() if r.restores_tablet)
    return [r.error for r in tried if r.status is RequestStatus.FAILED]


def restored(world: World) -> list[int]:
    (each,) = world.image.table_snapshots.restores.values()
    return [tablet for tablet, epoch in enumerate(each.epochs.all().tolist()) if epoch]


def test_every_member_writes_and_the_log_records_each_manifest_hash() -> None:
    world = kept()
    (found,) = world.image.table_snapshots.snapshots.values()
    assert (found.name, found.table, found.tablets) == (TAG, TABLE, 4)
    assert [part.node_id for part in found.parts] == ["a1", "b1", "c1"]
    assert {part.manifest for part in found.parts} == {"f" * 64}
    assert [len(world.orders(n, OrderKind.SNAPSHOT)) for n in ("a1", "b1", "c1")] == [1, 1, 1]
    assert found.replication == {"dc1": 3} and not found.expires_ms


def test_table_does_not_change_while_its_snapshot_is_taken() -> None:
    world = racked(NODES, {"dc1": 2}, 4)
    world.balances = False
    stand_still(world, True)
    asks(world, snapshot(), KEPT)
    reach(world, KEPT, TransitionState.SNAPSHOT, fenced=True)
    row = tablets(world)[1]
    (free,) = {"a1", "b1", "c1"} - {*row.reads}
    move = TabletMove(table=TABLE, tablet=1, from_node=row.reads[0], to_node=free)
    asks(world, MoveTablets((move,)), "move")
    asks(world, ResizeTable(TABLE, 8), "split")
    world.pass_s(5)
    assert status_of(world, "move") is status_of(world, "split") is RequestStatus.PENDING
    stand_still(world, False)
    world.run()
    assert status_of(world, "split") is RequestStatus.DONE
    assert len(world.image.table_snapshots.snapshots) == 1


def test_balancer_plans_no_moves_of_a_table_during_its_snapshot() -> None:
    world = racked(NODES, {"dc1": 2}, 8)
    world.balances = False
    world.add("a2", rack="r1")
    world.run()
    assert proposal(world.image).moves
    stand_still(world, True)
    asks(world, snapshot(), KEPT)
    reach(world, KEPT, TransitionState.SNAPSHOT, fenced=True)
    assert not proposal(world.image).moves


@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_failed_or_cancelled_snapshot_does_not_exist(how: str) -> None:
    world = racked(NODES, {"dc1": 3}, 2)
    world.balances = False
    stand_still(world, how == "cancelled")
    world.nodes["b1"].fails = 3 if how == "failed" else 0
    asks(world, snapshot(), KEPT)
    if how == "cancelled":
        reach(world, KEPT, TransitionState.SNAPSHOT, fenced=True)
        assert world.apply(Cancel(KEPT)) is None
    world.run()
    assert status_of(world, KEPT) == how
    assert not world.image.table_snapshots.snapshots
    stand_still(world, False)
    asks(world, snapshot(), "again")
    world.run()
    assert status_of(world, "again") is RequestStatus.DONE


@pytest.mark.parametrize(("dead", "status"), [("b1", "done"), ("b1 c1", "failed")])
def test_snapshot_without_excluded_nodes_needs_a_quorum_of_each_tablet(
    dead: str, status: str
) -> None:
    """Nodes are excluded while it is taken: their data is not in it."""
    world = racked(NODES, {"dc1": 3}, 1)
    world.balances = False
    stand_still(world, True)
    asks(world, snapshot(), KEPT)
    reach(world, KEPT, TransitionState.SNAPSHOT, fenced=True)
    for name in dead.split():
        world.crash(name)
    world.pass_s(DOWN_S)
    asks(world, Exclude(tuple(dead.split()), force=True), "exclude")
    world.pass_s(8)
    stand_still(world, False)
    over(world, KEPT, RequestStatus(status))
    found = world.image.table_snapshots.snapshots.values()
    assert [[part.node_id for part in each.parts] for each in found] == (
        [["a1", "c1"]] if status == "done" else []
    )


def test_invalid_snapshot_or_restore_is_refused() -> None:
    world = kept()
    asks(world, CreateKeyspace("plain", {"dc1": 2}), "k")
    asks(world, CreateTable("plain.t"), "t")
    for command, code in (
        (snapshot(), "snapshot_exists"),
        (snapshot("no name"), "bad_name"),
        (snapshot("other", expire_s=-1), "bad_expiry"),
        (snapshot("other", expire_s=2**40), "bad_expiry"),
        (snapshot("other", table="music.none"), "unknown_table"),
        (snapshot("other", table="plain.t"), "no_tablets"),
        (restore(tag="none"), "unknown_snapshot"),
        (restore(table="plain.t"), "no_tablets"),
        (RestoreTablets((TabletRestore(table=TABLE, tablet=0),)), "nothing_to_restore"),
        (RestoreTablets(()), "no_restores"),
        (DeleteTableSnapshot("none"), "unknown_snapshot"),
    ):
        assert refused(world, command) == code, command


def test_table_in_a_restore_and_its_snapshot_cannot_be_removed() -> None:
    world = kept()
    asks(world, restore(), BACK)
    for command in (
        DropTable(TABLE),
        Truncate(TABLE),
        DropKeyspace("music"),
        restore(),
        snapshot("x"),
    ):
        assert refused(world, command) == "request_in_progress", command
    assert refused(world, DeleteTableSnapshot(TAG)) == "snapshot_in_use"
    assert world.apply(Cancel(BACK)) is None
    assert world.apply(DeleteTableSnapshot(TAG)) is None
    asks(world, Truncate(TABLE), "truncate")
    assert refused(world, snapshot("x")) == "request_in_progress"


def test_all_tablets_are_restored_within_the_stream_limits() -> None:
    world = kept(SIX, 3, 16)
    world.balances = True
    began = len(world.images)
    asks(world, restore(), BACK)
    over(world, BACK, RequestStatus.DONE)
    assert not world.image.table_snapshots.restores
    busiest = 0
    for image in world.images[began:]:
        nodes = Counter[str]()
        for request in image.requests.unfinished_by_id.values():
            transition = image.topology.transitions.get(request.request_id)
            if request.restores_tablet and (
                transition is None or transition.state is TransitionState.RESTORE
            ):
                table = image.schema.tables[request.table_id]
                nodes.update(image.ring.placements[table.placement].rows[request.tablet].reads)
        busiest = max(busiest, *nodes.values(), 0)
    assert busiest == 1, "it weighs as much as a node takes"
    tried = [r for r in world.image.requests.requests.values() if r.restores_tablet]
    assert not tried, "they are in the log alone"


def test_restore_works_with_one_replica_and_without_excluded_nodes() -> None:
    world = kept(rf=1, count=2)
    world.balances = True
    asks(world, restore(), BACK)
    over(world, BACK, RequestStatus.DONE)
    assert sum(len(world.orders(n, OrderKind.RESTORE)) for n in world.nodes) == 2
    world = kept(rf=3, count=1)
    world.crash("b1")
    world.pass_s(DOWN_S)
    asks(world, Exclude(("b1",)), "exclude")
    over(world, "exclude", RequestStatus.DONE)
    world.balances = True
    asks(world, restore(), BACK)
    over(world, BACK, RequestStatus.DONE)
    assert not world.orders("b1", OrderKind.RESTORE)


def test_restore_state_is_kept_by_a_split_and_a_merge() -> None:
    world = kept(count=4)
    asks(world, restore(), BACK)
    for tablet in (0, 2, 3):
        asks(
            world, RestoreTablets((TabletRestore(table=TABLE, tablet=tablet),)), f"tablet-{tablet}"
        )
        over(world, f"tablet-{tablet}", RequestStatus.DONE)
    asks(world, ResizeTable(TABLE, 8), "split")
    over(world, "split", RequestStatus.DONE)
    assert restored(world) == [0, 1, 4, 5, 6, 7]
    stale = TabletRestore(table=TABLE, tablet=1, of=4)
    assert refused(world, RestoreTablets((stale,))) == "tablets_resized"
    found = proposal(world.image, Conditions(now_ms=world.history.at_ms))
    assert [each.tablet for each in found.restores] == [2]
    asks(world, ResizeTable(TABLE, 4), "merge")
    over(world, "merge", RequestStatus.DONE)
    assert restored(world) == [0, 2, 3]
    world.balances = True
    over(world, BACK, RequestStatus.DONE)


def test_tablet_restore_from_before_a_split_fails_and_is_requested_again() -> None:
    world = kept(count=2)
    asks(world, restore(), BACK)
    asks(world, RestoreTablets((TabletRestore(table=TABLE, tablet=1),)), "tablet")
    asks(world, ResizeTable(TABLE, 4), "split")
    over(world, "split", RequestStatus.DONE)
    over(world, "tablet", RequestStatus.FAILED)
    assert restored(world) == []
    world.balances = True
    over(world, BACK, RequestStatus.DONE)


def test_cancelled_restore_ends_its_tablet_restores() -> None:
    world = kept(SIX, 2, 8)
    stand_still(world, True)
    world.balances = True
    asks(world, restore(), BACK)

    def going() -> list[Request]:
        return [r for r in world.image.requests.unfinished_by_id.values() if r.restores_tablet]

    def under_way() -> bool:
        return any(request.status is RequestStatus.RUNNING for request in going())

    world.until(under_way, "some to run")
    ids = [request.request_id for request in going()]
    assert world.apply(Cancel(BACK)) is None
    assert status_of(world, BACK) is RequestStatus.CANCELLED
    world.until(lambda: not going(), "none to be left", 20)
    assert {status_of(world, each) for each in ids} == {RequestStatus.CANCELLED}
    assert not world.image.table_snapshots.restores


def test_restore_fails_after_three_failures_of_a_tablet() -> None:
    world = kept(count=1)
    world.nodes["b1"].fails = 1000
    world.balances = True
    asks(world, restore(), BACK)
    world.until(lambda: failures(world), "the first failure")
    world.tick()
    (wait,) = [w for w in world.brain.steps.waits if w.request_ids == (BACK,)]
    assert "tablet 0 has failed" in wait.what and "disk full" in wait.what
    began_s = world.now_s
    over(world, BACK, RequestStatus.FAILED)
    assert world.now_s - began_s > 20, "it rests in between"
    assert "Tablet 0 failed 3 times" in error_of(world, BACK)
    assert "disk full" in error_of(world, BACK)


def test_restore_reports_remaining_tablets_and_time() -> None:
    world = kept(count=8)
    asks(world, restore(), BACK)
    world.balances = True
    world.until(lambda: len(restored(world)) == 3, "three to be restored")
    world.history.at_ms += 6000
    world.tick()
    (wait,) = [w for w in world.brain.steps.waits if w.request_ids == (BACK,)]
    assert wait.what == f"5 of 8 tablets of {TABLE} to be restored"
    assert wait.eta_s is not None and wait.eta_s > 0


def test_snapshot_expires_by_the_time_of_the_log_but_not_in_use() -> None:
    world = kept(expire_s=DAY_S)
    (found,) = world.image.table_snapshots.snapshots.values()
    term = world.image.topology.coordinator.term
    assert found.expires_ms == found.taken_ms + 1000 * DAY_S
    early = ExpireTableSnapshot(term, found.snapshot_id)
    assert refused(world, early) == "overtaken"
    asks(world, restore(), BACK)
    world.history.at_ms += 1000 * DAY_S
    world.pass_s(2)
    assert world.image.table_snapshots.snapshots
    assert world.apply(Cancel(BACK)) is None
    world.pass_s(2)
    assert not world.image.table_snapshots.snapshots


def test_snapshot_is_restored_into_another_table() -> None:
    world = kept(count=4)
    assert world.apply(CreateTable("music.copies")) is None
    table = world.image.schema.table_named("music.copies")
    assert table is not None
    world.balances = True
    asks(world, restore(table="music.copies"), BACK)
    assert [r.table_id for r in world.image.table_snapshots.restores.values()] == [table.table_id]
    over(world, BACK, RequestStatus.DONE)


def test_restore_needs_equal_column_ids() -> None:
    """Otherwise they would be values of other columns, or no rows at all."""
    world = kept()
    world.history.enable(SCHEMA_OBJECTS)

    def creation(name: str, *columns: tuple[str, str]) -> TableCreation:
        key = ColumnDefinition(name="k", type="text", kind=ColumnKind.PARTITION_KEY)
        others = (ColumnDefinition(name=name, type=type_) for name, type_ in columns)
        return TableCreation(name=f"music.{name}", columns=(key, *others))

    def change(*changes: AnyChange) -> None:
        assert world.apply(AlterSchema(changes)) is None

    number, text = ("n", "int"), ("t", "text")
    change(creation("rows", number, text), creation("same", number, text))
    change(creation("swapped", text, number), creation("typed", ("n", "bigint"), text))
    asks(world, snapshot(tag="rows", table="music.rows"), "rows")
    world.run()
    for name, tag in (("swapped", "rows"), ("typed", "rows"), ("same", TAG)):
        assert refused(world, restore(f"music.{name}", tag)) == "other_columns"
    assert refused(world, restore(tag="rows")) == "other_columns"
    change(TableAlteration(name="music.rows", drop=("n",)))
    world.balances = True
    for name in ("rows", "same"):
        asks(world, restore(f"music.{name}", "rows"), f"back {name}")
        over(world, f"back {name}", RequestStatus.DONE)


def test_colocated_table_is_restored_alone_and_split_with_its_group() -> None:
    world = racked(NODES, {"dc1": 3}, 4)
    world.balances = False
    assert world.apply(CreateTable("music.views", colocated_with=TABLE)) is None
    asks(world, snapshot(table="music.views"), KEPT)
    world.run()
    asks(world, restore(table="music.views"), BACK)
    asks(world, RestoreTablets((TabletRestore(table="music.views", tablet=1),)), "tablet")
    over(world, "tablet", RequestStatus.DONE)
    asks(world, ResizeTable(TABLE, 8), "split")
    over(world, "split", RequestStatus.DONE)
    assert restored(world) == [2, 3]
    world.balances = True
    over(world, BACK, RequestStatus.DONE)


def test_tablet_with_only_excluded_replicas_is_restored_after_its_move() -> None:
    """With replication factor 1, the usual order after a loss is exclude, restore, remove."""
    world = kept(rf=1)
    lost = [t for t, row in enumerate(tablets(world)) if row.reads == ("a1",)]
    assert lost
    world.crash("a1")
    world.pass_s(DOWN_S)
    asks(world, Exclude(("a1",), force=True), "exclude")
    world.until(lambda: "a1" in world.image.membership.excluded(), "a1 to be excluded")
    asks(world, restore(), BACK)
    world.balances = True
    world.until(lambda: len(restored(world)) == 4 - len(lost), "the others to be restored")
    world.pass_s(60)
    assert status_of(world, BACK) is RequestStatus.RUNNING and not {*lost} & {*restored(world)}
    waits = " ".join(w.what for w in world.brain.steps.waits if BACK in w.request_ids)
    assert f"dead nodes alone have tablet {lost[0]}" in waits
    asked = RestoreTablets((TabletRestore(table=TABLE, tablet=lost[0]),))
    assert world.apply(asked, "by hand") is None
    over(world, "by hand", RequestStatus.FAILED)
    assert "dead nodes alone" in error_of(world, "by hand")
    asks(world, Remove(node_id="a1", force=True), "remove")
    over(world, BACK, RequestStatus.DONE)
    for tablet in lost:
        (node,) = tablets(world)[tablet].reads
        orders = world.orders(node, OrderKind.RESTORE)
        assert orders


def test_restore_that_loses_its_last_reader_does_not_count() -> None:
    world = kept(rf=1)
    (tablet, *_) = [t for t, row in enumerate(tablets(world)) if row.reads == ("a1",)]
    stand_still(world, True)
    asks(world, restore(), BACK)
    asks(world, RestoreTablets((TabletRestore(table=TABLE, tablet=tablet),)), "one")
    reach(world, "one", TransitionState.RESTORE)
    world.crash("a1")
    world.pass_s(DOWN_S)
    asks(world, Exclude(("a1",)), "exclude")
    stand_still(world, False)
    world.nodes["a1"].alive = False
    world.until(lambda: status_of(world, "one") is not RequestStatus.RUNNING, "the end of one")
    assert restored(world) == []


def test_restore_waits_for_a_restarting_node_with_files() -> None:
    world = kept(SIX, rf=1, count=8)
    asks(world, restore(), BACK)
    conditions = Conditions(down=frozenset({"f1"}), now_ms=world.now_ms)
    assert proposal(world.image, Conditions(now_ms=world.now_ms)).restores
    assert not proposal(world.image, conditions).restores
