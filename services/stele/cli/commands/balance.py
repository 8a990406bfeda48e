"""``stele balance status|plan|why|off|on|history``, and ``stele plan --file``."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from cyclopts import App, Parameter, validators
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from stele.cli.client import Client
from stele.cli.commands.table import require_table_name
from stele.cli.errors import CliError, Exit, UsageError
from stele.cli.options import FROM_ONE, FROM_ZERO, Change, Format, Json, Where, described
from stele.cli.output import (
    ago,
    clock,
    console,
    counted,
    duration,
    joined,
    percent,
    print_line,
    print_value_as_json,
    size,
    styled,
    switch_text,
)
from stele.cli.output import table as table_of
from stele.cli.reading import EPOCHS_IN_ANSWER, StateReading, as_counted, read_epochs
from stele.domain.commands import SwitchBalancingOff, SwitchBalancingOn
from stele.domain.json_documents import JsonDocumentError
from stele.domain.model.requests import Request, is_id, time_ms
from stele.domain.model.schema import Balancing, Off
from stele.domain.names import BALANCER
from stele.domain.planner.planned import OfflinePlan
from stele.domain.ring.ranges import place_text
from stele.runtime.answers.tablet_balancer import (
    BalanceAnswer,
    BalancedNode,
    BalancePlan,
    PlannedTabletMove,
    TabletWhy,
)
from stele.runtime.request_ids import new_request_id
from stele.words import GivenError
from stele.words.decisions import FACTS, BalancerDecision, DecisionHistory, Wanted
from stele.words.facts import EpochRow
from stele.words.given import SPAN_FORM, span_ms
from stele.words.names import what

SERVICE = "tablet-balancer"
MOST_MOVES = 20
"""Limit of the moves shown. Each node gives and receives two at a time."""
app = App(name="balance", help="Show and control the tablet balancer.")


@app.command
def plan(json: Json = Json(), where: Where = Where()) -> int:
    """List all moves that would make the cluster even, with reasons, and do nothing.

    The balancer plans again before each move, so the real moves may differ.
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
    /,
    *,
    json: Json = Json(),
    where: Where = Where(),
) -> None:
    """Explain the place of a tablet: the arguments for and against a move, by replica and node.

    Args:
        table: KEYSPACE.TABLE.
        tablet: Number of the tablet.
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
def status(json: Json = Json(), where: Where = Where()) -> None:
    """Show whether each node has its share of each table, and which tablets move and why.

    The balancer has finished when the first line says `balanced`. Shares count within racks: no rack gets more
    replicas of a tablet than its fullest one has, so nodes of a small rack may have more than others. A replica
    that moves counts on both nodes once the new one is written.
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
        print_line(line, out)
    out.print(_nodes(found))
    if around.moves:
        out.print(_under_way(around))
    if len(around.moves) > MOST_MOVES:
        rest = len(around.moves) - MOST_MOVES
        print_line(f"{rest} more: `stele requests --unfinished`", out)
    following = [move for move in found.planned if _moved(move) not in around.moved()]
    if following:
        planned = table_of("planned at the last look", "tablet", "from", "to", "kind", "because")
        for move in following:
            planned.add_row(*_moved(move), move.kind, move.why)
        out.print(planned)


@dataclass(frozen=True, slots=True)
class Around:
    """Unfinished requests in the log, beside the balancer's answer.

    They are moves, requests whose nodes give away all tablets, resizes, and repairs and restores,
    those of whole tables first.
    """

    moves: list[Request]
    leaving: list[Request]
    resizes: list[Request]
    repairs: list[Request]
    names: Mapping[str, str]

    def moved(self) -> set[tuple[str, str, str]]:
        """Return tablet, source and destination of each move, as shown."""
        return {self.columns(request) for request in self.moves}

    def columns(self, request: Request) -> tuple[str, str, str]:
        table = self.names.get(request.table_id, request.table_id)
        return f"{table} {request.tablet}", request.from_node, request.goes_to()


