"""Asking the catch-up replicas: where to begin, snapshots, and epochs that the topic does not hold any more.

All replicas are asked at once, and the one that answers first is the nearest. A replica that lacks something
says so, and the next one is asked; what was cut off goes on at the byte where it was.
"""

import asyncio
import io
import time
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from functools import partial
from typing import Any, Final

import msgspec

from stele.domain.registry import KNOWN_FEATURES
from stele.log.archive.archive import with_places
from stele.log.archive.container import DamagedFileError
from stele.log.archive.records import Archived, from_container
from stele.log.archive.snapshots import start_of
from stele.log.archive.spans import NotArchivedError
from stele.log.chain import RECENT
from stele.log.start import Start
from stele.runtime.answers.catch_up import (
    ArchiveAnswer,
    CheckAnswer,
    Known,
    SnapshotAnswer,
    StartAnswer,
)
from stele.runtime.http_tls import certificate_refused
from stele.runtime.logs import get_logger
from stele.runtime.transport import FAILURES, SILENT_S, HttpTransport, OnPiece, Transport

ANSWER_S: Final = 5.0
"""For an answer without files."""
GRACE_S: Final = 0.05
"""After the first answer others are waited for so long: they may be about as near and know more."""
ATTEMPTS: Final = 5
OK: Final = 200
PARTIAL: Final = 206
NOT_FOUND: Final = 404

log = get_logger(__name__)


class _RefusedError(Exception):
    """The answer is an error."""


_FAILURES: Final = (*FAILURES, msgspec.DecodeError, _RefusedError)


class CatchUpUnavailable(Exception):
    """No replica gave what was asked for; the text says what each said."""


class CatchUp:
    """The replicas at ``urls``, for a process that supports these features. Make it inside the event loop, and
    close it.
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
        """Why those did not answer that were asked last and did not."""
        self._transport = transport or HttpTransport()

    async def close(self) -> None:
        await self._transport.close()

    @property
    def replicas(self) -> int:
        """How many are known."""
        return len(self._urls)

    async def starts(
        self, grace_s: float = GRACE_S, **question: object
    ) -> list[tuple[str, StartAnswer]]:
        """What replicas answer to /v1/start, the nearest first; those that do not answer are left out."""
        return await self._ask_all("/v1/start", StartAnswer, question, grace_s)

    async def known(self, url: str, epoch: int, state_id: bytes) -> Known:
        """Whether the replica at ``url`` has the epoch with this state id. Raises CatchUpUnavailable."""
        asked: dict[str, object] = {"floor_epoch": epoch, "floor_state_id": state_id.hex()}
        try:
            _, body = await self._get(f"{url}/v1/start", ANSWER_S, asked)
            return msgspec.json.decode(body, type=StartAnswer).known
        except _FAILURES as error:
            raise CatchUpUnavailable(f"{url}: {error!r}") from error

    async def archives(self) -> list[tuple[str, ArchiveAnswer]]:
        """What replicas hold, the nearest first; those that do not answer are left out."""
        return await self._ask_all("/v1/archive", ArchiveAnswer, {}, grace_s=ANSWER_S)

    async def check(self, url: str, percent: int) -> CheckAnswer:
        """Begin a check of the archive at ``url``, unless one is under way. Raises CatchUpUnavailable."""
        return await self._check("POST", f"{url}/v1/check?percent={percent}")

    async def checked(self, url: str) -> CheckAnswer:
        """How far it is. Raises CatchUpUnavailable."""
        return await self._check("GET", f"{url}/v1/check")

    async def _check(self, method: str, url: str) -> CheckAnswer:
        try:
            _, body = await self._get(url, ANSWER_S, method=method)
            return msgspec.json.decode(body, type=CheckAnswer)
        except _FAILURES as error:
            raise CatchUpUnavailable(f"{url}: {error!r}") from error

    async def load(self, url: str, snapshot: SnapshotAnswer, *, decided: bool) -> Start:
        """Get a snapshot of a replica, and read it.

        Raises CatchUpUnavailable, DamagedFileError, UnreadableSnapshotError.
        """
        files = await self.files(url, snapshot, decided=decided)
        opened = [io.BytesIO(content) for content in files]
        return await asyncio.to_thread(partial(start_of, *opened, supported=self._supported))

    async def with_places(self, url: str, start: Start) -> Start:
        """With the places of winners before the one that ``start`` ends with, as the replica at ``url`` keeps
        them. It is asked whether or not it can read the log: where that is lost they show it. Raises
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
        """A snapshot's file, and with ``decided`` that of the decided requests. Raises CatchUpUnavailable."""
        path = f"{url}/v1/snapshots/{snapshot.name}"
        found = [await self._download(path, snapshot.size_bytes)]
        if decided:
            found.append(await self._download(f"{path}?decided=1", snapshot.decided_bytes))
        return found

    async def records(
        self, first: int, last: int, log_id: str = "", among: Collection[str] = ()
    ) -> list[Archived]:
        """Epochs from ``first`` on up to ``last`` at most, as many as one answer has; at least one. With
        ``log_id`` only replicas give them that follow that log: others may have what a recovery gave up. With
        ``among`` no others are asked than these.

        Raises NotArchivedError when each replica says that it does not have it, CatchUpUnavailable.
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
        raise CatchUpUnavailable(f"Nobody gave epoch {first}: {_told(said)}")

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
        for task in tasks:  # in their order, and never in that of a set
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
        """Status and body; no error but that it is not found. Raises _FAILURES."""
        body = bytearray()
        asked = {name: str(value) for name, value in (params or {}).items()}
        keep: OnPiece = lambda _, piece: body.extend(piece)  # noqa: E731
        status = await self._transport.ask(url, keep, total_s, asked, method=method)
        if status != NOT_FOUND:
            _check(url, status)
        return status, bytes(body)

    def _nearest_first(self) -> list[str]:
        distance: Callable[[str], float] = lambda url: self._took_s.get(url, 0.0)  # noqa: E731
        return sorted(self._urls, key=distance)


def _told(said: dict[str, str]) -> str:
    return "; ".join(f"{url}: {why}" for url, why in said.items()) or "no replica is known"


def _check(url: str, status: int) -> None:
    """Raises _RefusedError."""
    if status not in (OK, PARTIAL):
        raise _RefusedError(f"{url} answered {status}")
