"""``stele tablet list|show|sizes|repairs|move|add-replica|delete-replica``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

from cyclopts import App, Parameter
from rich.text import Text

from stele.cli.commands.ring import key_text, replicas, shown_rows
from stele.cli.commands.table import require_table_name, restore_tablet
from stele.cli.commands.topology import submit_and_follow
from stele.cli.errors import CliError, UsageError
from stele.cli.options import (
    FROM_ZERO,
    FollowedChange,
    Force,
    Format,
    Json,
    ReadPoint,
    Where,
    described,
)
from stele.cli.output import clock, print_fields, print_line, print_value_as_json, size
from stele.cli.output import table as table_of
from stele.cli.reading import StateReading
from stele.domain.model.operations import MoveTablets, TabletMove
from stele.domain.model.requests import Request
from stele.domain.model.schema_objects import Column, ColumnKind
from stele.domain.names import TABLET_MAP, RequestStatus
from stele.domain.planner.planned import TableSizes
from stele.domain.ring.ranges import ANY
from stele.domain.tablets.maps import range_of, tablet_of
from stele.runtime.answers.tablet_balancer import SizesAnswer
from stele.words.names import what

SERVICE = "tablet-balancer"
app = App(name="tablet", help="Tablets: the parts of a table, each with replicas of its own.")
app.command(restore_tablet, name="restore")


@app.command(name="list")
def list_tablets(
    table: str,
    /,
    *,
    key: Annotated[str | None, Parameter(name="--key")] = None,
    limit: Annotated[int, Parameter(name="--limit", validator=FROM_ZERO)] = 64,
    read: ReadPoint = ReadPoint(),
    form: Format = Format(),
    where: Where = Where(),
) -> None:
    """List the tablets of a table: range and replicas.

    Marks: `+` for replicas that are written and not yet read, `-` for those that are read and leave.

    Args:
        table: KEYSPACE.TABLE.
        key: Only the tablet of this key; of a table with columns, of this partition key, which is one text.
        limit: Most tablets that are shown; 0 shows all.
    """
    require_table_name(table)
    with where.client() as client:
        reading = read.of(client)
        rows, tablets, placement, tables = shown_rows(reading, limit, key, keyspace=table)
        require_tablets(table, placement)
        if key is not None:
            require_one_text(table, reading.columns(table))
    first = 0 if key is None else tablet_of(tablets, rows[0].end)
    if form.is_document:
        form.print_document(reading.document(table=table, tables=tables, first=first, tablets=rows))
        return
    numbers = ("tablet", "start (exclusive)", "end (inclusive)", "version")
    if key is not None:
        form.note(f"{key_text(key)} is in tablet {first}")
    shown = table_of(
        f"{tablets} tablets of {table} at epoch {reading.epoch}",
        *numbers,
        "replicas",
        right=numbers,
    )
    for number, row in enumerate(rows, first):
        shown.add_row(str(number), str(row.start), str(row.end), str(row.version), replicas(row))
    form.print_table(shown)
    others = ", ".join(name for name in tables if name != table)
    if others:
        form.note(f"they are those of {others} too")
    if key is None:
        form.note_more(tablets - len(rows), "more tablet")


def require_one_text(table: str, columns: Iterable[Column]) -> None:
    """Raise CliError if the table has a partition key whose bytes are not those of one text."""
    keys = [column for column in columns if column.kind is ColumnKind.PARTITION_KEY]
    if keys and [column.type for column in keys] not in (["text"], ["ascii"]):
        shown = ", ".join(f"{column.name} {column.type}" for column in keys)
        raise CliError(
            f"The partition key of {table} is ({shown}), and --key takes one text.",
            f"`stele tablet list {table}` lists the tablets by tokens.",
        )


@app.command
def sizes(
    table: str,
    /,
    *,
    limit: Annotated[int, Parameter(name="--limit", validator=FROM_ZERO)] = 16,
    hottest: Annotated[bool, Parameter(name="--hottest", negative="")] = False,
    form: Format = Format(),
    where: Where = Where(),
) -> None:
    """List the largest tablets of a table with reads and writes per second of one replica.

    It also explains the number of tablets. The figures are those that the nodes reported.

    Args:
        table: KEYSPACE.TABLE.
        limit: Most tablets that are shown.
        hottest: Sort by reads and writes instead of size.
    """
    require_table_name(table)
    with where.client() as client:
        order = "rate" if hottest else "size"
        found = client.get(
            SERVICE, "/v1/balance/sizes", SizesAnswer, table=table, limit=limit, order=order
        )
    if form.is_document:
        form.print_document(found)
        return
    known = found.sizes
    numbers = ("tablet", "bytes", "reads/s", "writes/s")
    title = f"{known.tablets} tablets of {table} at epoch {found.epoch}"
    shown = table_of(title, *numbers, "replicas", right=numbers)
    for each in known.largest:
        rates = ("?" if n is None else f"{n:,}" for n in (each.reads_per_s, each.writes_per_s))
        shown.add_row(str(each.tablet), size(each.size_bytes), *rates, " ".join(each.replicas))
    form.print_table(shown)
    for line in _in_all(known):
        form.note(line)


def _in_all(known: TableSizes) -> Iterator[str]:
    yield (
        f"of {known.known} the size is known: {size(known.size_bytes)} in all;"
        f" the target is {size(known.target_bytes)} each"
    )
    target = f"; {known.target_rate:,} each at most" if known.target_rate else ""
    yield f"of {known.counted} the rate is known: {known.rate:,} operations a second in all{target}"
    if known.why:
        will = (
            "has" if known.wanted in (0, known.tablets) else f"is to have {known.wanted} instead of"
        )
        yield f"it {will} {known.tablets} tablets: {known.why}"


@app.command
def repairs(
    table: str,
    /,
    *,
    limit: Annotated[int, Parameter(name="--limit", validator=FROM_ZERO)] = 16,
    read: ReadPoint = ReadPoint(),
    form: Format = Format(),
    where: Where = Where(),
) -> None:
    """List the time of the last repair of each tablet, the oldest first.

    Args:
        table: KEYSPACE.TABLE.
        limit: Most tablets that are shown; 0 shows all.
    """
    require_table_name(table)
    with where.client() as client:
        reading = read.of(client)
        times = reading.repairs(table)
    oldest = sorted(range(len(times)), key=lambda tablet: (times[tablet], tablet))
    first = oldest[: limit or len(times)]
    if form.is_document:
        form.print_document(
            reading.document(
                table=table,
                tablets=len(times),
                repairs=[{"tablet": each, "repaired_ms": times[each]} for each in first],
            )
        )
        return
    shown = table_of("", "tablet", "repaired", right=("tablet",))
    for tablet in first:
        shown.add_row(str(tablet), clock(times[tablet]) or "never")
    title = f"{len(times)} tablets of {table} at epoch {reading.epoch}"
    form.note(title)
    form.print_table(shown)
    form.note_more(len(times) - len(first), "more tablet")


@app.command
@described("move-tablet")
def move(
    table: str,
    tablet: int,
    /,
    *,
    from_node: Annotated[str, Parameter(name="--from")],
    to_node: Annotated[str, Parameter(name="--to")],
    force: Force = False,
    change: FollowedChange = FollowedChange(),
    where: Where = Where(),
) -> int:
    """It may also move to another shard of its node: give NODE:SHARD. The command follows the request
    until it is done.
    """
    node, shard = _place(to_node)
    source, on = _place(from_node)
    asked = TabletMove(
        table=table, tablet=tablet, from_node=source, to_node=node, to_shard=shard, force=force
    )
    return _ask_for(asked, change, where, on)


@app.command
def add_replica(
    table: str,
    tablet: int,
    /,
    *,
    to_node: Annotated[str, Parameter(name="--to")],
    beyond: Annotated[bool, Parameter(negative="")] = False,
    force: Force = False,
    change: FollowedChange = FollowedChange(),
    where: Where = Where(),
) -> int:
    """Add a replica to a tablet while the replication of its keyspace rises.

    The balancer does this by itself after `stele keyspace alter`. The command follows the request to its end.

    Args:
        table: KEYSPACE.TABLE.
        tablet: Number of the tablet.
        to_node: The receiving node, or NODE:SHARD; default: the shard with the fewest tablets.
        beyond: Allow more replicas than the keyspace has. The balancer deletes one again, unless it is off.
        force: Give up data that only dead nodes have.
    """
    node, shard = _place(to_node)
    asked = TabletMove(
        table=table,
        tablet=tablet,
        from_node="",
        to_node=node,
        to_shard=shard,
        force=force,
        beyond=beyond,
    )
    return _ask_for(asked, change, where)


@app.command
def delete_replica(
    table: str,
    tablet: int,
    /,
    *,
    from_node: Annotated[str, Parameter(name="--from")],
    force: Force = False,
    change: FollowedChange = FollowedChange(),
    where: Where = Where(),
) -> int:
    """Delete a replica of a tablet that has more replicas than its keyspace asks for.

    The balancer does this by itself after `stele keyspace alter`. The command follows the request to its end.

    Args:
        table: KEYSPACE.TABLE.
        tablet: Number of the tablet.
        from_node: The node with the replica, or NODE:SHARD.
        force: Give up data that only dead nodes have.
    """
    source, on = _place(from_node)
    asked = TabletMove(table=table, tablet=tablet, from_node=source, to_node="", force=force)
    return _ask_for(asked, change, where, on)


def _place(text: str) -> tuple[str, int]:
    """Parse NODE or NODE:SHARD. Raises UsageError."""
    node, colon, shard = text.partition(":")
    if not colon:
        return node, ANY
    if node and shard.isdecimal():
        return node, int(shard)
    raise UsageError(f"'{text}' is not a place of a replica.", "Write NODE, or NODE:SHARD.")


def _ask_for(move: TabletMove, change: FollowedChange, where: Where, on: int = ANY) -> int:
    """Submit a move. ``on`` is the shard that must hold the replica now."""
    require_table_name(move.table)
    with where.client() as client:
        if on != ANY:
            _check_place(StateReading(client), move, on)
        return submit_and_follow(client, change, MoveTablets((move,)))


def _check_place(reading: StateReading, move: TabletMove, on: int) -> None:
    """Raise UsageError if the replica is on another shard.

    A node without a replica is refused by the log.
    """
    count = shown_rows(reading, 1, keyspace=move.table).ranges
    if move.tablet >= count:
        return
    token = str(range_of(count, move.tablet).end)
    (row,) = shown_rows(reading, 1, keyspace=move.table, token=token).rows
    if move.from_node in row.reads and row.shard_of(move.from_node) != on:
        raise CliError(
            f"Tablet {move.tablet} of {move.table} is on shard {row.shard_of(move.from_node)} of"
            f" {move.from_node}, not on {on}.",
            f"--from {move.from_node}",
        )


@app.command
def show(
    table: str,
    tablet: Annotated[int, Parameter(validator=FROM_ZERO)],
    /,
    *,
    read: ReadPoint = ReadPoint(),
    json: Json = Json(),
    where: Where = Where(),
) -> None:
    """Show one tablet: range, replicas, open requests and the last repair.

    Args:
        table: KEYSPACE.TABLE.
        tablet: Number of the tablet; `stele tablet list KEYSPACE.TABLE --key KEY` finds that of a key.
    """
    require_table_name(table)
    with where.client() as client:
        reading = read.of(client)
        shown = shown_rows(reading, 1, keyspace=table)
        require_tablets(table, shown.placement)
        if tablet >= shown.ranges:
            raise CliError(
                f"{table} has {shown.ranges} tablets at epoch {reading.epoch}, the last is"
                f" {shown.ranges - 1}: there is no tablet {tablet}.",
                f"stele tablet list {table}",
            )
        token = str(range_of(shown.ranges, tablet).end)
        (row,) = shown_rows(reading, 1, keyspace=table, token=token).rows
        requests = [*_about(reading, shown.users, tablet, shown.ranges)]
        names = reading.names(requests)
        states = _states(reading) if requests else {}
        (repaired_ms,) = reading.repairs(table, tablet)
    if json.as_json:
        print_value_as_json(
            reading.document(
                table=table,
                tables=shown.users,
                tablet=tablet,
                tablets=shown.ranges,
                row=row,
                repaired_ms=repaired_ms,
                requests=requests,
            )
        )
        return
    title = f"tablet {tablet} of {shown.ranges} of {table} at epoch {reading.epoch}"
    print_line(Text(title, style="bold"))
    fields: list[tuple[str, str | Text]] = [
        ("range", f"({row.start}, {row.end}]"),
        ("replicas", replicas(row)),
        ("version", str(row.version)),
        ("repaired", clock(repaired_ms) or "never"),
        ("shared by", ", ".join(name for name in shown.users if name != table)),
    ]
    for request in requests:
        state = states.get(request.request_id, str(request.status))
        who = f", by {request.actor}" if request.actor else ""
        why = f": {request.reason}" if request.reason else ""
        text = f"{state}: {what(request, names)}{who}{why} (request {request.request_id})"
        fields.append(("under way", text))
    print_fields(fields)


def require_tablets(table: str, placement: str) -> None:
    """Raise CliError if the table is spread over the ring."""
    if not placement.startswith(TABLET_MAP):
        raise CliError(
            f"{table} has no tablets: its keyspace is spread over the ring.",
            f"stele ring {table.partition('.')[0]}",
        )


def _about(
    reading: StateReading, tables: Iterable[str], tablet: int, count: int
) -> Iterable[Request]:
    """Return open requests for this tablet, or for all tablets of its table."""
    open_ = [
        request
        for status in (RequestStatus.RUNNING, RequestStatus.PENDING)
        for request in reading.requests(status=status)
        if request.table_id
    ]
    names = reading.names(open_)
    for request in open_:
        one = request.moves_replica or request.stays_in_place
        this = (request.tablet, request.tablet_count) == (tablet, count)
        if names[request.table_id] in tables and (this or not one):
            yield request


def _states(reading: StateReading) -> dict[str, str]:
    """Return the state of the transition, by request."""
    found = reading.topology().transitions
    return {id_: str(each.state) for each in found for id_ in each.request_ids()}
