"""Answers about this replica's archive.

Every method reads the disk, so call it outside the event loop.
"""

import io
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from stele.catch_up.diverging import why_not_served
from stele.catch_up.identity import ReplicaIdentity
from stele.catch_up.trimming import older_in
from stele.domain.names import NodeState
from stele.log.archive.archive import Archive
from stele.log.archive.container import Archived, DamagedFileError, NotArchivedError, as_container
from stele.log.archive.snapshots import Kept
from stele.log.follower import LogFollower
from stele.runtime.answers.catch_up import (
    ArchiveAnswer,
    HistoryAnswer,
    Known,
    SnapshotAnswer,
    SpanAnswer,
    StartAnswer,
    StoreAnswer,
)
from stele.runtime.http import HttpError

COMPARED_EPOCHS: Final = 5000
"""Newest epochs whose state ids are always reported. Older ones are reported only on request."""


class StartQuestion(NamedTuple):
    epoch: int
    at_most: int
    floor_epoch: int
    floor_state_id: bytes
    decided: bool
    tail_will_do: bool


class Holdings:
    """Describes the archive of a replica and how far it has read the log."""

    def __init__(self, identity: ReplicaIdentity, archive: Archive, follower: LogFollower) -> None:
        self._identity = identity
        self._archive = archive
        self._follower = follower

    def history(self, epochs: Iterable[int] = ()) -> HistoryAnswer:
        """Return the state ids of the newest epochs, of snapshots, and of those ``epochs`` that
        are here.

        Raises DamagedFileError.
        """
        archive, image = self._archive, self._follower.image
        states = archive.states(COMPARED_EPOCHS)
        first = min((kept.head.epoch for kept in archive.snapshots.all()), default=0)
        last = archive.newest_image()
        spans = archive.segments.spans()
        first = 1 if any(s.first == 1 and last <= s.last for s in spans) else first
        for epoch in (last, *epochs):
            state_id = archive.state_id_of(epoch) if epoch else None
            if state_id is not None:
                states[epoch] = state_id
        return HistoryAnswer(
            replica_id=self._identity.replica_id,
            log_id=image.log_id.hex(),
            states={epoch: state_id.hex() for epoch, state_id in states.items()},
            first_image=first,
            last_image=last,
            incarnations=image.founding.incarnations,
            nodes={
                node.node_id: node.address
                for _, node in sorted(image.membership.nodes.items())
                if node.address and node.state is not NodeState.LEFT
            },
            replicas={name: row.address for name, row in sorted(image.archive.replicas.items())},
            trouble=self.trouble(),
        )

    def describe(self, filling: str, store: StoreAnswer | None) -> ArchiveAnswer:
        archive, image = self._archive, self._follower.image
        return ArchiveAnswer(
            replica_id=self._identity.replica_id,
            cluster=image.cluster,
            cluster_id=image.cluster_id,
            log_id=image.log_id.hex(),
            incarnations=image.founding.incarnations,
            epoch=image.epoch,
            trouble=self.trouble(),
            spans=tuple(SpanAnswer(*span) for span in archive.segments.spans()),
            size_bytes=archive.segments.size_bytes,
            snapshots=tuple(answer_of(kept) for kept in archive.snapshots.all()),
            damaged=tuple(archive.damaged),
            filling=filling,
            store=store,
            begins=image.archive.trimmed_epoch,
        )

    def start(self, asked: StartQuestion) -> StartAnswer:
        archive = self._archive
        kept = archive.snapshots.newest(asked.at_most)
        tail_bytes = archive.segments.bytes_after(asked.epoch)
        snapshot = answer_of(kept) if kept is not None and kept.head.epoch > asked.epoch else None
        recovered = bool(self._follower.image.founding.incarnations)
        if snapshot is not None and tail_bytes is not None and asked.tail_will_do and not recovered:
            size_bytes = snapshot.size_bytes + (snapshot.decided_bytes if asked.decided else 0)
            if size_bytes >= tail_bytes:
                snapshot = None
        last, founding = archive.segments.last, self._follower.image.founding
        state_id = archive.state_id_of(last) if last else None
        return StartAnswer(
            replica_id=self._identity.replica_id,
            log_id=founding.log_id.hex(),
            known=self._known(asked),
            last=last,
            last_state_id=state_id.hex() if state_id else "",
            recovered=recovered,
            tail_bytes=tail_bytes,
            snapshot=snapshot,
            stopped=str(self._follower.failure or ""),
            begins=self._follower.image.archive.trimmed_epoch,
        )

    def trouble(self) -> str:
        failure = self._follower.failure
        trouble = str(failure) if failure is not None else self._follower.trouble
        return trouble or why_not_served(self._follower.image, self._identity)

    def check_served(self) -> None:
        """Raise HttpError when this archive differs from the members'."""
        why = why_not_served(self._follower.image, self._identity)
        if why:
            raise HttpError(
                503,
                "replica_diverged",
                f"This replica starts again empty: {why}.",
                hint="Ask another replica.",
            )

    def _known(self, asked: StartQuestion) -> Known:
        if asked.floor_epoch == 0 or not asked.floor_state_id:
            return Known.SAME
        there = self._archive.state_id_of(asked.floor_epoch)
        if there is None:
            return Known.UNKNOWN
        return Known.SAME if there == asked.floor_state_id else Known.OTHER

    def records(self, first: int, last: int, limit_bytes: int) -> bytes:
        segments = self._archive.segments
        try:
            out = io.BytesIO()
            as_container(out, _at_most(segments.read(first), last, limit_bytes))
            return out.getvalue()
        except NotArchivedError as error:
            image = self._follower.image
            if error.epoch < image.archive.trimmed_epoch:
                raise HttpError(
                    404,
                    "epoch_deleted",
                    f"Epoch {error.epoch} was deleted from the archive: archive_keep_days,"
                    f" archive_keep_epochs. {older_in(image)}",
                    hint="`stele restore STORE` makes an archive of what a store has.",
                    details={"epoch": error.epoch, "oldest": image.archive.trimmed_epoch},
                ) from error
            spans = ", ".join(f"{a} to {b}" for a, b in segments.spans())
            raise HttpError(
                404,
                "epoch_not_archived",
                f"Epoch {error.epoch} is not on this replica, which has {spans}.",
                hint="Ask another replica.",
                details={"epoch": error.epoch},
            ) from error
        except DamagedFileError as error:
            raise HttpError(
                503, "archive_damaged", f"{error}.", hint="Ask another replica."
            ) from error


def answer_of(kept: Kept) -> SnapshotAnswer:
    head = kept.head
    return SnapshotAnswer(
        name=head.name,
        epoch=head.epoch,
        state_id=head.state_id,
        log_id=head.log_id,
        at_ms=head.at_ms,
        size_bytes=kept.size_bytes,
        decided_bytes=kept.decided_bytes,
        next_offset=head.next_offset,
        anchor_offset=head.anchor_offset,
    )


def _at_most(records: Iterator[Archived], last: int, limit_bytes: int) -> Iterator[Archived]:
    """Yield records up to epoch ``last`` within ``limit_bytes``, but at least one if there is
    one.
    """
    size_bytes = 0
    for record in records:
        if record.epoch > last or (size_bytes and size_bytes + len(record.value) > limit_bytes):
            return
        size_bytes += len(record.value)
        yield record
