"""Repairs among the replicas on some nodes or in some dcs (Scylla's hosts_filter and dcs_filter)."""

from __future__ import annotations

import pytest

from stele.domain.commands import (
    Cancel,
    CreateKeyspace,
    CreateTable,
    Exclude,
    RepairTable,
    RepairTablets,
    ResizeTable,
    SetSetting,
    Truncate,
)
from stele.domain.evolve import apply_facts
from stele.domain.image import Image
from stele.domain.model.operations import TabletRepair
from stele.domain.model.repairs import DOMAIN
from stele.domain.model.requests import Among
from stele.domain.names import RequestStatus, TransitionState
from stele.domain.ring.transition import TransitionRow
from stele.domain.snapshot import image_to_facts
from stele.domain.topology.operations.repairs import TABLET_REPAIR
from tests.coordinator.operations import stand_still
from tests.coordinator.stories import reach, status_of
from tests.coordinator.test_rack_lists import cluster
from tests.coordinator.test_tablet_repair import REPAIR, asks, done, ordered, repair, times
from tests.coordinator.test_tablets import TABLE, tablets
from tests.coordinator.world import World
from tests.domain.epochs import code_of

EIGHT = "dc1/r1/a1 dc1/r2/b1 dc1/r3/c1 dc2/r1/d1 dc2/r2/e1"


def world_of(count: int = 4, nodes: str = EIGHT) -> World:
    """Return a table with three replicas in dc1 and two in dc2."""
    world = cluster(nodes)
    rf = {"dc1": 3, "dc2": 2}
    asks(world, CreateKeyspace("music", rf, tablets=True, initial_tablets=count), "k")
    asks(world, CreateTable(TABLE), "t")
    return world


def among(*nodes: str, dcs: tuple[str, ...] = (), tablet: int = 0) -> RepairTablets:
    return RepairTablets((TabletRepair(table=TABLE, tablet=tablet, nodes=nodes, dcs=dcs),))


def took_part(world: World) -> set[str]:
    return {name for name in world.nodes if ordered(world, name)}


@pytest.mark.parametrize(
    ("command", "who"),
    [
        (among("a1", "d1"), {"a1", "d1"}),
        (among(dcs=("dc2",)), {"d1", "e1"}),
        (among("a1", "b1", "d1", dcs=("dc1",)), {"a1", "b1"}),
        (among(dcs=("dc1", "dc2")), {"a1", "b1", "c1", "d1", "e1"}),
    ],
)
def test_restricted_repair_uses_only_named_replicas_and_does_not_count(
    command: RepairTablets, who: set[str]
) -> None:
    """The other replicas may be down."""
    world = world_of()
    for name in {"a1", "b1", "c1", "d1", "e1"} - who:
        world.crash(name)
    world.pass_s(20)
    stand_still(world, True)
    asks(world, command)
    reach(world, REPAIR, TransitionState.REPAIR, fenced=True)
    row = tablets(world)[0]
    locked = TransitionRow(row.start, row.end, row.reads, row.reads)
    transition = world.transition(REPAIR)
    for name in row.reads:
        found = TABLET_REPAIR.sources(world.image, transition, locked, name, frozenset())
        assert (found is not None) == (name in who)
        assert found is None or ({*found[0]}, found[1]) == (who - {name}, len(who) - 1)
    stand_still(world, False)
    done(world)
    assert took_part(world) == who
    assert times(world) == [0, 0, 0, 0]
    request = world.image.request(REPAIR)
    assert request is not None and request.is_restricted
    assert not world.image.repairs.restricted


def test_restricted_repair_waits_for_named_replicas() -> None:
    world = world_of()
    world.crash("b1")
    world.crash("e1")
    world.pass_s(20)
    asks(world, among("a1", "b1"))
    world.pass_s(30)
    assert status_of(world, REPAIR) is RequestStatus.PENDING
    (wait,) = (w for w in world.brain.steps.waits if REPAIR in w.request_ids)
    assert [blocker.node_id for blocker in wait.blockers] == ["b1"]
    world.nodes["b1"].alive = True
    done(world)


def test_excluded_replica_is_left_out_of_a_restricted_repair() -> None:
    world = world_of()
    world.crash("b1")
    world.pass_s(20)
    asks(world, Exclude(("b1",)), "exclude")
    world.pass_s(10)
    asks(world, among("a1", "b1", "c1"))
    done(world)
    assert took_part(world) == {"a1", "c1"}


@pytest.mark.parametrize(
    ("nodes", "dcs", "code"),
    [
        (("a1", "zz"), (), "unknown_node"),
        ((), ("dc9",), "unknown_dc"),
        (("a1",), (), "too_few_take_part"),
        (("a1", "b1"), ("dc2",), "too_few_take_part"),
    ],
)
def test_restricted_repair_needs_two_replicas(
    nodes: tuple[str, ...], dcs: tuple[str, ...], code: str
) -> None:
    world = world_of()
    for command in (among(*nodes, dcs=dcs), RepairTable(TABLE, nodes, dcs)):
        assert code_of(world.apply(command)) == code


