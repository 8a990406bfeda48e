"""``stele state export|check`` and ``stele unsafe revert|load``: the whole metadata as a file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import App, Parameter
from rich.text import Text

from stele.cli.client import Client
from stele.cli.errors import CliError, UsageError
from stele.cli.options import FROM_ONE, Change, Json, Where
from stele.cli.output import console, counted, print_line, print_value_as_json, size
from stele.domain.base import Rejection
from stele.domain.commands import Envelope, LoadState, RevertState

if TYPE_CHECKING:
    from stele.domain.image import Image

app = App(name="state", help="Export the whole state to a file, and check one.")


@app.command
def export(
    file: Path,
    /,
    *,
    epoch: Annotated[int | None, Parameter(name="--epoch", validator=FROM_ONE)] = None,
    format_: Annotated[Literal["json", "avro"] | None, Parameter(name="--format")] = None,
    where: Where = Where(),
) -> None:
    """Write the whole metadata at an epoch into a file. It holds no rows of tables.

    JSON can be edited: each fact and each row of a placement is a line. `stele state check` checks the file,
    `stele found --from` begins a new cluster with it, and `stele unsafe load` replaces this cluster's state.

    Args:
        file: The file to create.
        epoch: The state at this epoch; default: the newest.
        format_: json or avro; default: by the file's name, else json.
    """
    from stele.cli import dumps  # noqa: PLC0415 - what folds a state takes long to import

    dumps.check_free(file)
    with where.client() as client:
        raw = dumps.raw_of_cluster(client, epoch)
    dump = dumps.of_answer(raw)
    as_avro = (format_ or file.suffix.removeprefix(".")) == "avro"
    content = raw if as_avro else dumps.as_json(dump.state)
    written = dumps.write_bytes(file, content)
    print_line(
        f"{size(written)} in {file}: epoch {dump.head.epoch} of {dump.head.cluster}, hash {dump.head.hash}"
    )


@app.command
def check(
    file: Path,
    /,
    *,
    json: Json = Json(),
) -> int:
    """Report everything that is unsound in a dump. Exit status 1 when there is something.

    Args:
        file: A file of `stele state export` or `stele import read`, edited or not; JSON or Avro.
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
        print_line(f"{counted(len(dump.flaws), 'flaw', 'flaws')} in {file}", out)
        return 1
    members = dump.image.membership.nodes
    print_line(
        f"sound: epoch {dump.head.epoch} of {dump.head.cluster},"
        f" {counted(len(members), 'node', 'nodes')},"
        f" {counted(len(dump.image.schema.by_id), 'keyspace', 'keyspaces')},"
        f" {counted(len(dump.image.schema.tables), 'table', 'tables')}",
        out,
    )
    return 0


SHOWN_LOSSES = 20
SHOWN_RANGES = 20
CONFIRM = "--i-know-what-this-does"

AcceptLoss = Annotated[bool, Parameter(name="--accept-loss", negative="")]
DryRun = Annotated[bool, Parameter(name="--dry-run", negative="")]
Confirmed = Annotated[bool, Parameter(name=CONFIRM, negative="")]

unsafe = App(name="unsafe", help="Override the state of a frozen log.")


@unsafe.command
def revert(
    *,
    to: Annotated[int, Parameter(name="--to", validator=FROM_ONE)],
    accept_loss: AcceptLoss = False,
    dry_run: DryRun = False,
    confirmed: Confirmed = False,
    change: Change = Change(),
    where: Where = Where(),
) -> int:
    """Replace the state by that of an earlier epoch, as a new epoch. The history stays.

    The log must be frozen, or in single-user mode, by the same actor. The command shows the differences, and
    does nothing else without --i-know-what-this-does. Open requests end. Versions, fences and ids only
    increase. Nodes that left, and data that was dropped or truncated, do not come back.

    Args:
        to: The epoch with the wanted state; nothing may have been under way then.
        accept_loss: Continue even if acknowledged rows may be lost.
        dry_run: Show the differences and losses, and do nothing. The log need not be frozen.
        confirmed: Confirms that you have read the differences.
    """
    from stele.cli import dumps  # noqa: PLC0415 - what folds a state takes long to import

    command = RevertState(to_epoch=to, accept_loss=accept_loss)
    with where.client() as client:
        target = dumps.of_cluster(client, to)
        preview = msgspec.structs.replace(command, content=dumps.packed(target))
        return _override(client, command, preview, change, dry_run=dry_run, confirmed=confirmed)


