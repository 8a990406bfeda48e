"""``stele cdc generations|streams|new-generation|tail``."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from cyclopts import App, Parameter

from stele.cli.client import decode
from stele.cli.commands.data import ask_any_node
from stele.cli.commands.topology import ask_and_follow
from stele.cli.options import FROM_ONE, FollowedChange, Force, Format, Json, ReadPoint, Where
from stele.cli.output import clock, error_console, id_table, table
from stele.cli.reading import first_rows
from stele.domain.commands import NewCdcGeneration
from stele.domain.model.cdc import GenerationSummary
from stele.runtime.answers.metadata_log import CdcGenerationsPage, CdcStreamsPage
from stele.runtime.answers.node import ChangesView, ChangeView
from stele.words.units import visible

PAGE = 1000
POLL_S: Final = 1.0
"""Pause when no more changes can be read yet, in seconds."""
MICROS_PER_S: Final = 1_000_000

app = App(name="cdc", help="List CDC generations and streams, and follow the changes of a table.")


@app.command
def generations(
    read: ReadPoint = ReadPoint(), form: Format = Format(), where: Where = Where()
) -> None:
    """List CDC generations in the order of their creation, and the time from which each is used."""
    with where.client() as client:
        reading = read.of(client)
        pages = reading.pages("/v1/cdc/generations", CdcGenerationsPage)
        found = [generation for page in pages for generation in page.cdc_generations]
    if form.is_document:
        form.print_document(reading.document(cdc_generations=found))
        return
    columns = ("written at", "committed at", "holds from", "streams", "")
    title = f"CDC generations at epoch {reading.epoch}"
    shown = id_table(title, "generation", *columns, right=("streams",))
    for each in found:
        epochs = (f"epoch {at}" if at else "" for at in (each.epoch, each.committed_epoch))
        since = clock(each.since_ms)
        shown.add_row(each.generation_id, *epochs, since, str(each.streams), _state(each))
    form.print_table(shown)


@app.command
def streams(
    generation: str | None = None,
    /,
    *,
    token: Annotated[int | None, Parameter(name="--token", allow_leading_hyphen=True)] = None,
    limit: Annotated[int, Parameter(name="--limit")] = 64,
    read: ReadPoint = ReadPoint(),
    form: Format = Format(),
    where: Where = Where(),
) -> None:
    """List the streams of a CDC generation: one for each range of its ring.

    Args:
        generation: Id of the generation; default: the newest committed one.
        token: Only the stream of the range with this token.
        limit: Most streams that are shown; 0 shows all.
    """
    with where.client() as client:
        reading = read.of(client)
        pages = reading.pages(
            "/v1/cdc/streams",
            CdcStreamsPage,
            generation=generation,
            token=token,
            limit=min(limit or PAGE, PAGE),
        )
        first, found = first_rows(pages, limit, lambda page: page.streams)
    if form.is_document:
        form.print_document(reading.document(generation=first.generation, streams=found))
        return
    title = f"streams of generation {first.generation.generation_id} at epoch {reading.epoch}"
    form.note(title)
    shown = table("", "end (inclusive)", "stream", right=("end (inclusive)",))
    for row in found:
        shown.add_row(str(row.end), row.stream_id)
    form.print_table(shown)
    if token is None:
        form.note_more(first.generation.streams - len(found), "more stream")


@app.command(name="new-generation")
def new_generation(
    *,
    force: Force = False,
    change: FollowedChange = FollowedChange(),
    where: Where = Where(),
) -> int:
    """Create a CDC generation that fits the ring, if the present one does not.

    Args:
        force: Create one in any case.
    """
    return ask_and_follow(where, change, NewCdcGeneration(force=force))


@app.command
def tail(
    name: str,
    /,
    *,
    stream: Annotated[str, Parameter(name="--stream")] = "",
    after: Annotated[str, Parameter(name="--after")] = "",
    count: Annotated[int | None, Parameter(name="--count", validator=FROM_ONE)] = None,
    follow: Annotated[bool, Parameter(name="--follow", negative="--no-follow")] = True,
    json: Json = Json(),
    where: Where = Where(),
) -> None:
    """Print the changes of a table in the order of their times, from the oldest on.

    A change is shown when no older one can follow: some seconds after it was written.

    Args:
        name: KEYSPACE.TABLE.
        stream: Only the changes of this stream.
        after: Begin after this cursor, which an earlier call printed at its end.
        count: Exit after this number of changes, or some more of the same time.
        follow: Wait for new changes. With --no-follow, end at the newest one.
    """
    cursor, ended, shown = after, False, 0
    with where.client() as client:
        try:
            while not ended:
                limit = PAGE if count is None else min(PAGE, count - shown)
                answer = ask_any_node(
                    client,
                    "GET",
                    "/v1/cdc/changes",
                    table=name,
                    stream=stream,
                    after=cursor,
                    limit=limit,
                )
                page = decode(answer.content, ChangesView)
                for change in page.changes:
                    line = msgspec.json.encode(change).decode() if json.as_json else _line(change)
                    sys.stdout.write(visible(line) + "\n")
                sys.stdout.flush()
                cursor, shown = page.cursor, shown + len(page.changes)
                ended = page.ended or not (page.more or follow) or shown >= (count or shown + 1)
                if not (page.more or ended):
                    time.sleep(POLL_S)
        finally:
            if cursor:
                error_console().print(f"cursor {cursor}")


def _line(change: ChangeView) -> str:
    at = datetime.fromtimestamp(change.time_us / MICROS_PER_S, UTC)
    shown = f"{at:%Y-%m-%d %H:%M:%S.%f}  {change.operation:<6}  "
    if change.row is not None:
        shown += _json(change.row)
        return shown if change.row_before is None else f"{shown}  (was {_json(change.row_before)})"
    shown += _text(change.key)
    if change.value is not None:
        shown += f"  {_text(change.value)}"
    return shown if change.before is None else f"{shown}  (was {_text(change.before)})"


def _json(row: dict[str, Any]) -> str:
    return visible(msgspec.json.encode(row).decode())


def _text(content: bytes) -> str:
    return content.decode(errors="backslashreplace")


def _state(generation: GenerationSummary) -> str:
    if generation.published:
        return "published"
    return "committed" if generation.committed_epoch else "written"
