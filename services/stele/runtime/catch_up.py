"""Client of the catch-up replicas: where to begin, snapshots, and epochs that left the topic.

Requests go to all replicas at once, and the first to answer counts as the nearest. When one lacks
something, the next one gets the request. A download that is cut off resumes at the same byte.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from functools import partial
from typing import Any, Final

import msgspec

from stele.domain.registry import KNOWN_FEATURES
from stele.log.archive.archive import with_places
from stele.log.archive.container import (
    Archived,
    DamagedFileError,
    EpochSpan,
    NotArchivedError,
    from_container,
    joined,
)
from stele.log.archive.snapshots import start_of
from stele.log.archive_store.layout import StoredSnapshot
from stele.log.archive_store.source import About, ArchiveSize, SourceFile
from stele.log.chain import RECENT
from stele.log.fold import BEGINNING_FOR_FOLLOWERS, Start
from stele.log.history import EpochNotFoundError, Winner
from stele.runtime.answers.catch_up import (
    ArchiveAnswer,
    CheckAnswer,
    Known,
    SnapshotAnswer,
    StartAnswer,
)
from stele.runtime.http_tls import certificate_refused
from stele.runtime.logs import get_logger
from stele.runtime.transport import FAILURES, SILENT_S, HttpTransport, Transport, answer_of

ANSWER_S: Final = 5.0
"""Timeout of an answer without files, in seconds."""
GRACE_S: Final = 0.05
"""Wait for further answers after the first one, in seconds: they may be almost as near and hold
more.
"""
ATTEMPTS: Final = 5
OK: Final = 200
PARTIAL: Final = 206
NOT_FOUND: Final = 404

log = get_logger(__name__)


class _RefusedError(Exception):
    """The status of the answer is an error."""


_FAILURES: Final = (*FAILURES, msgspec.DecodeError, _RefusedError)


class CatchUpUnavailable(Exception):
    """No replica returned what was requested. The text lists the answer of each."""


class CatchUp:
    """Client of the replicas at ``urls``, for a process that supports these features.

    Create it inside the event loop, and close it.
    """

    def __init__(
        self,
        urls: Sequence[str],
        transport: Transport | None = None,
        supported: Set[str] = KNOWN_FEATURES,
    ) -> None:
        self._urls = tuple(url.rstrip("/") for url in urls)
        self._supported = supported
        self._took_s: dict[str, float] = {}
        self.silent = dict[str, str]()
        """Errors by address, of the replicas that did not answer the last request."""
        self._transport = transport or HttpTransport()

    async def close(self) -> None:
        await self._transport.close()

    @property
    def replicas(self) -> int:
        """Number of configured replicas."""
        return len(self._urls)

    async def starts(
        self, grace_s: float = GRACE_S, **question: object
    ) -> list[tuple[str, StartAnswer]]:
        """Return the answers to /v1/start, the nearest first, without replicas that do not
        answer.
        """
        return await self._ask_all("/v1/start", StartAnswer, question, grace_s)

    async def known(self, url: str, epoch: int, state_id: bytes) -> Known:
        """Return whether the replica at ``url`` has the epoch with this state id.

        Raises CatchUpUnavailable.
        """
        asked: dict[str, object] = {"floor_epoch": epoch, "floor_state_id": state_id.hex()}
        try:
            _, body = await self._get(f"{url}/v1/start", ANSWER_S, asked)
            return msgspec.json.decode(body, type=StartAnswer).known
        except _FAILURES as error:
            raise CatchUpUnavailable(f"{url}: {error!r}") from error

    async def archives(self) -> list[tuple[str, ArchiveAnswer]]:
        """Return the archives of the replicas, the nearest first, without replicas that do not
        answer.
        """
        return await self._ask_all("/v1/archive", ArchiveAnswer, {}, grace_s=ANSWER_S)

    async def check(self, url: str, percent: int) -> CheckAnswer:
        """Start a check of the archive at ``url``, unless one is running.

        Raises CatchUpUnavailable.
        """
        return await self._check("POST", f"{url}/v1/check?percent={percent}")

    async def checked(self, url: str) -> CheckAnswer:
        """Return the progress of the check at ``url``. Raises CatchUpUnavailable."""
        return await self._check("GET", f"{url}/v1/check")

    async def _check(self, method: str, url: str) -> CheckAnswer:
        try:
            _, body = await self._get(url, ANSWER_S, method=method)
            return msgspec.json.decode(body, type=CheckAnswer)
        except _FAILURES as error:
            raise CatchUpUnavailable(f"{url}: {error!r}") from error

    async def load(self, url: str, snapshot: SnapshotAnswer, *, decided: bool) -> Start:
        """Download a snapshot of a replica, and read it.

        Raises CatchUpUnavailable, DamagedFileError, UnreadableSnapshotError.
        """
        files = await self.files(url, snapshot, decided=decided)
        opened = [io.BytesIO(content) for content in files]
        return await asyncio.to_thread(partial(start_of, *opened, supported=self._supported))

    async def with_places(self, url: str, start: Start) -> Start:
        """Return ``start`` with the offsets of winners before its last one, as the replica at
        ``url`` has them.

        The replica need not be able to read the log, because a loss shows in these offsets. Raises
        CatchUpUnavailable.
        """
        epoch = start.image.epoch
        first, last = max(1, epoch - RECENT + 1), epoch - 1
        if last < first:
            return start
        try:
            found = await self.records(first, last, among=(url,))
        except NotArchivedError:
            return start
        return with_places(start, found)

    async def files(self, url: str, snapshot: SnapshotAnswer, *, decided: bool) -> list[bytes]:
        """Download a snapshot, and with ``decided`` the file of its decided requests.

        Raises CatchUpUnavailable.
        """
        path = f"{url}/v1/snapshots/{snapshot.name}"
        found = [await self._download(path, snapshot.size_bytes)]
        if decided:
            found.append(await self._download(f"{path}?decided=1", snapshot.decided_bytes))
        return found

    async def records(
        self, first: int, last: int, log_id: str = "", among: Collection[str] = ()
    ) -> list[Archived]:
        """Return epochs from ``first`` up to at most ``last``, as many as one answer holds, at
        least one.

        With ``log_id``, only replicas that follow that log answer; others may hold epochs that a
        recovery gave up. With ``among``, only these replicas count.

        Raises NotArchivedError when every replica lacks the epoch, CatchUpUnavailable.
        """
        said = dict[str, str]()
        for url in self._nearest_first():
            if among and url not in among:
                continue
            asked = f"{url}/v1/records?from={first}&last={last}&log_id={log_id}"
            try:
                status, body = await self._get(asked, ANSWER_S + SILENT_S)
                if status == NOT_FOUND:
                    said[url] = "not there"
                    continue
                found = await asyncio.to_thread(from_container, body)
                if found and found[0].epoch == first:
                    return found
                said[url] = "not there"
            except (*_FAILURES, DamagedFileError) as error:
                said[url] = repr(error)
        if said and {*said.values()} == {"not there"}:
            raise NotArchivedError(first)
        raise CatchUpUnavailable(f"No replica gave epoch {first}: {_reasons_text(said)}")

    async def _ask_all(
        self, path: str, kind: type[Any], question: dict[str, object], grace_s: float = GRACE_S
    ) -> list[tuple[str, Any]]:
        found = list[tuple[str, Any]]()

        async def ask(url: str) -> None:
            began_s = time.monotonic()
            try:
                status, body = await self._get(url + path, ANSWER_S, question)
                if status == NOT_FOUND:
                    raise _RefusedError(f"{url} has no {path}")
                found.append((url, msgspec.json.decode(body, type=kind)))
                self._took_s[url] = time.monotonic() - began_s
                self.silent.pop(url, None)
            except _FAILURES as error:
                self._took_s[url] = ANSWER_S
                self.silent[url] = certificate_refused(error) or repr(error)
                log.debug("a replica did not answer", url=url, why=repr(error))

        tasks = [asyncio.create_task(ask(url)) for url in self._urls]
        if not tasks:
            return []
        pending = {*tasks}
        while pending and not found:
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if pending:
            _, pending = await asyncio.wait(pending, timeout=grace_s)
        for task in tasks:  # in their order, because the order of a set is not deterministic
            task.cancel()
        return found

    async def _download(self, url: str, size_bytes: int) -> bytes:
        content, why = bytearray(), ""
        for _ in range(ATTEMPTS):
            came: dict[int, bytearray] = {}

            def keep(status: int, piece: bytes, came: dict[int, bytearray] = came) -> None:
                came.setdefault(status, bytearray()).extend(piece)

            headers = {"range": f"bytes={len(content)}-"} if content else {}
            try:
                status = await self._transport.ask(url, keep, None, headers=headers)
                if status == NOT_FOUND:
                    raise CatchUpUnavailable(f"{url} is not there any more")
                _check(url, status)
            except _FAILURES as error:
                why = repr(error)
                continue
            finally:
                # Keep the bytes of a broken answer. A full answer (200) replaces them, a partial
                # one (206) follows them.
                content = came.get(OK, content + came.get(PARTIAL, b""))
            if len(content) >= size_bytes:
                return bytes(content)
            why = f"it ended after {len(content)} of {size_bytes} bytes"
        raise CatchUpUnavailable(f"{url}: {why}")

    async def _get(
        self,
        url: str,
        total_s: float,
        params: Mapping[str, object] | None = None,
        method: str = "GET",
    ) -> tuple[int, bytes]:
        """Return status and body.

        NOT_FOUND is returned, other errors raise one of ``_FAILURES``.
        """
        asked = {name: str(value) for name, value in (params or {}).items()}
        answer = await answer_of(self._transport, url, total_s, asked, method=method)
        if answer.status != NOT_FOUND:
            _check(url, answer.status)
        return answer

    def _nearest_first(self) -> list[str]:
        distance: Callable[[str], float] = lambda url: self._took_s.get(url, 0.0)  # noqa: E731
        return sorted(self._urls, key=distance)


def _reasons_text(said: dict[str, str]) -> str:
    return "; ".join(f"{url}: {why}" for url, why in said.items()) or "no replica is known"


def _check(url: str, status: int) -> None:
    """Raise _RefusedError for an error status."""
    if status not in (OK, PARTIAL):
        raise _RefusedError(f"{url} answered {status}")


# Epochs and snapshots that left the topic, read from the catch-up replicas.


NOBODY: Final = "no catch-up replica gives it now"


class RemoteArchive:
    """The archive of the nearest replica that has the epochs and follows the log of this id now."""

    def __init__(self, catch_up: CatchUp, log_id: Callable[[], str]) -> None:
        self._catch_up = catch_up
        self._log_id = log_id

    async def winners(self, first: int, last: int) -> list[Winner]:
        """Return epochs from ``first`` on, at least one and at most up to ``last``.

        Raises EpochNotFoundError, TimeoutError.
        """
        try:
            found = await self._catch_up.records(first, last, self._log_id())
        except NotArchivedError as error:
            raise EpochNotFoundError(first, 0, last) from error
        except CatchUpUnavailable as error:
            raise TimeoutError(f"{error}") from error
        return [Winner(record.epoch, record.offset, record.value) for record in found]

    async def start(self, epoch: int) -> Start:
        """Return the newest snapshot not after ``epoch`` that a replica offers, or the beginning
        of the log.
        """
        for url, answer in await self._catch_up.starts(at_most=epoch, tail=0):
            if answer.snapshot is None or answer.log_id != self._log_id():
                continue
            try:
                return await self._catch_up.load(url, answer.snapshot, decided=False)
            except (CatchUpUnavailable, DamagedFileError) as error:
                log.warning("a snapshot was not got", url=url, why=str(error))
        return BEGINNING_FOR_FOLLOWERS


# The archives of catch-up replicas, read over HTTP, as a source for a store.


class ReplicaSource:
    """All replicas that answered, as one source: an epoch that one lacks another may have.

    ``answers`` has at least one. Other replicas do not count, because one with an older log may
    hold epochs that a recovery gave up. With ``log_id``, epochs are read only while a replica
    follows that log. Calls raise CatchUpUnavailable beside the errors of every source.
    """

    def __init__(
        self, catch_up: CatchUp, answers: Sequence[tuple[str, ArchiveAnswer]], log_id: str = ""
    ) -> None:
        self._catch_up = catch_up
        self._answers = answers
        self._log_id = log_id
        _, first = answers[0]
        self._about = About(first.cluster, first.cluster_id, first.log_id)
        self._snapshots = dict[StoredSnapshot, tuple[str, SnapshotAnswer]]()
        for url, answer in answers:
            for found in answer.snapshots:
                shot = StoredSnapshot(found.log_id, found.epoch, found.state_id)
                self._snapshots.setdefault(shot, (url, found))

    @property
    def urls(self) -> list[str]:
        """Addresses of the replicas that answered."""
        return [url for url, _ in self._answers]

    @property
    def about(self) -> About:
        return self._about

    @property
    def spans(self) -> Sequence[EpochSpan]:
        return joined(
            EpochSpan(s.first, s.last) for _, answer in self._answers for s in answer.spans
        )

    @property
    def shots(self) -> Sequence[StoredSnapshot]:
        return [*self._snapshots]

    @property
    def size(self) -> ArchiveSize:
        answers = [answer for _, answer in self._answers]
        files = sum(len(answer.spans) + len(answer.snapshots) for answer in answers)
        size_bytes = sum(answer.size_bytes for answer in answers)
        return ArchiveSize(
            files, size_bytes + sum(s.size_bytes for a in answers for s in a.snapshots)
        )

    async def state_id_of(self, epoch: int) -> str | None:
        try:
            (record, *_) = await self.records(epoch, epoch)
        except NotArchivedError:
            return None
        return record.links[1].hex()

    async def records(self, first: int, last: int) -> list[Archived]:
        return await self._catch_up.records(first, last, self._log_id, among=self.urls)

    def file_of(self, epoch: int) -> SourceFile:
        return SourceFile("", epoch)

    async def files(self, shot: StoredSnapshot) -> tuple[bytes, bytes]:
        url, snapshot = self._snapshots[shot]
        image, decided = await self._catch_up.files(url, snapshot, decided=True)
        await asyncio.to_thread(start_of, io.BytesIO(image), io.BytesIO(decided))
        return image, decided


class DifferentLogsError(Exception):
    """The replicas that answer do not keep the same log."""


async def replica_source(catch_up: CatchUp) -> ReplicaSource:
    """Return the replicas that answer now and keep the newest log.

    Raises CatchUpUnavailable when none answers, DifferentLogsError when they are of different
    clusters.
    """
    answers = [found for found in await catch_up.archives() if found[1].cluster_id]
    if not answers:
        raise CatchUpUnavailable("No catch-up replica answers that has read its log.")
    clusters = {answer.cluster_id: url for url, answer in answers}
    if len(clusters) > 1:
        told = "; ".join(f"{url}: {cluster_id}" for cluster_id, url in clusters.items())
        raise DifferentLogsError(f"The replicas are of different clusters ({told}).")
    newest = max(answer.log_id for _, answer in answers)
    return ReplicaSource(catch_up, [found for found in answers if found[1].log_id == newest])
