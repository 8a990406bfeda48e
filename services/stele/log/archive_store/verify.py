"""Checking all of an archive in a store: each blob's bytes, the chain of state ids, and that the epochs between
two snapshots lead from the state of the one to that of the other.
"""

import asyncio
import io
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from stele.domain.snapshot import requests_hash, state_hash
from stele.log.archive.archive import folded
from stele.log.archive.container import DamagedFileError
from stele.log.archive.records import Archived, check_follows
from stele.log.archive.snapshots import UnreadableSnapshotError, start_of
from stele.log.archive_store.layout import Shot
from stele.log.archive_store.lineage import Part
from stele.log.archive_store.stored import StoredArchive
from stele.log.blobs.port import BlobMissingError
from stele.log.errors import LogError
from stele.log.start import BEGINNING, Start


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What was checked, and what is wrong; nothing is when ``flaws`` is empty."""

    blobs: int
    size_bytes: int
    first_epoch: int
    last_epoch: int
    state_id: str
    state_hash: str
    """Of the state at the last epoch; empty where no snapshot or first epoch leads to it."""
    snapshots: tuple[int, ...]
    """Epochs of those that are whole, and what the epochs before them lead to."""
    folded_epochs: int
    flaws: tuple[str, ...]
    damaged: tuple[str, ...]
    """Names of blobs to be put again."""


class _Found(NamedTuple):
    start: Start
    flaw: str


async def verify(stored: StoredArchive) -> Verdict:
    """Read all of it. Raises StoreError when the store does not let it."""
    return await _Verifier(stored).run()


class _Verifier:
    """Goes through the epochs once; ``_start`` is the state that they lead to, None where it is not known."""

    def __init__(self, stored: StoredArchive) -> None:
        self._stored = stored
        self._flaws = list[str]()
        self._damaged = list[str]()
        self._good = list[int]()
        self._before: Archived | None = None
        self._start: Start | None = BEGINNING
        self._folded = 0
        self._shots = stored.shots[::-1]

    async def run(self) -> Verdict:
        stored = self._stored
        following = 1
        for part in stored.parts:
            if part.first != following:
                await self._missing(following, part.first)
            await self._part(part)
            following = part.last + 1
        await self._snapshots_before(following)
        for shot in self._shots:
            self._flaws.append(
                f"Epochs {following} to {shot.epoch}, before a snapshot, are missing."
            )
        last, end = self._before, self._start
        if end is not None and end.image.epoch != following - 1:
            end = None
        return Verdict(
            blobs=len(stored.names),
            size_bytes=sum(stored.sizes.get(name, 0) for name in stored.names),
            first_epoch=stored.parts[0].first if stored.parts else 0,
            last_epoch=following - 1,
            state_id=last.links[1].hex() if last is not None else "",
            state_hash=state_hash(end.image) if end is not None and following > 1 else "",
            snapshots=tuple(self._good),
            folded_epochs=self._folded,
            flaws=tuple(self._flaws),
            damaged=tuple(self._damaged),
        )

    async def _part(self, part: Part) -> None:
        try:
            records = await self._stored.piece(part)
            check_follows(self._before, records[0])
        except (BlobMissingError, DamagedFileError) as error:
            self._flawed(str(error), part.piece.name)
            self._before = self._start = None
            return
        self._before = records[-1]
        for shot in [shot for shot in self._shots if shot.epoch <= part.last]:
            until = [record for record in records if record.epoch <= shot.epoch]
            records = records[len(until) :]
            await self._fold(until)
            await self._snapshots_before(shot.epoch + 1)
        await self._fold(records)

    async def _missing(self, first: int, following: int) -> None:
        """A store may begin behind the first epoch; then its first snapshot is what it begins with."""
        if first > 1:
            self._flaws.append(f"Epochs {first} to {following - 1} are missing.")
        self._before = self._start = None
        await self._snapshots_before(following)

    async def _fold(self, records: Sequence[Archived]) -> None:
        if (
            self._start is not None
            and records[:1]
            and self._start.image.epoch + 1 != records[0].epoch
        ):
            self._start = None
        if self._start is None or not records:
            return
        try:
            self._start = await asyncio.to_thread(folded, self._start, records)
            self._folded += len(records)
        except LogError as error:
            self._flaws.append(f"Epochs {records[0].epoch} to {records[-1].epoch}: {error}")
            self._start = None

    async def _snapshots_before(self, following: int) -> None:
        """Compare the snapshots of epochs before ``following``, and go on from the last of them."""
        while self._shots and self._shots[0].epoch < following:
            shot = self._shots.pop(0)
            try:
                files = await self._stored.files(shot)
                found = await asyncio.to_thread(_compared, shot, files, self._start)
            except (BlobMissingError, DamagedFileError, UnreadableSnapshotError) as error:
                self._flawed(
                    f"The snapshot of epoch {shot.epoch}: {error}", shot.name, shot.decided_name
                )
                continue
            if found.flaw:
                self._flaws.append(found.flaw)
            else:
                self._good.append(shot.epoch)
            self._start = found.start

    def _flawed(self, text: str, *names: str) -> None:
        self._flaws.append(text)
        self._damaged += names


def _compared(shot: Shot, files: tuple[bytes, bytes], reached: Start | None) -> _Found:
    """The snapshot's state, and how it differs from what the epochs lead to, if that is known."""
    start = start_of(*map(io.BytesIO, files))
    image = start.image
    if (image.epoch, image.state_id.hex(), image.log_id.hex()) != (
        shot.epoch,
        shot.state_id,
        shot.log_id,
    ):
        raise DamagedFileError("it is of another state than its name says")
    if reached is None or reached.image.epoch != shot.epoch:
        return _Found(start, "")
    return _Found(start, why_other(start, reached))


def why_other(start: Start, reached: Start) -> str:
    """How a snapshot differs from what the epochs up to it lead to; empty when it does not."""
    epoch = reached.image.epoch
    hashes = [(state_hash(each.image), requests_hash(each.image)) for each in (start, reached)]
    if hashes[0] != hashes[1]:
        return f"Epoch {epoch}: its snapshot has another state than the epochs lead to."
    places = [(each.next_offset, each.anchor) for each in (start, reached)]
    if places[0] != places[1]:
        return f"Epoch {epoch}: its snapshot stands at another place of the log."
    return ""