def look(client: Client) -> Around:
    """Read the unfinished requests. Raises CliError."""
    reading = StateReading(client)
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
        yield f"{found.restricted}; no move begins meanwhile"
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
        yield f"request {request_id} cannot continue: {why}"
    if found.down:
        yield f"not heard: {joined(found.down)}"
    if found.avoided:
        yield f"moves to or from {joined(found.avoided)} have failed: no tablet moves there for a while"
    if found.full:
        yield f"no space is left on {joined(found.full)}: no tablet moves there"
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


@described("balance-off")
@app.command
def off(
    name: str = "",
    /,
    *,
    lasting: Annotated[str, Parameter(name="--for")] = "",
    abort_after: Annotated[
        str,
        Parameter(
            name="--abort-after",
            help="Cancel what has begun and is not done after this time, where that is still possible.",
        ),
    ] = "",
    change: Change = Change(),
    where: Where = Where(),
) -> None:
    """Once the command returns, nothing that the balancer asked for begins any more. You may still move,
    split and merge tablets yourself.
    """
    request_id = _request_id(change)
    asked_ms = time_ms(request_id)  # so that it is the same command when it is sent again
    command = SwitchBalancingOff(
        name=name,
        until_ms=asked_ms + span_ms(lasting, "--for") if lasting else 0,
        abort_at_ms=asked_ms + span_ms(abort_after, "--abort-after") if abort_after else 0,
    )
    change = dataclasses.replace(change, request_id=request_id)
    with where.client() as client:
        epoch = change.send(client, command).epoch
        until = f", until {clock(command.until_ms)}" if command.until_ms else ""
        print_line(f"{_words(name)} off since epoch {epoch}{until}")
        going = _still_moving(client, name)
    if not going:
        return
    end = f"nothing cancels {'it' if len(going) == 1 else 'them'}"
    if command.abort_at_ms:
        patience_s = (command.abort_at_ms - asked_ms) / 1000
        end = f"those that are not done after {duration(patience_s)} are cancelled"
    one = "move or resize of the balancer continues"
    many = "moves and resizes of the balancer continue"
    print_line(f"{counted(len(going), one, many)}; {end}")


@described("balance-on")
@app.command
def on(
    name: str = "",
    /,
    *,
    change: Change = Change(),
    where: Where = Where(),
) -> None:
    with where.client() as client:
        epoch = change.send(client, SwitchBalancingOn(name)).epoch
        print_line(f"{_words(name)} on since epoch {epoch}")
        for line in _still_off(client, name):
            print_line(f"still: {line}")


def _request_id(change: Change) -> str:
    """Return the request id, given or new. Raises UsageError."""
    if change.request_id and not is_id(change.request_id):
        raise UsageError(f"'{change.request_id}' is not a request id.", "`stele id` makes one.")
    return change.request_id or new_request_id()


def _words(name: str) -> str:
    return Off(name, Balancing()).words().removesuffix(" off")


def _still_moving(client: Client, name: str) -> list[Request]:
    """Return the balancer's unfinished requests there."""
    reading = StateReading(client)
    own = [r for r in reading.requests(unfinished="true") if r.actor == BALANCER and r.table_id]
    names, of = reading.names(own), reading.map_owner(name) if own else name
    return [r for r in own if _is_in(names.get(r.table_id, ""), of)]


def _still_off(client: Client, name: str) -> list[str]:
    """Return what is still switched off, outside and inside the scope that was switched on."""
    reading = StateReading(client)
    keyspaces = {keyspace.keyspace_id: keyspace for keyspace in reading.keyspaces()}
    switches = {"": reading.balancing}
    switches |= {keyspace.name: keyspace.balancing for keyspace in keyspaces.values()}
    for table in reading.tables():
        switches[f"{keyspaces[table.keyspace_id].name}.{table.name}"] = table.balancing
    return [
        switch_text(other, balancing)
        for other, balancing in sorted(switches.items())
        if balancing.off_since and (_is_in(other, name) or _is_in(name, other))
    ]


def _is_in(name: str, scope: str) -> bool:
    return not scope or name == scope or name.startswith(f"{scope}.")


