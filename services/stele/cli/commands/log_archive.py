"""``stele log snapshot|truncate|readers``: what is kept of the log, and what is deleted from it."""

from __future__ import annotations

import time
from typing import Annotated

from cyclopts import App, Parameter

from stele.cli.client import Client
from stele.cli.commands.topology import submit_and_tell
from stele.cli.errors import CliError
from stele.cli.options import Change, Json, Read, Where
from stele.cli.output import clock, console, joined, print_value_as_json, table
from stele.cli.reading import Reading
from stele.domain.commands import AskSnapshot, ForgetReader, TruncateLog

POLL_S = 0.3

readers = App(
    name="readers", help="Readers of the log whose place holds up truncation: list, forget."
)


def snapshot(
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Have every catch-up replica take a snapshot of the metadata now, and wait until a majority has it.

    It is of the metadata; `stele table snapshot` is of a table's rows. Exit status 1 when no majority has it
    within --timeout.
    """
    envelope = change.envelope(AskSnapshot())
    with where.client() as client:
        console().print(f"request {envelope.request_id}", soft_wrap=True)
        epoch = change.submit(client, envelope).epoch
        console().print(f"asked for of epoch {epoch}", soft_wrap=True)
        return 0 if not change.wait or _has_majority(client, epoch, where.timeout_s) else 1


def _has_majority(client: Client, epoch: int, limit_s: float) -> bool:
    """Wait for it, and say who has it; or what is lacking."""
    end_s = time.monotonic() + limit_s
    while True:
        found = Reading(client).catch_up()
        agreed = next((each for each in found.agreed if each.epoch >= epoch), None)
        if agreed is not None:
            console().print(
                f"{joined(agreed.members)} have that of epoch {agreed.epoch}", soft_wrap=True
            )
            return True
        if time.monotonic() > end_s:
            console().print(
                f"no majority of the members has it after {limit_s:g} s: `stele catch-up show`",
                soft_wrap=True,
            )
            return False
        time.sleep(POLL_S)


def truncate(
    *,
    dry_run: Annotated[bool, Parameter(name="--dry-run", negative="")] = False,
    json: Json = Json(),  # noqa: B008
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Delete old records from the log: those before a snapshot that a majority of the catch-up members has.

    It goes back behind the newest two of these snapshots, or as many as the setting truncate_behind says, and
    waits for readers that are still before it. Deleted epochs are still read from catch-up replicas.

    Args:
        dry_run: Say up to where the log can be truncated and why not further, and delete nothing.
    """
    with where.client() as client:
        found = Reading(client, level="linearizable").catch_up()
        can = found.truncation
        if json.as_json:
            print_value_as_json(found)
        if dry_run:
            if not json.as_json:
                _tell(found.archive.truncated.epoch if found.archive.truncated else 1, can.epoch)
                console().print(f"why not further: {can.why_not_more}", soft_wrap=True)
                _tell_lost(can.lost_readers)
            return
    if not can.epoch:
        raise CliError("Nothing of the log can be deleted now.", f"{can.why_not_more}.")
    _tell_lost(can.lost_readers)
    text = f"the log begins at epoch {can.epoch}, offset {can.offset},"
    submit_and_tell(where, change, TruncateLog(can.epoch, can.offset), text)


def _tell(begins: int, epoch: int) -> None:
    if not epoch:
        console().print(f"nothing can be deleted: the log begins at epoch {begins}", soft_wrap=True)
        return
    console().print(f"epochs {begins} to {epoch - 1} can be deleted", soft_wrap=True)


def _tell_lost(lost: tuple[str, ...]) -> None:
    if lost:
        console().print(
            f"readers that are lost, and not waited for: {joined(lost)}", soft_wrap=True
        )


@readers.default
def list_readers(read: Read = Read(), where: Where = Where()) -> None:  # noqa: B008
    """Each reader that has said how far it is, and since when."""
    with where.client() as client:
        found = read.of(client).catch_up()
    if read.as_json:
        at = {"epoch": found.epoch, "state_id": found.state_id}
        print_value_as_json({**at, "readers": found.readers})
        return
    shown = table(f"readers at epoch {found.epoch}", "reader", "epoch", "since", right=("epoch",))
    for each in found.readers:
        shown.add_row(each.reader_id, str(each.epoch), clock(each.moved_ms))
    console().print(shown)


@readers.command
def forget(
    reader_id: str,
    /,
    *,
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Wait no longer for a reader that never comes back. One that reads announces itself again.

    Args:
        reader_id: As `stele log readers` lists it.
    """
    submit_and_tell(where, change, ForgetReader(reader_id), f"{reader_id} is forgotten")
