"""``stele epochs``, ``stele epoch show N``, ``stele diff N M``: the history."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.text import Text

from stele.cli.client import Client, decode
from stele.cli.errors import UsageError
from stele.cli.facts import EpochRow, fact_lines, summary
from stele.cli.models import StateView
from stele.cli.options import Json, Where
from stele.cli.output import clock, console, print_json, table
from stele.cli.state_diff import diff_lines

app = App(name="epoch", help="One epoch of the log.")

DEFAULT_LAST = 20


def epochs(
    *,
    first: Annotated[int | None, Parameter(name="--from")] = None,
    last: Annotated[int, Parameter(name="--last")] = DEFAULT_LAST,
    epoch: Annotated[int | None, Parameter(name="--epoch")] = None,
    json: Json = Json(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """The log: what changed at which epoch, who asked and why.

    Args:
        first: The first epoch that is shown.
        last: How many are shown; from the end, unless --from says where to begin.
        epoch: End at this epoch instead of the newest.
    """
    with where.client() as client:
        end = newest_epoch(client) if epoch is None else epoch
        begin = max(1, end - last + 1) if first is None else first
        limit = min(last, end - begin + 1)
        if limit < 1:
            raise UsageError(f"There is no epoch {begin}; the newest is {end}.")
        params = {"from": begin, "limit": limit}
        raw = client.get_raw("metadata-log", "/v1/epochs", **params)
        if json.as_json:
            print_json(raw)
            return
        rows = decode(raw, list[EpochRow])
    found = table("", "epoch", "at", "command", "by", "what became true", right=("epoch",))
    for row in rows:
        by = f"{row.actor}: {row.reason}" if row.reason else row.actor
        found.add_row(str(row.epoch), clock(row.at_ms), row.command, by, summary(row))
    console().print(found)


@app.command
def show(
    epoch: int,
    json: Json = Json(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """One epoch with all of its facts."""
    with where.client() as client:
        raw = client.get_raw("metadata-log", f"/v1/epochs/{epoch}")
    if json.as_json:
        print_json(raw)
        return
    row = decode(raw, EpochRow)
    out = console()
    out.print(Text.assemble((f"epoch {row.epoch}", "bold"), f"  {row.command}"), soft_wrap=True)
    for name, value in (
        ("state id", row.state_id),
        ("follows", row.prev_state_id),
        ("request", row.request_id),
        ("by", row.actor),
        ("reason", row.reason),
        ("from", row.origin),
        ("at", clock(row.at_ms)),
    ):
        if value:
            out.print(Text(f"  {name:<9} {value}"), soft_wrap=True)
    for line in fact_lines(row):
        out.print(Text(f"  - {line}"), soft_wrap=True)


def diff(
    first: int,
    second: int,
    json: Json = Json(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """What differs between the states at two epochs."""
    with where.client() as client:
        params = {"from": first, "to": second}
        raw = client.get_raw("metadata-log", "/v1/diff", **params)
    if json.as_json:
        print_json(raw)
        return
    lines = diff_lines(decode(raw, dict[str, Any]))
    out = console()
    for sign, line in lines:
        out.print(
            Text(f"{sign} {line}", style={"+": "green", "-": "red"}.get(sign, "yellow")),
            soft_wrap=True,
        )
    if not lines:
        out.print(f"Epochs {first} and {second} have the same state.", soft_wrap=True)


def newest_epoch(client: Client) -> int:
    """The newest committed epoch."""
    return client.get("metadata-log", "/v1/state", StateView, level="barrier").epoch
