"""``stele balance status|plan|why|off|on|history``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cyclopts import App
from rich.table import Table

from stele.cli.balance_words import exit_of, print_plan
from stele.cli.client import Client
from stele.cli.commands.balance_history import history
from stele.cli.commands.balance_switch import off, on
from stele.cli.options import Json, Where
from stele.cli.output import (
    ago,
    console,
    counted,
    joined,
    percent,
    print_value_as_json,
    size,
    styled,
)
from stele.cli.output import table as table_of
from stele.cli.reading import Reading, as_counted
from stele.cli.switch_words import switch_text
from stele.domain.requests.facts import Request
from stele.domain.ring.shards import place_text
from stele.runtime.answers.tablet_balancer import (
    BalanceAnswer,
    BalancedNode,
    BalancePlan,
    PlannedTabletMove,
    TabletWhy,
)
from stele.words.requests import what

SERVICE = "tablet-balancer"
MOST_MOVES = 20
"""So many are shown of those that are under way: each node gives and gets two at a time."""
app = App(name="balance", help="How tablets are spread over the nodes, and what moves.")
app.command(off)
app.command(on)
app.command(history)


@app.command
def plan(json: Json = Json(), where: Where = Where()) -> int:  # noqa: B008
    """All moves that are left until everything is even, each with its reason, and how even it is then.

    What really moves is planned anew at each step. Nothing is done.
    """
    with where.client() as client:
        found = client.get(SERVICE, "/v1/balance/plan", BalancePlan)
    if json.as_json:
        print_value_as_json(found)
    else:
        console().print(f"plan at epoch {found.epoch}")
        print_plan(found.plan)
    return exit_of(found.plan)


@app.command
def why(
    table: str,
    tablet: int,
    *,
    json: Json = Json(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Why a tablet is where it is: for each of its replicas and each other node, what speaks for a move, or
    forbids it.

    Args:
        table: KEYSPACE.TABLE.
        tablet: Its number.
    """
    with where.client() as client:
        found = client.get(SERVICE, "/v1/balance/why", TabletWhy, table=table, tablet=tablet)
    if json.as_json:
        print_value_as_json(found)
        return
    title = f"tablet {tablet} of {table} at epoch {found.epoch}"
    shown = table_of(title, "replica on", "could go to", "would it", "rule", "because")
    for verdict in found.verdicts:
        if verdict.source != verdict.target:
            accepted = "yes" if verdict.accepted else "no"
            source = place_text(verdict.source, found.shards.get(verdict.source, 0))
            shown.add_row(source, verdict.target, accepted, verdict.rule, verdict.reason)
    console().print(shown)


@app.command
def status(json: Json = Json(), where: Where = Where()) -> None:  # noqa: B008
    """Whether every node has its share of every table; what moves and why, what is next, and what cannot.

    It is done when it says `balanced`. Shares are within the racks: no rack gets more replicas of a tablet than
    its fullest one has, so nodes of a small rack may have more than others. A replica that moves counts on both
    of its nodes once the new one is written.
    """
    with where.client() as client:
        found = client.get(SERVICE, "/v1/balance", BalanceAnswer)
        around = None if json.as_json else look(client)
    if around is None:
        print_value_as_json(found)
        return
    out = console()
    moving = counted(len(found.under_way), "tablet moves", "tablets move")
    out.print(styled(found.state), f"at epoch {found.epoch}; {moving}")
    for line in _lines(found, around):
        out.print(line, soft_wrap=True, markup=False)
    out.print(_nodes(found))
    if around.moves:
        out.print(_under_way(around))
    if len(around.moves) > MOST_MOVES:
        rest = len(around.moves) - MOST_MOVES
        out.print(f"{rest} more: `stele requests --unfinished`", soft_wrap=True)
    following = [move for move in found.planned if _moved(move) not in around.moved()]
    if following:
        planned = table_of("planned at the last look", "tablet", "from", "to", "kind", "because")
        for move in following:
            planned.add_row(*_moved(move), move.kind, move.why)
        out.print(planned)