ANYBODY: Final = "anybody"
DEFAULT_LIMIT: Final = 20
MOST: Final = 10_000
"""Limit of the decisions shown at once; each takes a kilobyte."""
MOST_EPOCHS: Final = 100_000
"""Limit of one search, which takes up to half a minute. The output states where to continue."""
FIRST_PAGE: Final = 100
GONE: Final = frozenset({"epoch_not_found", "epoch_truncated", "epoch_deleted"})


@app.command
def history(
    table: str = "",
    tablet: Annotated[int | None, Parameter(validator=FROM_ZERO)] = None,
    /,
    *,
    by: str = BALANCER,
    since: str = "",
    epoch: Annotated[int | None, Parameter(name="--epoch", validator=FROM_ONE)] = None,
    limit: Annotated[int, Parameter(validator=validators.Number(gte=1, lte=MOST))] = DEFAULT_LIMIT,
    form: Format = Format(),
    where: Where = Where(),
) -> None:
    """List the requests of the balancer with reason and outcome, the newest last.

    The list has moves, splits, merges, repairs, cancels and refusals. With --by anybody, it also has
    requests of users about tablets. It is read from the log, which keeps requests longer than
    `stele requests` shows them. A tablet has the number that it had at the time of the request.

    Args:
        table: Only requests about KEYSPACE.TABLE.
        tablet: Only moves of this tablet.
        by: Only requests of this actor, such as a user name; `anybody` for all.
        since: An epoch, or a time span until now, such as 90s, 30m or 2h.
        epoch: End at this epoch instead of the newest.
        limit: The largest number of requests to show.
    """
    if table:
        require_table_name(table)
    first, since_ms = _since(since)
    with where.client() as client:
        reading = StateReading(client, epoch)
        wanted = Wanted("" if by == ANYBODY else by, reading.map_owner(table), tablet)
        past = DecisionHistory(wanted, reading.all_names())
        found, back_to = _look_back(client, past, reading.epoch, limit, first, since_ms)
    if form.is_document:
        form.print_document({"epoch": reading.epoch, "looked_back_to": back_to, "decisions": found})
        return
    _show(found, reading.epoch, back_to, wanted, form)
    if reading.epoch - back_to + 1 >= MOST_EPOCHS and len(found) < limit:
        form.note(f"{MOST_EPOCHS} epochs were searched: --epoch {max(1, back_to - 1)} continues.")


def _since(text: str) -> tuple[int, int]:
    """Parse --since.

    Return the first epoch and the first time (ms since 1970). Raises UsageError.
    """
    if not text:
        return 1, 0
    if text.isascii() and text.isdigit() and len(text) < 18:
        return max(1, int(text)), 0
    try:
        return 1, time.time_ns() // 1_000_000 - span_ms(text, "--since")
    except GivenError as error:
        raise UsageError(
            f"--since '{text}' is neither an epoch nor a span of time.",
            f"{SPAN_FORM} Or write an epoch: 1200.",
        ) from error


def _look_back(
    client: Client, past: DecisionHistory, newest: int, limit: int, first: int, since_ms: int
) -> tuple[list[BalancerDecision], int]:
    """Return decisions up to an epoch, the newest first, and the oldest epoch searched."""
    found = list[BalancerDecision]()
    before, size, least = newest + 1, FIRST_PAGE, max(first, newest + 1 - MOST_EPOCHS)
    while before > least:
        begin = max(least, before - size)
        try:
            rows = read_epochs(client, begin, before - begin, list[EpochRow], FACTS)
        except CliError as error:
            if error.code not in GONE:
                raise
            return found, before  # the log is kept no further back
        for row in reversed(rows):
            if row.at_ms < since_ms:
                return found, row.epoch + 1
            for decision in past.add(row):
                found.append(decision)
                if len(found) == limit:
                    return found, row.epoch
        before, size = begin, EPOCHS_IN_ANSWER
    return found, before


