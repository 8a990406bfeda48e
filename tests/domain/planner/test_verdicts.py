"""Each node gets one verdict, by the first rule that decides. A plan would make the accepted moves."""

from __future__ import annotations

from hypothesis import given, settings

from stele.domain.planner.cluster import BalanceOptions, Cluster, NodeRole
from stele.domain.planner.offline import described
from stele.domain.planner.plan import plan_round
from stele.domain.planner.planned import Rule
from stele.domain.planner.state import LEAVING
from stele.domain.planner.verdicts import verdicts
from tests.domain.planner.clusters import GIB, cluster, node, table
from tests.domain.planner.test_properties import clusters


def rules(which: Cluster, unit: int, source: str) -> dict[str, tuple[Rule, str]]:
    what = described(which)
    found = verdicts(what.state, what.names, unit)
    return {each.target: (each.rule, each.reason) for each in found if each.source == source}


def test_verdict_names_the_deciding_rule_for_each_node() -> None:
    nodes = [
        node("h1", rack="a"),
        node("h2", rack="b"),
        node("h3", rack="b"),
        node("h4", rack="a", state=NodeRole.DRAINING),
        node("h5", rack="a", state=NodeRole.DOWN),
        node("h6", rack="a"),
        node("h7", rack="c", dc="dc2"),
        node("h8", rack="a"),
    ]
    rows = [["h1", "h2"]] * 4 + [["h8", "h3"]] * 2
    assert rules(cluster(nodes, table(rows)), 0, "h1") == {
        "h1": (Rule.HOLDS_ONE, "h1 has a replica of this tablet already"),
        "h2": (Rule.HOLDS_ONE, "h2 has a replica of this tablet already"),
        "h3": (Rule.RACK, "rack b of h3 would have too many of its replicas"),
        "h4": (Rule.NODE_STATE, "h4 is draining"),
        "h5": (Rule.NODE_STATE, "h5 is down"),
        "h6": (Rule.EVENER, "h1 has 4 replicas of ks.t, its share is 2; h6 has 0 of 2"),
        "h7": (Rule.OTHER_DC, "h7 is in another dc, dc2"),
        "h8": (Rule.NOT_EVENER, "h1 has 4 replicas of ks.t, its share is 2; h8 has 2 of 2"),
    }


def test_verdict_reports_shares_before_and_after_the_move() -> None:
    sizes = [3 * GIB, 2 * GIB, 1 * GIB, 1 * GIB]
    which = cluster(
        [node("h1"), node("h2")],
        table([["h1"], ["h1"], ["h1"], ["h2"]], size_bytes=sizes),
        options=BalanceOptions(),
    )
    rule, reason = rules(which, 1, "h1")["h2"]
    assert rule is Rule.EVENER
    assert reason == "h1 would go from 171.4% of its share to 114.3%, h2 from 28.6% to 85.7%"
    assert rules(which, 0, "h1")["h2"][0] is Rule.NOT_EVENER


def test_verdict_names_nodes_with_unknown_sizes() -> None:
    which = cluster(
        [node("h1"), node("h2")],
        table([["h1"], ["h2"]], size_bytes=[1, None]),
        options=BalanceOptions(),
    )
    assert rules(which, 0, "h1")["h2"] == (Rule.STATISTICS, "sizes of tablets of h2: unknown")


@settings(max_examples=100, deadline=None)
@given(clusters())
def test_verdicts_accept_every_planned_move(before: Cluster) -> None:
    what = described(before)
    moves = plan_round(what.state, what.names, None)
    seen = set[int]()
    for move in moves:
        if move.source[0] == move.target[0] or move.unit in seen:
            continue
        seen.add(move.unit)
        names = [what.state.nodes[at].id for at in (move.source[0], move.target[0])]
        found = {
            (each.source, each.target): each for each in verdicts(what.state, what.names, move.unit)
        }[names[0], names[1]]
        leaves = what.state.state[move.source[0]] in LEAVING
        assert found.rule in ((Rule.LEAVES,) if leaves else (Rule.EVENER, Rule.NOT_EVENER))
