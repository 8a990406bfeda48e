"""``stele found``: the first epoch of an empty log, and with --from the state that it begins with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from stele.cli.client import Client
from stele.cli.errors import CliError, RefusedError, UsageError
from stele.cli.options import Change, Where
from stele.cli.output import console, counted
from stele.cli.reading import Reading
from stele.domain.commands import FoundCluster, LoadState
from stele.domain.names import CommitMode

if TYPE_CHECKING:
    from stele.cli.dumps import Dump

FOUNDED = 1
"""The epoch of a founding."""


def found(
    *,
    from_: Annotated[Path | None, Parameter(name="--from")] = None,
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Make the cluster in an empty log; when it is there already, say so and change nothing.

    It is refused where something tells of an older cluster of the same name, whose log may be lost.

    With --from the cluster begins with a dump: nodes, keyspaces, tables, placements and settings are those of
    the file, cluster and log have new ids. A dump is metadata and holds no rows. Each node's place waits for
    the data folder with the host id that the dump has: started with STELE_ACCEPT_LOST_EPOCHS=<the old log's id>
    it keeps its data. An empty folder takes a place only with STELE_CLAIM_HOST_ID=<that host id>, and then has
    nothing of what was written: restore or rebuild it.

    Args:
        from_: A file of `stele state export` or `stele import read`.
    """
    if from_ is not None:
        _found_from(from_, change, where)
        return
    envelope = change.envelope(FoundCluster())
    with where.client() as client:
        console().print(f"request {envelope.request_id}", soft_wrap=True)
        outcome = change.submit(client, envelope)
    console().print(
        f"log {outcome.log_id} holds the cluster; epoch {outcome.epoch}", soft_wrap=True
    )


def _found_from(file: Path, change: Change, where: Where) -> None:
    """The log is founded frozen, so that nobody comes before the state. Who is interrupted in between calls it
    again.
    """
    from stele.cli import dumps  # noqa: PLC0415 - what folds a state takes long to import

    if change.request_id:
        raise UsageError(
            "`stele found --from` sends two commands, so it takes no --request-id.",
            "Call it again: it goes on where it was.",
        )
    dump, out = dumps.sound(file), console()
    with where.client() as client:
        if not _waits(client):
            envelope = change.envelope(FoundCluster(begin_frozen=True))
            out.print(f"request {envelope.request_id}", soft_wrap=True)
            change.submit(client, envelope)
            if not _waits(client):
                raise CliError(
                    "The log is not empty: the cluster is there already, and waits for no dump.",
                    "A metadata-log with STELE_FOUND=auto founds what is empty: set it to no, or bring a local"
                    " stack up with --no-found. A cluster's state is replaced by `stele unsafe load`.",
                )
        envelope = change.envelope(_load(dump))
        out.print(f"request {envelope.request_id}", soft_wrap=True)
        outcome = change.submit(client, envelope)
    assert dump.image is not None
    members = sorted(dump.image.membership.nodes)
    out.print(
        f"log {outcome.log_id} begins with epoch {dump.head.epoch} of {dump.head.cluster}, as its epoch"
        f" {outcome.epoch}",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )
    out.print(
        f"{counted(len(members), 'node has', 'nodes have')} yet to come: with the folder that has its host id"
        f" and STELE_ACCEPT_LOST_EPOCHS={dump.head.log_id}, or empty with STELE_CLAIM_HOST_ID",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )


def _waits(client: Client) -> bool:
    """The log was founded for a dump that has not come yet."""
    try:
        found = Reading(client).topology()
    except RefusedError:
        return False
    frozen = found.commits.mode is CommitMode.FROZEN and found.commits.since_epoch == FOUNDED
    return bool(found.cluster) and frozen


def _load(dump: Dump) -> LoadState:
    from stele.domain.overrides.content import packed_state  # noqa: PLC0415
    from stele.domain.snapshot import image_to_facts  # noqa: PLC0415

    assert dump.image is not None
    return LoadState(
        content=packed_state(image_to_facts(dump.image)),
        founds=True,
        of_epoch=dump.head.epoch,
        of_cluster_id=dump.head.cluster_id,
        of_log_id=dump.head.log_id,
    )
