"""Racks whose nodes die or leave, while other tables and keyspaces are balanced."""

from __future__ import annotations

import pytest

from stele.domain.balancer.load import Conditions
from stele.domain.balancer.proposals import proposal
from stele.domain.commands import (
    CreateKeyspace,
    CreateTable,
    Exclude,
    KeyspaceRfChange,
    Leave,
    SetSetting,
)
from stele.domain.names import RequestStatus
from tests.coordinator.stories import status_of
from tests.coordinator.test_rack_lists import Racks, cluster
from tests.coordinator.world import World


def table(world: World, name: str, rf: dict[str, int], racks: Racks, count: int = 4) -> None:
    asked = CreateKeyspace(name, rf, tablets=True, initial_tablets=count, racks=racks)
    assert world.apply(asked) is None
    assert world.apply(CreateTable(f"{name}.t")) is None


def test_leave_ends_if_all_other_nodes_of_its_rack_are_dead_or_leaving() -> None:
    """Another table of the dc is not bound to racks."""
    world = cluster("dc1/r1/a1 dc1/r1/a2 dc1/r2/b1 dc1/r2/b2 dc1/r3/c1")
    table(world, "listed", {}, {"dc1": ("r1", "r2")})
    table(world, "free", {"dc1": 1}, {})
    world.crash("b2")
    world.pass_s(40)
    assert world.apply(Leave("b1"), "leave") is None
    world.pass_s(5)
    assert world.apply(Exclude(("b2",)), "exclude") is None
    world.balances = True
    over = lambda: status_of(world, "leave") is RequestStatus.CANCELLED  # noqa: E731
    world.until(over, "the leave to end with its reason", 600)


def test_change_that_waits_for_a_rack_does_not_block_other_keyspaces() -> None:
    world = cluster("dc1/r1/a1 dc1/r2/b1 dc1/r3/c1 dc1/r4/d1")
    assert world.apply(SetSetting("tablets_per_shard_goal", "100000")) is None
    table(world, "large", {}, {"dc1": ("r1", "r2")}, 4096)
    table(world, "small", {}, {"dc1": ("r1", "r2")})
    for name, rack in (("large", "r4"), ("small", "r3")):
        asked = KeyspaceRfChange(name, {}, racks={"dc1": ("r1", "r2", rack)})
        assert world.apply(asked, f"change-{name}") is None
    world.tick()
    world.tick()
    found = proposal(world.image, Conditions(down=frozenset({"d1"}), now_ms=world.now_ms))
    assert {each.move.table for each in found.moves} == {"small.t"}


@pytest.mark.parametrize("by_racks", [True, False])
def test_change_continues_after_the_replacement_of_a_dead_node(by_racks: bool) -> None:
    world = cluster("dc1/r1/a1 dc1/r2/b1 dc1/r3/c1")
    before: Racks = {"dc1": ("r1", "r2")} if by_racks else {}
    after: Racks = {"dc1": ("r1", "r2", "r3")} if by_racks else {}
    table(world, "music", {} if by_racks else {"dc1": 2}, before, 32)
    world.balances = True
    asked = KeyspaceRfChange("music", {} if by_racks else {"dc1": 3}, racks=after)
    assert world.apply(asked, "change") is None
    world.pass_s(8)
    world.crash("c1")
    world.pass_s(60)
    world.replace("c9", "c1")
    world.run(1200)
    assert status_of(world, "change") is RequestStatus.DONE
    assert status_of(world, "replace-c9") is RequestStatus.DONE
