"""Tablets are repaired: one by request, all of a table, and by schedule (Scylla's repair scheduler)."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from stele.coordinator.steps import Limits
from stele.domain.balancer.load import Conditions
from stele.domain.balancer.proposals import proposal
from stele.domain.commands import (
    AlterTable,
    AnyCommand,
    Cancel,
    CreateKeyspace,
    CreateTable,
    DropTable,
    Exclude,
    Leave,
    MoveTablets,
    RepairTable,
    RepairTablets,
    ResizeTable,
    SetSetting,
    Truncate,
)
from stele.domain.image import Image
from stele.domain.messages import Order
from stele.domain.model.operations import TabletMove, TabletRepair
from stele.domain.model.requests import RequestChanged
from stele.domain.model.schema import TableOptions
from stele.domain.names import RequestKind, RequestStatus, TransitionState
from stele.domain.topology.operations.repairs import repaired_now
from stele.domain.topology.requests import DOMAIN
from tests.coordinator.operations import DOWN_S, stand_still
from tests.coordinator.stories import error_of, reach, status_of
from tests.coordinator.test_tablet_replication import racked
from tests.coordinator.test_tablets import TABLE, tablets
from tests.coordinator.world import World, empty_cluster
from tests.domain.epochs import code_of

REPAIR = "repair"
DAY_MS = 86_400_000
NODES = "dc1/r1/a1 dc1/r2/b1 dc1/r3/c1"
SIX = f"{NODES} dc1/r1/d1 dc1/r2/e1 dc1/r3/f1"
DEAD_S = Limits().down_after_s + Limits().dead_node_patience_s + 5


def repair(*numbers: int, table: str = TABLE) -> RepairTablets:
    return RepairTablets(tuple(TabletRepair(table=table, tablet=number) for number in numbers))


def times(world: World, table: str = TABLE) -> list[int]:
    row = world.image.schema.table_named(table)
    assert row is not None
    count = len(world.image.ring.placements[row.placement])
    found: list[int] = world.image.repairs.of(row.table_id, count).tolist()
    return found


def asks(world: World, command: AnyCommand, request_id: str = REPAIR) -> None:
    assert world.apply(command, request_id) is None


def done(world: World, request_id: str = REPAIR, limit_s: float = 900) -> None:
    status = lambda: status_of(world, request_id) is RequestStatus.DONE  # noqa: E731
    world.until(status, f"{request_id} to be done", limit_s)


def ordered(world: World, node_id: str) -> list[Order]:
    return [order for order in world.orders(node_id) if order.request_id == REPAIR]


def repairing(image: Image) -> list[str]:
    """Return replicas of tablets that stream now, or are about to."""
    found = list[str]()
    for request in image.requests.unfinished_by_id.values():
        transition = image.topology.transitions.get(request.request_id)
        streams = transition is None or transition.state is TransitionState.REPAIR
        if request.repairs_tablet and streams:
            table = image.schema.tables[request.table_id]
            found += image.ring.placements[table.placement].rows[request.tablet].reads
    return found


# One tablet.


def test_repair_orders_every_replica_and_records_only_the_time() -> None:
    world = racked(NODES, {"dc1": 3}, 4)
    world.balances = False
    before = [(row.reads, row.writes) for row in tablets(world)]
    world.history.at_ms += 5000
    asks(world, repair(1))
    submitted_ms = world.history.at_ms
    world.run()
    assert status_of(world, REPAIR) is RequestStatus.DONE
    assert [len(ordered(world, name)) for name in ("a1", "b1", "c1")] == [1, 1, 1]
    assert times(world) == [0, submitted_ms, 0, 0]
    assert [(row.reads, row.writes) for row in tablets(world)] == before
    assert world.image.membership.nodes["a1"].cleanup_since == 0


def test_repair_locks_only_its_row() -> None:
    world = racked(NODES, {"dc1": 2}, 4)
    world.balances = False
    stand_still(world, True)
    asks(world, repair(0))
    reach(world, REPAIR, TransitionState.REPAIR, fenced=True)
    for tablet, name in ((0, "same"), (1, "other")):
        row = tablets(world)[tablet]
        (free,) = {"a1", "b1", "c1"} - {*row.reads}
        move = TabletMove(table=TABLE, tablet=tablet, from_node=row.reads[0], to_node=free)
        asks(world, MoveTablets((move,)), name)
    world.pass_s(5)
    assert status_of(world, "same") is RequestStatus.PENDING
    assert status_of(world, "other") is RequestStatus.RUNNING
    stand_still(world, False)
    done(world)
    done(world, "same")


def test_invalid_or_repeated_repair_is_refused() -> None:
    world = racked(NODES, {"dc1": 2}, 4)
    world.balances = False
    asks(world, CreateKeyspace("plain", {"dc1": 2}), "k")
    asks(world, CreateTable("plain.t"), "t")
    asks(world, repair(0))
    for command, code in (
        (repair(0), "tablet_is_repaired"),
        (repair(9), "unknown_tablet"),
        (repair(-1), "unknown_tablet"),
        (repair(0, table="music.none"), "unknown_table"),
        (repair(0, table="plain.t"), "no_tablets"),
        (repair(), "no_repairs"),
        (repair(*range(1025)), "too_many_repairs"),
        (RepairTablets((TabletRepair(table=TABLE, tablet=1, of=8),)), "tablets_resized"),
        (RepairTable("music.none"), "unknown_table"),
        (RepairTable("plain.t"), "no_tablets"),
    ):
        assert code_of(world.apply(command)) == code, command
    assert world.apply(repair(0, 1, 1, 9)) is None, "those that can be are taken"
    kinds = Counter(r.kind for r in world.image.requests.unfinished())
    assert kinds[RequestKind.TABLET_REPAIR] == 2


def test_repair_from_before_a_split_blocks_no_current_tablet() -> None:
    world = racked(NODES, {"dc1": 3}, 4)
    asks(world, repair(0))
    request = world.image.request(REPAIR)
    assert request is not None
    assert repaired_now(world.image) == {(request.table_id, 0)}
    stale = msgspec.structs.replace(request, tablet_count=2)
    requests = DOMAIN.apply[RequestChanged](world.image.requests, RequestChanged(stale))
    assert repaired_now(msgspec.structs.replace(world.image, requests=requests)) == set()


def test_repair_waits_for_a_down_replica_and_names_it() -> None:
    world = racked(NODES, {"dc1": 3}, 1)
    world.balances = False
    world.crash("b1")
    world.pass_s(Limits().down_after_s + 1)
    asks(world, repair(0))
    world.pass_s(5)
    assert status_of(world, REPAIR) is RequestStatus.PENDING
    waits = [w for w in world.brain.steps.waits if REPAIR in w.request_ids]
    assert [b.node_id for b in waits[0].blockers] == ["b1"]
    world.pass_s(DEAD_S)
    assert status_of(world, REPAIR) is RequestStatus.FAILED
    assert "b1" in error_of(world, REPAIR)


def test_excluded_replica_is_left_out_of_a_running_repair() -> None:
    world = racked(NODES, {"dc1": 3}, 1)
    world.balances = False
    stand_still(world, True)
    asks(world, repair(0))
    reach(world, REPAIR, TransitionState.REPAIR, fenced=True)
    world.crash("b1")
    world.pass_s(Limits().down_after_s + 1)
    asks(world, Exclude(("b1",)), "exclude")
    world.pass_s(5)
    stand_still(world, False)
    done(world)
    assert times(world)[0] > 0
    asks(world, repair(0), "again")
    done(world, "again")


def test_repair_of_a_single_replica_needs_no_stream() -> None:
    world = racked(NODES, {"dc1": 1}, 2)
    world.balances = False
    asks(world, repair(0))
    world.run()
    assert status_of(world, REPAIR) is RequestStatus.DONE
    assert not any(ordered(world, name) for name in ("a1", "b1", "c1"))
    assert times(world)[0] > 0


@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_failed_or_cancelled_repair_does_not_count(how: str) -> None:
    world = racked(NODES, {"dc1": 3}, 1)
    world.balances = False
    stand_still(world, how == "cancelled")
    world.nodes["b1"].fails = 3
    asks(world, repair(0))
    if how == "cancelled":
        reach(world, REPAIR, TransitionState.REPAIR, fenced=True)
        assert world.apply(Cancel(REPAIR)) is None
    world.run()
    assert status_of(world, REPAIR) == how
    assert times(world) == [0]


# Times.


def test_split_copies_repair_times_and_truncate_or_drop_removes_them() -> None:
    world = racked(NODES, {"dc1": 2}, 4)
    world.balances = False
    asks(world, repair(1))
    world.run()
    (at_ms,) = {*times(world)} - {0}
    asks(world, ResizeTable(TABLE, 8), "split")
    world.run()
    assert times(world) == [0, 0, at_ms, at_ms, 0, 0, 0, 0]
    asks(world, Truncate(TABLE), "truncate")
    world.run()
    assert times(world) == [0] * 8
    asks(world, repair(0), "again")
    world.run()
    assert times(world)[0] > 0
    asks(world, DropTable(TABLE), "drop")
    world.run()
    assert not world.image.repairs.tables


# A table.


def test_table_repair_covers_all_tablets_within_the_stream_limits() -> None:
    world = racked(SIX, {"dc1": 3}, 32)
    asks(world, RepairTable(TABLE))
    done(world)
    request = world.image.request(REPAIR)
    assert request is not None
    assert all(at_ms > request.submitted_ms for at_ms in times(world))
    busiest = [Counter(repairing(image)) for image in world.images]
    assert max(max(c.values(), default=0) for c in busiest) == 1, (
        "it weighs as much as a node takes"
    )
    assert max(len(c) for c in busiest) == 6, "two go on beside each other"
    kept = world.image.requests.requests.values()
    assert not [r for r in kept if r.repairs_tablet], "they are in the log alone"


def test_oldest_tablets_are_repaired_first() -> None:
    world = racked(NODES, {"dc1": 3}, 4)
    world.balances = False
    for tablet in (2, 0, 3):
        world.history.at_ms += 1000
        asks(world, repair(tablet), f"by-hand-{tablet}")
        world.run()
    world.history.at_ms += 1000
    asks(world, RepairTable(TABLE))
    order = list[int]()
    world.balances = True
    while status_of(world, REPAIR) is not RequestStatus.DONE:
        world.tick()
        going = [
            r.tablet for r in world.image.requests.unfinished_by_id.values() if r.repairs_tablet
        ]
        order += [tablet for tablet in going if tablet not in order]
        assert world.now_s < 900
    assert order == [1, 2, 0, 3]


def test_repair_reports_remaining_tablets_and_time() -> None:
    world = racked(NODES, {"dc1": 3}, 8)
    asks(world, RepairTable(TABLE))
    world.until(lambda: sum(map(bool, times(world))) == 3, "three to be repaired")
    world.history.at_ms += 6000
    world.tick()
    (wait,) = [w for w in world.brain.steps.waits if w.request_ids == (REPAIR,)]
    assert wait.what == f"5 of 8 tablets of {TABLE} to be repaired"
    assert wait.eta_s is not None and wait.eta_s > 0


def test_table_repair_ignores_earlier_repairs_at_the_same_log_time() -> None:
    """A writer whose clock went back gives all epochs the same time for a while."""
    world = racked(NODES, {"dc1": 3}, 2)
    asks(world, repair(0), "before")
    world.run()
    known = times(world)
    asks(world, RepairTable(TABLE))
    done(world)
    assert times(world)[0] > known[0]
    known = times(world)
    asks(world, RepairTable(TABLE), "again")
    done(world, "again")
    assert min(times(world)) > max(known)


def test_cancel_ends_a_table_repair_and_its_pending_tablets() -> None:
    world = racked(NODES, {"dc1": 3}, 8)
    asks(world, RepairTable(TABLE))
    world.until(lambda: status_of(world, REPAIR) is RequestStatus.RUNNING, "its begin")
    world.balances = False
    world.run_balancer()
    waiting = [r.request_id for r in world.image.requests.pending() if r.repairs_tablet]
    asks(world, repair(7), "by-hand")
    assert waiting
    assert world.apply(Cancel(REPAIR)) is None
    assert status_of(world, REPAIR) is RequestStatus.CANCELLED
    assert {status_of(world, each) for each in waiting} == {RequestStatus.CANCELLED}
    assert status_of(world, "by-hand") is RequestStatus.PENDING
    world.run()


def test_table_has_one_repair_at_a_time_and_a_drop_ends_it() -> None:
    world = racked(NODES, {"dc1": 3}, 8)
    asks(world, RepairTable(TABLE))
    assert code_of(world.apply(RepairTable(TABLE))) == "table_is_repaired"
    world.pass_s(3)
    asks(world, DropTable(TABLE), "drop")
    done(world, "drop")
    world.run()
    assert status_of(world, REPAIR) is RequestStatus.FAILED
    assert error_of(world, REPAIR) == "The table was dropped."


def test_tablets_of_a_silent_node_wait() -> None:
    world = racked(SIX, {"dc1": 2}, 12)
    world.crash("b1")
    world.pass_s(20)
    asks(world, RepairTable(TABLE))
    rows = tablets(world)
    without = [at for at, row in enumerate(rows) if "b1" not in row.reads]
    world.until(lambda: all(times(world)[at] for at in without), "those of the others")
    world.pass_s(30)
    assert [at for at, ms in enumerate(times(world)) if ms] == without
    failed = [r for r in world.image.requests.requests.values() if r.repairs_tablet]
    assert not failed, "impossible repairs are not tried"
    world.nodes["b1"].alive = True
    done(world)


@pytest.mark.parametrize("command", [Leave("f1"), ResizeTable(TABLE, 32), ResizeTable(TABLE, 8)])
def test_table_repair_continues_next_to_other_operations(command: AnyCommand) -> None:
    world = racked(SIX, {"dc1": 2}, 16)
    asks(world, RepairTable(TABLE))
    world.pass_s(3)
    asks(world, command, "other")
    for request_id in (REPAIR, "other"):
        done(world, request_id)
    assert all(times(world))


# By schedule.


def planned(world: World, conditions: Conditions = Conditions(), after_ms: int = 0) -> list[int]:  # noqa: B008
    found = proposal(world.image, conditions._replace(now_ms=world.history.at_ms + after_ms))
    return [each.tablet for each in found.repairs]


def scheduled(nodes: str = NODES, rf: int = 3, count: int = 4) -> World:
    world = racked(nodes, {"dc1": rf}, count)
    world.balances = False
    world.run()
    assert world.apply(SetSetting("auto_repair_enabled_default", "on")) is None
    return world


def test_schedule_is_off_by_default() -> None:
    world = racked(NODES, {"dc1": 3}, 4)
    assert planned(world) == []
    assert world.apply(SetSetting("auto_repair_enabled_default", "on")) is None
    assert planned(world) == [0]


def test_tablets_are_repaired_again_after_the_threshold() -> None:
    world = scheduled(count=2)
    world.balances = True
    world.until(lambda: all(times(world)), "the first repair")
    assert planned(world) == []
    assert planned(world, after_ms=DAY_MS) == []
    assert planned(world, after_ms=DAY_MS + 10) == [0]
    assert world.apply(SetSetting("auto_repair_threshold_in_seconds", "60")) is None
    assert planned(world, after_ms=60_010) == [0]


def test_table_options_take_precedence_over_the_settings() -> None:
    world = scheduled()
    for options, expected in (
        (TableOptions(auto_repair_enabled="off"), []),
        (TableOptions(auto_repair_enabled="on"), [0]),
    ):
        assert world.apply(AlterTable(TABLE, options)) is None
        assert planned(world) == expected
    assert world.apply(SetSetting("auto_repair_enabled_default", "")) is None
    assert planned(world) == [0]
    asks(world, repair(0, 1, 2, 3), "by-hand")
    world.run()
    often = TableOptions(auto_repair_enabled="on", auto_repair_threshold=60)
    assert planned(world, after_ms=61_000) == []
    assert world.apply(AlterTable(TABLE, often)) is None
    assert planned(world, after_ms=61_000) == [0]


@pytest.mark.parametrize(
    "options",
    [
        TableOptions(auto_repair_enabled="maybe"),
        TableOptions(auto_repair_threshold=-1),
        TableOptions(auto_repair_threshold=2**31 - 1),
    ],
)
def test_invalid_repair_options_are_refused(options: TableOptions) -> None:
    assert code_of(scheduled().apply(AlterTable(TABLE, options))) == "bad_table_options"


def test_schedule_skips_single_and_excluded_replicas() -> None:
    world = scheduled(rf=1)
    assert planned(world) == []
    asks(world, RepairTable(TABLE))
    assert len(planned(world)) == 4, "there is nothing to stream"
    world = scheduled(rf=3, count=1)
    world.crash("b1")
    world.pass_s(Limits().down_after_s + 1)
    asks(world, Exclude(("b1",)), "exclude")
    done(world, "exclude")
    assert planned(world) == []
    asks(world, RepairTable(TABLE))
    assert planned(world) == [0]


def test_requested_repair_comes_before_a_scheduled_one() -> None:
    world = scheduled(count=1)
    assert world.apply(CreateTable("music.zoo")) is None
    asks(world, RepairTable("music.zoo"))
    (first,) = proposal(world.image, Conditions(now_ms=world.history.at_ms)).repairs
    assert first.table == "music.zoo"
    assert first.why == "ada has asked for the repair of music.zoo"


def test_tablet_with_a_failed_repair_is_paused() -> None:
    world = scheduled(count=2)
    table = world.image.schema.table_named(TABLE)
    assert table is not None
    paused = frozenset({(table.table_id, 0)})
    assert planned(world, Conditions(paused=paused)) == [1]


def test_moves_use_streams_before_repairs() -> None:
    """A node that receives a tablet in the same round has no room for a repair."""
    world = empty_cluster()
    world.join_at(NODES)
    world.create_table({"dc1": 3}, 8)
    world.add("d1", rack="r1")
    world.until(lambda: world.image.node("d1") in world.image.membership.normal().values(), "d1")
    asks(world, RepairTable(TABLE))
    found = proposal(world.image, Conditions(now_ms=world.history.at_ms))
    moving = {n for m in found.moves for n in (m.move.from_node, m.move.to_node)}
    assert "a1" in moving
    rows = tablets(world)
    for each in found.repairs:
        assert moving.isdisjoint(rows[each.tablet].reads)


def test_rebuild_uses_the_streams_of_its_live_sources() -> None:
    """Every tablet has replicas on b1 and c1, which then have no room for a repair."""
    world = racked(f"{NODES} dc1/r1/d1", {"dc1": 3}, 8)
    world.balances = False
    world.crash("a1")
    world.pass_s(DOWN_S)
    asks(world, Exclude(("a1",)), "exclude")
    world.pass_s(DOWN_S)
    asks(world, RepairTable(TABLE))
    world.pass_s(1)
    found = proposal(world.image, Conditions(now_ms=world.history.at_ms))
    assert {each.move.from_node for each in found.moves} == {"a1"}
    assert not found.repairs
    world.nodes["d1"].mute = True
    asks(world, MoveTablets(tuple(each.move for each in found.moves)), "rebuild")
    assert not proposal(world.image, Conditions(now_ms=world.history.at_ms)).repairs
