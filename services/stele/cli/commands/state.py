"""``stele state export|check``: the whole metadata as a file, and what is unsound in one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from stele.cli.options import FROM_ONE, Json, Where
from stele.cli.output import console, counted, print_value_as_json, size

app = App(name="state", help="The whole state as a file: export, check.")


@app.command
def export(
    file: Path,
    /,
    *,
    epoch: Annotated[int | None, Parameter(name="--epoch", validator=FROM_ONE)] = None,
    format_: Annotated[Literal["json", "avro"] | None, Parameter(name="--format")] = None,
    where: Where = Where(),  # noqa: B008
) -> None:
    """Write all of the metadata at an epoch into a file. It holds no rows of any table.

    As JSON it can be edited: each fact and each row of a placement is a line. `stele state check` says what is
    unsound in it, `stele found --from` begins a new cluster with it, `stele unsafe load` puts it in place of
    this cluster's state.

    Args:
        file: The file to write; it must not be there yet.
        epoch: The state as it was then; default: the newest.
        format_: json, or avro as the archive has its snapshots; default: as the file's name ends, else json.
    """
    from stele.cli import dumps  # noqa: PLC0415 - what folds a state takes long to import

    dumps.check_free(file)
    with where.client() as client:
        raw = dumps.raw_of_cluster(client, epoch)
    dump = dumps.parse(raw, "what the metadata-log answers")
    assert dump.image is not None
    as_avro = (format_ or file.suffix.removeprefix(".")) == "avro"
    content = raw if as_avro else dumps.as_json(dump.image)
    written = dumps.write_bytes(file, content)
    console().print(
        f"{size(written)} in {file}: epoch {dump.head.epoch} of {dump.head.cluster}, hash {dump.head.hash}",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )


@app.command
def check(
    file: Path,
    /,
    *,
    json: Json = Json(),  # noqa: B008
) -> int:
    """Say all that is unsound in a dump, each with its place. Exit status 1 when something is.

    Args:
        file: As `stele state export` or `stele import read` writes it, edited or not; JSON or Avro.
    """
    from stele.cli import dumps  # noqa: PLC0415

    dump = dumps.read(file)
    if json.as_json:
        print_value_as_json({"flaws": dump.flaws})
        return 1 if dump.flaws else 0
    out = console()
    for flaw in dump.flaws:
        out.print(str(flaw), soft_wrap=True, markup=False, style="red")
    if dump.flaws or dump.image is None:
        out.print(f"{counted(len(dump.flaws), 'flaw', 'flaws')} in {file}", soft_wrap=True)
        return 1
    members = dump.image.membership.nodes
    out.print(
        f"sound: epoch {dump.head.epoch} of {dump.head.cluster},"
        f" {counted(len(members), 'node', 'nodes')},"
        f" {counted(len(dump.image.schema.by_id), 'keyspace', 'keyspaces')},"
        f" {counted(len(dump.image.schema.tables), 'table', 'tables')}",
        soft_wrap=True,
        markup=False,
    )
    return 0