@dataclass(frozen=True, slots=True)
class Around:
    """What the log says beside the balancer: moves, requests whose nodes give all away, and tables that
    get another number of tablets; and repairs and restores, those of whole tables first.
    """

    moves: list[Request]
    leaving: list[Request]
    resizes: list[Request]
    repairs: list[Request]
    names: Mapping[str, str]

    def moved(self) -> set[tuple[str, str, str]]:
        """Tablet, from and to of each move, as they are shown."""
        return {self.columns(request) for request in self.moves}

    def columns(self, request: Request) -> tuple[str, str, str]:
        table = self.names.get(request.table_id, request.table_id)
        return f"{table} {request.tablet}", request.from_node, request.goes_to()


def look(client: Client) -> Around:
    """Raises CliError."""
    reading = Reading(client)
    unfinished = reading.requests(unfinished="true")
    moves = [request for request in unfinished if request.moves_replica]
    leaving = [request for request in unfinished if request.removes_node]
    resizes = [request for request in unfinished if request.resizes]
    kept = (r for r in unfinished if r.repairs or r.restore_id)
    repairs = sorted(kept, key=lambda r: r.stays_in_place)
    names = reading.names([*moves, *leaving, *resizes, *repairs])
    return Around(moves, leaving, resizes, repairs, names)


def _lines(found: BalanceAnswer, around: Around) -> Iterator[str]:
    if found.restricted:
        yield f"{found.restricted}; nothing begins meanwhile"
    for switch in found.off:
        yield switch_text(switch.name, switch.balancing, expired=switch.expired)
    for request in around.resizes:
        yield f"{what(request, around.names)} ({request.request_id}) is {request.status}: {request.reason}"
    yield from found.recounting
    for request in around.repairs[:MOST_MOVES]:
        why = f": {request.reason}" if request.reason else ""
        yield f"{what(request, around.names)} ({request.request_id}) is {request.status}{why}"
    if len(around.repairs) > MOST_MOVES:
        yield f"{len(around.repairs) - MOST_MOVES} repairs and restores more: `stele requests --unfinished`"
    for request in around.leaving:
        left = counted(_held(found, request.node_id), "tablet is", "tablets are")
        asked = f"{what(request, around.names)} ({request.request_id})"
        yield f"{asked} is {request.status}: {left} left on {request.node_id}"
    for request_id, why in found.stuck.items():
        yield f"request {request_id} cannot go on: {why}"
    if found.down:
        yield f"not heard: {joined(found.down)}"
    if found.avoided:
        yield f"moves have failed to {joined(found.avoided)}: nothing goes there for a while"
    if found.full:
        yield f"no room left on {joined(found.full)}: nothing goes there"
    yield f"by {found.balanced_by}{' and rate' if found.rate_weight else ''}: {found.why}"


def _held(found: BalanceAnswer, node_id: str) -> int:
    return found.nodes[node_id].tablets if node_id in found.nodes else 0


def _nodes(found: BalanceAnswer) -> Table:
    numbers = ("tablets", "bytes", "capacity", "operations/s", "of its share")
    several = any(len(node.shards) > 1 for node in found.nodes.values())
    by_shard = ("on each shard",) if several else ()
    shown = table_of("", "node", *numbers, *by_shard, "reported", right=numbers)
    for node_id, node in sorted(found.nodes.items(), key=lambda pair: as_counted(pair[0])):
        *known, reported = _row(node)
        held = (" ".join(str(shard.tablets) for shard in node.shards),) if several else ()
        shown.add_row(node_id, *known, *held, reported)
    return shown


def _row(node: BalancedNode) -> tuple[str, ...]:
    return (
        str(node.tablets),
        "" if node.size_bytes is None else size(node.size_bytes),
        "" if node.capacity_bytes is None else size(node.capacity_bytes),
        "" if node.rate is None else f"{node.rate:,.0f}",
        "" if node.of_share is None else percent(node.of_share, 1),
        ago(node.report_age_s),
    )


def _under_way(around: Around) -> Table:
    shown = table_of("under way", "tablet", "from", "to", "by", "because")
    for request in around.moves[:MOST_MOVES]:
        shown.add_row(*around.columns(request), request.actor, request.reason)
    return shown


def _moved(move: PlannedTabletMove) -> tuple[str, str, str]:
    within = move.from_node == move.to_node
    to = place_text(move.to_node, move.to_shard, within=within)
    return f"{move.table} {move.tablet}", move.from_node, to
