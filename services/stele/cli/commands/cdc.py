"""``stele cdc generations|streams|new-generation``."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

from cyclopts import App, Parameter

from stele.cli.commands.topology import submit_and_follow
from stele.cli.options import Change, Force, Format, Read, Where
from stele.cli.output import clock, id_table, table
from stele.domain.cdc.model import GenerationSummary
from stele.domain.commands import NewCdcGeneration
from stele.runtime.answers.metadata_log import CdcGenerationsPage, CdcStreamsPage

PAGE = 1000

app = App(name="cdc", help="List CDC generations and streams.")


@app.command
def generations(read: Read = Read(), form: Format = Format(), where: Where = Where()) -> None:
    """List CDC generations in the order of their creation, and the time from which each is used."""
    with where.client() as client:
        reading = read.of(client)
        pages = reading.pages("/v1/cdc/generations", CdcGenerationsPage)
        found = [generation for page in pages for generation in page.cdc_generations]
    if form.is_document:
        form.print_document(
            {"epoch": reading.epoch, "state_id": reading.state_id, "cdc_generations": found}
        )
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
    read: Read = Read(),
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
        first = next(pages)
        rest = (row for page in pages for row in page.streams)
        missing = max(0, limit - len(first.streams)) if limit else None
        found = [*first.streams, *islice(rest, missing)]
    if form.is_document:
        form.print_document(
            {
                "epoch": reading.epoch,
                "state_id": reading.state_id,
                "generation": first.generation,
                "streams": found,
            }
        )
        return
    title = f"streams of generation {first.generation.generation_id} at epoch {reading.epoch}"
    form.note(title)
    shown = table("", "end (inclusive)", "stream", right=("end (inclusive)",))
    for row in found:
        shown.add_row(str(row.end), row.stream_id)
    form.print_table(shown)
    if token is None and len(found) < first.generation.streams:
        more = first.generation.streams - len(found)
        form.note(f"{more} more streams: --limit 0 shows all.")


@app.command(name="new-generation")
def new_generation(
    *,
    force: Force = False,
    change: Change = Change(),
    where: Where = Where(),
) -> int:
    """Create a CDC generation that fits the ring, if the present one does not.

    Args:
        force: Create one in any case.
    """
    with where.client() as client:
        return submit_and_follow(client, change, NewCdcGeneration(force=force))


def _state(generation: GenerationSummary) -> str:
    if generation.published:
        return "published"
    return "committed" if generation.committed_epoch else "written"