def test_tablet_needs_two_replicas_among_the_named_nodes() -> None:
    world = cluster(EIGHT.replace("dc2", "dc1"))
    keyspace = CreateKeyspace("music", {"dc1": 2}, tablets=True, initial_tablets=8)
    asks(world, keyspace, "k")
    asks(world, CreateTable(TABLE), "t")
    one, two = tablets(world)[0].reads
    other = next(at for at, row in enumerate(tablets(world)) if {one, two} != {*row.reads})
    assert code_of(world.apply(among(one, two, tablet=other))) == "too_few_take_part"
    world.balances = True
    asks(world, RepairTable(TABLE, (one, two)))
    done(world)


def test_restricted_repair_covers_all_tablets_of_a_table() -> None:
    """It has its own times, which are dropped at the end."""
    world = world_of(16)
    world.balances = True
    asks(world, repair(3), "one")
    done(world, "one")
    before = times(world)
    world.crash("c1")
    world.pass_s(20)
    world.history.at_ms += 1000
    asks(world, RepairTable(TABLE, (), ("dc2",)))
    limit = lambda: len({*world.image.repairs.restricted}) > 0  # noqa: E731
    world.until(limit, "some tablets", 100)
    (wait,) = (w for w in world.brain.steps.waits if REPAIR in w.request_ids)
    assert "of 16 tablets of music.songs to be repaired among replicas of dc2" in wait.what
    assert round_trip(world.image) == world.image.repairs
    why = {r.reason for image in world.images for r in image.requests.unfinished_by_id.values()}
    assert "ada has asked for the repair of music.songs among replicas of dc2" in why
    done(world)
    own = [
        r for i in world.images for r in i.requests.unfinished_by_id.values() if r.repairs_tablet
    ]
    assert {r.among for r in own if r.request_id != "one"} == {Among((), ("dc2",))}
    assert times(world) == before
    assert not world.image.repairs.restricted


def round_trip(image: Image) -> object:
    return apply_facts(Image(), [*image_to_facts(image)]).repairs


def test_full_repair_counts_for_a_restricted_one_but_not_vice_versa() -> None:
    world = world_of(2)
    asks(world, RepairTable(TABLE, ("a1", "b1")))
    asks(world, repair(0), "whole")
    asks(world, among("a1", "b1", tablet=1), "same")
    for name in ("whole", "same"):
        done(world, name)
    done(world)
    assert times(world)[0] > 0 and times(world)[1] == 0


def test_restricted_repair_continues_after_a_split() -> None:
    world = world_of(4)
    world.balances = True
    asks(world, RepairTable(TABLE, ("a1", "b1")))
    world.until(lambda: bool(world.image.repairs.restricted), "some", 100)
    asks(world, ResizeTable(TABLE, 8), "split")
    done(world, "split")
    done(world)
    assert times(world) == [0] * 8
    assert not world.image.repairs.restricted


def test_restricted_repair_after_a_cancel_starts_from_zero() -> None:
    world = world_of(8)
    world.balances = True
    asks(world, RepairTable(TABLE, ("a1", "b1")))
    world.until(lambda: bool(world.image.repairs.restricted), "some", 100)
    assert world.apply(Cancel(REPAIR)) is None
    assert status_of(world, REPAIR) is RequestStatus.CANCELLED
    world.until(world.at_rest, "rest", 300)
    asks(world, RepairTable(TABLE, ("c1", "d1")), "again")
    assert "8 of 8" in str(left(world, "again"))
    done(world, "again")
    row = world.image.schema.table_named(TABLE)
    assert row is not None
    assert world.image.repairs.restricted.get(row.table_id) is None


def left(world: World, request_id: str) -> str:
    world.until(lambda: status_of(world, request_id) is RequestStatus.RUNNING, "it", 60)
    world.tick()
    waits = [w.what for w in world.brain.steps.waits if request_id in w.request_ids]
    return waits[0]


def test_truncation_drops_restricted_repair_times() -> None:
    world = world_of(4)
    world.balances = True
    asks(world, RepairTable(TABLE, ("a1", "b1")))
    world.until(lambda: bool(world.image.repairs.restricted), "some", 100)
    assert world.apply(Cancel(REPAIR)) is None
    world.until(world.at_rest, "rest", 300)
    asks(world, Truncate(TABLE), "truncate")
    done(world, "truncate")
    assert world.image.repairs == DOMAIN.empty


def test_scheduled_repair_continues_next_to_a_restricted_one() -> None:
    world = world_of(4)
    world.balances = True
    asks(world, SetSetting("auto_repair_enabled_default", "on"), "on")
    world.crash("e1")
    world.pass_s(20)
    asks(world, RepairTable(TABLE, ("a1", "b1")))
    done(world)
    assert times(world) == [0] * 4
    world.nodes["e1"].alive = True
    world.until(lambda: min(times(world)) > 0, "the schedule", 300)