def _show(
    found: list[BalancerDecision], epoch: int, back_to: int, wanted: Wanted, form: Format
) -> None:
    who = [] if wanted.by == BALANCER else ["by"]
    columns = ("at", "epoch", "what", *who, "because", "outcome", "took")
    title = f"decisions from epoch {back_to} to {epoch}"
    shown = table_of(title, *columns, right=("epoch", "took"))
    for each in reversed(found):
        outcome = styled(each.outcome)
        if each.detail:
            outcome.append(f": {each.detail}", style="default")
        took = "" if each.took_s is None else duration(each.took_s)
        by = [each.by] if who else []
        shown.add_row(
            clock(each.at_ms), str(each.epoch), each.what, *by, each.reason, outcome, took
        )
    form.print_table(shown)
    if not found:
        form.note("nothing was asked for")


SHOWN: Final = 20
"""Limit of the moves in the readable table. JSON has all moves."""


def print_plan(plan: OfflinePlan) -> None:
    """Print the first moves, what cannot be moved, and the balance before and after."""
    out = console()
    for part in _parts(plan):
        out.print(part, soft_wrap=isinstance(part, Text))


def exit_of(plan: OfflinePlan) -> Exit:
    """Return FAILED when the plan does not come to rest or something cannot be moved."""
    return Exit.OK if plan.converged and not plan.unmovable else Exit.FAILED


def _parts(plan: OfflinePlan) -> Iterator[RenderableType]:
    kinds = Counter(move.kind for move in plan.moves)
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    yield Text(f"moves: {counts or 'none'}; nothing is done", style="bold")
    if plan.moves:
        yield _moves(plan)
    if len(plan.moves) > SHOWN:
        yield Text(f"and {len(plan.moves) - SHOWN} more: --json has them all", style="dim")
    for one in plan.unmovable:
        what = f"{one.keyspace}.{one.table} tablet {one.tablet} cannot leave {one.node}"
        yield Text(f"{what}: {one.reason}", style="red")
    yield _planned_nodes(plan)
    yield Text(
        f"to move between nodes: {size(plan.moved_bytes)}; this balance takes at least"
        f" {size(plan.lower_bound_bytes)}; within nodes:"
        f" {size(plan.moved_within_nodes_bytes)}"
    )
    if not plan.converged:
        yield Text("the plan does not converge: please report this file", style="red")


def _moves(plan: OfflinePlan) -> Table:
    shown = table_of("moves", "tablet", "from", "to", "kind", "because")
    for move in plan.moves[:SHOWN]:
        shown.add_row(
            f"{move.keyspace}.{move.table} {move.tablet}",
            f"{move.source[0]}/{move.source[1]}",
            f"{move.target[0]}/{move.target[1]}",
            move.kind,
            move.reason,
        )
    return shown


def _planned_nodes(plan: OfflinePlan) -> Table:
    by_rate = any(node.rate for node in plan.before.nodes)
    rates = ("operations/s", "will serve") if by_rate else ()
    numbers = ("replicas", "after", "of its share", "will be", *rates)
    shown = table_of("nodes", "node", *numbers, right=numbers)
    for pair in zip(plan.before.nodes, plan.after.nodes, strict=True):
        before, after = pair
        cells = [str(before.replicas), str(after.replicas), *(_share(n.of_share) for n in pair)]
        cells += [f"{node.rate:,.0f}" for node in pair] if by_rate else []
        shown.add_row(before.id, *cells)
    return shown


def _share(of_share: float | None) -> str:
    return "" if of_share is None else f"{of_share:.1%}"


def show_balance(file: Path, *, as_json: bool) -> int:
    """Print the plan. Return 1 when it does not come to rest or something cannot be moved.

    Raises UsageError for a file that cannot be read or makes no sense.
    """
    from stele.domain.planner.cluster import read_cluster  # noqa: PLC0415  (numpy takes a moment)
    from stele.domain.planner.offline import plan_offline  # noqa: PLC0415

    try:
        raw = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}.") from None
    try:
        plan = plan_offline(read_cluster(raw))
    except JsonDocumentError as error:
        raise UsageError(
            f"{file}: {error}.", "docs/guides/plan_tablets_offline.md says what it holds."
        ) from None
    if as_json:
        print_value_as_json(plan)
    else:
        print_plan(plan)
    return exit_of(plan)
