"""A plan equals the later outcome, and writes nothing."""

import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stele.domain.base import Rejection
from stele.domain.commands import (
    AnyCommand,
    CreateKeyspace,
    DropKeyspace,
    Envelope,
    Exclude,
    Join,
    Leave,
    Remove,
    Replace,
)
from stele.domain.image import Image
from stele.domain.names import NodeState, RequestStatus
from stele.domain.preflight import Asked, Preflight, asked, preflight
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import MIN_TOKEN
from tests.coordinator.random_runs import RandomRun
from tests.coordinator.world import SimNode, World, three_nodes

ASK: Final = "what-if"
RING: Final = 2**64
bounded = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def envelope(command: AnyCommand) -> Envelope:
    return Envelope(request_id=ASK, command=command, actor="ada")


def planned(image: Image, command: AnyCommand) -> Preflight:
    found = asked(image, [envelope(command)], 0)
    assert isinstance(found, Asked), found
    return preflight(image, found)


def joining(name: str, rack: str, dc: str = "dc1", **more: object) -> Join:
    settled = {"node_id": name, "address": f"http://{name}", "host_id": f"host-{name}"}
    return Join(**settled, cluster="demo", dc=dc, rack=rack, num_tokens=2, **more)  # type: ignore[arg-type]


class Choices:
    """A random command on a world at rest. Some commands are rejected. Nodes declared dead are dead."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.chance = random.Random(seed)
        self.members = sorted(world.image.membership.normal())

    def command(self) -> AnyCommand:
        kinds: list[Callable[[], AnyCommand]] = [
            self.join, self.leave, self.remove, self.replace, self.exclude, self.drop,
        ]  # fmt: skip
        return self.chance.choice(kinds)()

    def member(self) -> str:
        return self.chance.choice([*self.members, "nobody"])

    def dead(self) -> str:
        name = self.member()
        if name in self.world.nodes:
            self.world.nodes[name].alive = False
        return name

    def join(self) -> Join:
        return joining(self._new(), f"r{self.chance.randint(1, 4)}")

    def leave(self) -> Leave:
        return Leave(self.member())

    def remove(self) -> Remove:
        return Remove(node_id=self.dead(), force=self.chance.random() < 0.3)

    def exclude(self) -> Exclude:
        return Exclude((self.dead(),))

    def drop(self) -> DropKeyspace:
        return DropKeyspace(self.chance.choice(sorted([*self.world.image.schema.ids, "nothing"])))

    def replace(self) -> Replace:
        dead = self.dead()
        row = self.world.image.node(dead)
        name = self._new()
        return Replace(
            node_id=name,
            replaced_id=dead,
            cluster="demo",
            address=f"http://{name}",
            dc=row.dc if row else "dc1",
            rack=row.rack if row else "r1",
            host_id=f"host-{name}",
        )

    def _new(self) -> str:
        self.world.nodes["fresh"] = SimNode("fresh")
        return "fresh"


def changes(before: Placement, after: Placement) -> list[tuple[int, set[str], set[str]]]:
    """Return width and replicas before and after of every range that changed, cut by the bounds of both."""
    starts = sorted({row.start for row in (*before.rows, *after.rows)})
    found = []
    for start, end in pairwise([*starts, -MIN_TOKEN]):
        old, new = before.row_for(start + 1), after.row_for(start + 1)
        if old.reads != new.reads:
            found.append((end - start, {*old.reads}, {*new.reads}))
    return found


def held(placement: Placement) -> Counter[str]:
    found = Counter[str]()
    for row in placement.rows:
        end = -MIN_TOKEN if row.end == MIN_TOKEN else row.end
        found.update(dict.fromkeys(row.reads, end - row.start))
    return found


def outcome(world: World, began: int) -> tuple[list[str], set[str]]:
    """Return the states of the request's transition, and the nodes that received stream orders for it."""
    states, receivers = list[str](), set[str]()
    for image in world.images[began:]:
        transition = image.topology.of_request(ASK)
        if transition is not None and transition.state not in states:
            states.append(transition.state)
    for node in world.nodes.values():
        receivers |= {
            node.node_id
            for order in node.orders
            if order.request_id == ASK and order.kind == "stream"
        }
    return states, receivers


def quiet(seed: int) -> World:
    run = RandomRun(seed, faults=False)
    run.go(6)
    run.calm()
    run.create()
    for node in run.world.nodes.values():
        node.orders.clear()
    return run.world


@bounded
@given(st.integers(0, 2**32), st.integers(0, 2**32))
def test_plan_equals_the_outcome(seed: int, choice: int) -> None:
    world = quiet(seed)
    command = Choices(world, choice).command()
    before, began = world.image, len(world.images)
    found = asked(before, [envelope(command)], 0)
    if isinstance(found, Rejection):
        assert world.submit(envelope(command)) == found
        return
    plan = preflight(before, found)
    assert plan.alone
    assert world.image is before
    assert world.submit(envelope(command)) is None
    world.balances = plan.refusal is not None
    # The removal after a replacement waits for the balancer, and is no part of the plan.
    world.until(
        lambda: (
            ASK not in world.image.requests.unfinished_by_id
            and not world.image.topology.transitions
        ),
        "the end of the request",
    )
    request = world.image.requests.requests[ASK]
    states, receivers = outcome(world, began)
    if not plan.has_plan:
        assert request.status is RequestStatus.FAILED
        assert plan.refusal is not None and plan.refusal.message in request.error
        assert states == []
        return
    if plan.refusal is not None and plan.refusal.code == "has_tablets":
        drained = request.status is RequestStatus.DONE
        assert drained or request.error.startswith("cancelled by tablet-balancer: ")
        return  # the plan changes once these have migrated
    assert request.status is RequestStatus.DONE, request.error
    assert plan.refusal is None
    assert [step.state for step in plan.steps] == states
    assert {*plan.receivers} == receivers
    excluded = world.image.membership.excluded() - before.membership.excluded()
    gone = {name for name in plan.excludes if world.state(name) is NodeState.LEFT}
    assert {*plan.excludes} == excluded | gone
    for name, placement in before.ring.placements.items():
        if name in world.image.ring.placements:
            check_placement(plan, name, placement, world.image.ring.placements[name])