@unsafe.command
def load(
    file: Path,
    /,
    *,
    accept_loss: AcceptLoss = False,
    dry_run: DryRun = False,
    confirmed: Confirmed = False,
    change: Change = Change(),
    where: Where = Where(),
) -> int:
    """Replace the state by that of a file, as a new epoch. The history stays.

    The rules of `stele unsafe revert` apply. The file is a dump of this cluster, edited or not. It may neither
    add nodes nor rename objects.

    Args:
        file: A file of `stele state export`.
        accept_loss: Continue even if acknowledged rows may be lost.
        dry_run: Show the differences and losses, and do nothing. The log need not be frozen.
        confirmed: Confirms that you have read the differences.
    """
    from stele.cli import dumps  # noqa: PLC0415

    dump = dumps.sound(file)
    command = msgspec.structs.replace(dump.load(), accept_loss=accept_loss)
    with where.client() as client:
        return _override(client, command, command, change, dry_run=dry_run, confirmed=confirmed)


def _override(
    client: Client,
    command: RevertState | LoadState,
    preview: RevertState | LoadState,
    change: Change,
    *,
    dry_run: bool,
    confirmed: bool,
) -> int:
    if not (change.reason or dry_run):
        raise UsageError("An override stays in the history.", 'Say --reason "why".')
    envelope, out = change.envelope(command), console()
    lost = _show(client, msgspec.structs.replace(envelope, command=preview), dry_run=dry_run)
    if dry_run:
        print_line("nothing was done", out)
        return 0
    if lost and not command.accept_loss:
        raise CliError(
            f"Nothing was done: acknowledged rows may be lost ({counted(lost, 'loss', 'losses')} above).",
            "Say --accept-loss if that is meant.",
        )
    if not confirmed:
        raise UsageError("Nothing was done.", f"Say {CONFIRM} if this is what you want.")
    print_line(f"request {envelope.request_id}", out)
    epoch = change.submit(client, envelope).epoch
    from stele.cli import dumps  # noqa: PLC0415

    override = dumps.of_cluster(client, epoch).overrides.last
    if override is None or override.epoch != epoch:
        raise CliError(f"Epoch {epoch} is not an override.", "Look at `stele epochs`.")
    print_line(
        f"epoch {epoch}: state {override.hash_before[:16]} was replaced by {override.hash_after[:16]};"
        " `stele log thaw` opens the log",
        out,
    )
    return 0


def _show(client: Client, envelope: Envelope, *, dry_run: bool) -> int:
    """Print the differences and return the number of losses. Raises CliError for a refusal."""
    from stele.cli import dumps  # noqa: PLC0415
    from stele.domain.decide import decide  # noqa: PLC0415
    from stele.domain.evolve import apply_facts  # noqa: PLC0415
    from stele.domain.overrides import losses  # noqa: PLC0415
    from stele.domain.view import diff  # noqa: PLC0415
    from stele.words.state_diff import diff_lines  # noqa: PLC0415

    before = dumps.of_cluster(client)
    command = msgspec.structs.replace(envelope.command, accept_loss=True)
    asked = msgspec.structs.replace(envelope, command=command, reason=envelope.reason or "dry run")
    on = _as_if_frozen(before, envelope.actor) if dry_run else before
    found = decide(on, asked, time.time_ns() // 1_000_000)
    if isinstance(found, Rejection):
        raise CliError(found.message, found.hint, found.code)
    after, out = apply_facts(before, found), console()
    differ = {**diff(before, after), "overrides": {}}
    ranges, names = 0, before.schema.names_by_id() | after.schema.names_by_id()
    for sign, line in diff_lines(differ):
        ranges += line.startswith("placement ")
        if line.startswith("placement ") and ranges > SHOWN_RANGES:
            continue
        for id_ in names.keys() & {*line.replace(":", " ").split()}:
            line = line.replace(id_, names[id_])  # noqa: PLW2901
        style = {"+": "green", "-": "red"}.get(sign, "yellow")
        print_line(Text(f"{sign} {line}", style=style), out)
    if ranges > SHOWN_RANGES:
        print_line(f"and {ranges - SHOWN_RANGES} more rows of placements", out)
    lost = losses(before, after)
    for each in lost[:SHOWN_LOSSES]:
        print_line(Text(f"LOST: {each}", style="bold red"), out)
    if len(lost) > SHOWN_LOSSES:
        print_line(f"and {len(lost) - SHOWN_LOSSES} more that may be lost", out)
    return len(lost)


def _as_if_frozen(image: Image, actor: str) -> Image:
    """Return the image as if frozen: a dry run works before the log is frozen, too."""
    from stele.domain.model.commits import Commits  # noqa: PLC0415
    from stele.domain.names import CommitMode  # noqa: PLC0415

    commits = image.commits
    if commits.mode is not CommitMode.OPEN:
        return image
    return msgspec.structs.replace(image, commits=Commits(mode=CommitMode.FROZEN, by=actor))
