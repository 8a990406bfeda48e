"""``stele tablet show``: all that is known of one tablet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from cyclopts import Parameter
from rich.text import Text

from stele.cli.commands.ring import replicas, shown_rows
from stele.cli.commands.table_snapshot import require_table_name
from stele.cli.errors import CliError
from stele.cli.options import FROM_ZERO, Read, Where
from stele.cli.output import clock, console, print_fields, print_value_as_json
from stele.cli.reading import Reading
from stele.domain.names import RequestStatus
from stele.domain.requests.facts import Request
from stele.domain.schema.facts import TABLET_MAP
from stele.domain.tablets.ranges import range_of
from stele.words.requests import what


def show(
    table: str,
    tablet: Annotated[int, Parameter(validator=FROM_ZERO)],
    *,
    read: Read = Read(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """One tablet: its range, who has it, what is done to it or waits, and when it was repaired last.

    Args:
        table: KEYSPACE.TABLE.
        tablet: Its number; `stele tablet list KEYSPACE.TABLE --key KEY` says in which one a key is.
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
    if read.as_json:
        print_value_as_json(
            {
                "epoch": reading.epoch,
                "state_id": reading.state_id,
                "table": table,
                "tables": shown.users,
                "tablet": tablet,
                "tablets": shown.ranges,
                "row": row,
                "repaired_ms": repaired_ms,
                "requests": requests,
            }
        )
        return
    title = f"tablet {tablet} of {shown.ranges} of {table} at epoch {reading.epoch}"
    console().print(Text(title, style="bold"), soft_wrap=True)
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
    """Raises CliError when the table is spread over the ring."""
    if not placement.startswith(TABLET_MAP):
        raise CliError(
            f"{table} has no tablets: its keyspace is spread over the ring.",
            f"stele ring {table.partition('.')[0]}",
        )


def _about(reading: Reading, tables: Iterable[str], tablet: int, count: int) -> Iterable[Request]:
    """Requests that are open and name this tablet, or all of its table's."""
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


def _states(reading: Reading) -> dict[str, str]:
    """By request, the state that its transition is in."""
    found = reading.topology().transitions
    return {id_: str(each.state) for each in found for id_ in each.request_ids()}
