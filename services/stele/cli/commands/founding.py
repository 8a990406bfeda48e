"""``stele found``: the first epoch of an empty log; with --from also its initial state."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from stele.cli.client import Client
from stele.cli.errors import CliError, RefusedError, UsageError
from stele.cli.options import Change, Where
from stele.cli.output import console, counted, print_line
from stele.cli.reading import StateReading
from stele.domain.commands import FoundCluster
from stele.domain.names import CommitMode

FOUNDED = 1
"""The epoch of a founding."""


def found(
    *,
    from_: Annotated[Path | None, Parameter(name="--from")] = None,
    change: Change = Change(),
    where: Where = Where(),
) -> None:
    """Create the cluster in an empty log. If the log has a cluster already, nothing changes.

    It is refused where an older cluster of the same name existed, because its log may be lost.

    With --from the cluster begins with a dump: nodes, keyspaces, tables, placements and settings come from the
    file; cluster and log get new ids. A dump holds no rows. Each node of the dump needs a data folder. The
    folder of that host id keeps its data if it starts with STELE_ACCEPT_LOST_EPOCHS=<id of the old log>. An
    empty folder takes the node's place with STELE_CLAIM_HOST_ID=<host id>; restore or rebuild its data then.

    Args:
        from_: A file of `stele state export` or `stele import read`.
    """
    if from_ is not None:
        _found_from(from_, change, where)
        return
    with where.client() as client:
        outcome = change.send(client, FoundCluster())
    print_line(f"log {outcome.log_id} holds the cluster; epoch {outcome.epoch}")


def _found_from(file: Path, change: Change, where: Where) -> None:
    """Found the log frozen, so that no command precedes the state, then load the dump.

    After an interruption in between, the same command continues.
    """
    from stele.cli import dumps  # noqa: PLC0415 - what folds a state takes long to import

    if change.request_id:
        raise UsageError(
            "`stele found --from` sends two commands, so it takes no --request-id.",
            "Run it again: it continues where it stopped.",
        )
    dump, out = dumps.sound(file), console()
    with where.client() as client:
        if not _waits(client):
            # A call after an interruption skips this: the log is founded, only the dump is missing.
            change.send(client, FoundCluster(begin_frozen=True))
            if not _waits(client):
                raise CliError(
                    "The log is not empty: the cluster is there already, and waits for no dump.",
                    "A metadata-log with STELE_FOUND=auto founds an empty log: set it to no, or start a local"
                    " stack with --no-found. A cluster's state is replaced by `stele unsafe load`.",
                )
        outcome = change.send(client, msgspec.structs.replace(dump.load(), founds=True))
    members = dump.state.membership.nodes
    print_line(
        f"log {outcome.log_id} begins with epoch {dump.head.epoch} of {dump.head.cluster}, as its epoch"
        f" {outcome.epoch}",
        out,
    )
    print_line(
        f"{counted(len(members), 'node has', 'nodes have')} yet to come: with the folder that has its host id"
        f" and STELE_ACCEPT_LOST_EPOCHS={dump.head.log_id}, or empty with STELE_CLAIM_HOST_ID",
        out,
    )


def _waits(client: Client) -> bool:
    """Return True if the log was founded for a dump that is not loaded yet."""
    try:
        found = StateReading(client).topology()
    except RefusedError:
        return False
    frozen = found.commits.mode is CommitMode.FROZEN and found.commits.since_epoch == FOUNDED
    return bool(found.cluster) and frozen