def check_placement(plan: Preflight, name: str, before: Placement, after: Placement) -> None:
    happened = changes(before, after)
    shown = next((p for p in plan.placements if p.placement == name), None)
    if shown is None:
        assert happened == []
        return
    assert shown.changing == len(happened)
    assert shown.changing_share == sum(width for width, _, _ in happened) / RING
    old, new = held(before), held(after)
    assert {n: (s.before, s.after) for n, s in shown.nodes.items()} == {
        n: (old[n] / RING, new[n] / RING) for n in {*old, *new}
    }
    gained, ranges = Counter[str](), Counter[str]()
    for gain in plan.gains:
        if gain.placement == name:
            gained[gain.node_id] += gain.ranges
    for _, had, has in happened:
        ranges.update(has - had)
    assert gained == ranges


def test_join_is_planned_with_its_states_shares_and_sources() -> None:
    world = three_nodes(rf=3)
    epochs = len(world.epochs)
    plan = planned(world.image, joining("a2", "a"))
    assert len(world.epochs) == epochs
    assert [(s.state, s.streams, s.can_be_undone) for s in plan.steps] == [
        ("join_group0", False, True),
        ("commit_cdc_generation", False, True),
        ("write_both_read_old", True, True),
        ("write_both_read_new", False, False),
        ("finishing", False, False),
    ]
    assert plan.tokens == {"a2": 2}
    assert plan.receivers == ("a2",)
    (placement,) = plan.placements
    assert placement.keyspaces == ("library",)
    assert {n: s.before for n, s in placement.nodes.items()} == {"a1": 1, "a2": 0, "b1": 1, "c1": 1}
    shares = {n: s.after for n, s in placement.nodes.items()}
    assert 0 < shares["a2"] < 1 and shares["a1"] + shares["a2"] == pytest.approx(1)
    assert {name: (s.before, s.after) for name, s in placement.racks.items()} == {
        "dc1/a": (1, 1), "dc1/b": (1, 1), "dc1/c": (1, 1),
    }  # fmt: skip
    assert sum(gain.share for gain in plan.gains) == pytest.approx(shares["a2"])
    assert {(gain.node_id, gain.sources, gain.needed) for gain in plan.gains} == {
        ("a2", ("a1",), 1)
    }
    assert plan.concerns == ()


def test_leave_that_reduces_the_racks_is_a_concern() -> None:
    world = three_nodes(rf=2)
    world.add("a2")
    world.run()
    plan = planned(world.image, Leave("c1"))
    assert "fewer_racks" not in {c.code for c in plan.concerns}
    plan = planned(world.image, Leave("b1"))
    assert plan.concerns == ()
    assert world.apply(Leave("b1")) is None
    world.run()
    plan = planned(world.image, Leave("c1"))
    (concern,) = plan.concerns
    assert concern.code == "fewer_racks" and concern.share == 1


def test_forced_removal_reports_the_share_that_may_be_lost() -> None:
    world = three_nodes(rf=1)
    plan = planned(world.image, Remove(node_id="a1"))
    assert not plan.has_plan
    assert plan.refusal is not None and plan.refusal.code == "data_would_be_lost"
    plan = planned(world.image, Remove(node_id="a1", force=True))
    (concern,) = plan.concerns
    assert concern.code == "data_may_be_lost" and "a1" in concern.message
    assert concern.share == plan.placements[0].nodes["a1"].before > 0
    assert plan.excludes == ("a1",)


def test_removal_reports_ranges_without_a_quorum_until_its_end() -> None:
    world = three_nodes(rf=2)
    plan = planned(world.image, Remove(node_id="a1"))
    (placement,) = plan.placements
    (concern,) = (c for c in plan.concerns if c.code == "no_quorum")
    assert concern.placement == placement.placement
    assert concern.share == placement.nodes["a1"].before > 0
    assert "cannot be read or written at quorum until a1 is replaced or removed" in concern.message


def test_plan_during_a_transition_names_the_blocking_request() -> None:
    world = three_nodes()
    world.add("a2")
    world.nodes["a2"].mute = True
    world.until(lambda: world.orders("a2"), "the order")
    plan = planned(world.image, joining("b2", "b"))
    assert not plan.alone
    assert plan.refusal is not None and plan.refusal.code == "ranges_locked"
    assert plan.refusal.details == {"request_id": "join-a2"}
    assert plan.gains


def test_commands_without_data_changes_have_steps_but_no_gains() -> None:
    world = three_nodes()
    assert planned(world.image, DropKeyspace("library")).gains == ()
    assert [s.state for s in planned(world.image, DropKeyspace("library")).steps] == [
        "drop_keyspace"
    ]
    plan = planned(world.image, Exclude(("c1",)))
    assert (plan.steps, plan.excludes) == ((), ("c1",))


def test_command_without_a_request_cannot_be_planned() -> None:
    world = three_nodes()
    found = asked(world.image, [envelope(CreateKeyspace("more", {"dc1": 1}))], 0)
    assert isinstance(found, Rejection) and found.code == "nothing_to_plan"
