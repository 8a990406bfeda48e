"""The HTTP API of catch-up: what the archive holds, where to begin, snapshots and records.

A snapshot is a file and can be requested by byte ranges, so that a cut connection can be resumed.
Records are sent in the format of segments. Missing epochs are never left out silently: the answer
is an error that lists the epochs that exist.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from stele.catch_up import metrics
from stele.catch_up.checking import PERCENT, Checks
from stele.catch_up.holdings import Holdings, StartQuestion
from stele.catch_up.identity import ReplicaIdentity
from stele.catch_up.recovering import LARGEST, NotRecoverable, RecoverQuestion
from stele.log.archive.archive import Archive
from stele.log.archive.container import Archived, DamagedFileError, from_container
from stele.log.errors import LogError
from stele.log.follower import LogFollower
from stele.runtime import recent
from stele.runtime.answers.catch_up import (
    MOST_EPOCHS,
    RecoverableAnswer,
    RecoveredAnswer,
    StoreAnswer,
)
from stele.runtime.callers import RECOVER, Callers, require_actor
from stele.runtime.http import Health, HttpError, JsonResponse, build_app
from stele.runtime.tokens import authorization_of

MOST_BYTES: Final = 16 * 1024 * 1024
"""Limit for the records of one answer, before compression."""
AVRO: Final = "avro/binary"
MOST_CHARS: Final = 1024
MOST_BODY_BYTES: Final = recent.BYTES + 1024 * 1024
"""A recovery sends all that a process returned from /v1/recent, compressed."""
WRITTEN_S: Final = 12.0
"""Limit for waiting on a slow disk, in seconds. It is shorter than the client's timeout."""
STATE_ID_CHARS: Final = 32
MOST_DIGITS: Final = 19
READERS: Final = 4
"""Most answers that are read from the disk at once."""


class CatchUpApi:
    """The request handlers and their shared state."""

    def __init__(
        self,
        identity: ReplicaIdentity,
        archive: Archive,
        follower: LogFollower,
        recover: Callable[[RecoverQuestion, list[Archived]], Awaitable[RecoveredAnswer]],
        check_recoverable: Callable[
            [RecoverQuestion, list[Archived]], Awaitable[RecoverableAnswer]
        ],
        written: Callable[[], Awaitable[None]],
        callers: Callers | None = None,
    ) -> None:
        self.filling = ""
        """Description of the epochs that are being fetched from others; empty when none are
        missing.
        """
        self.store: Callable[[], StoreAnswer | None] = lambda: None
        self.checks = Checks(archive)
        self._archive = archive
        self._follower = follower
        self._held = Holdings(identity, archive, follower)
        self._recover = recover
        self._check_recoverable = check_recoverable
        self._written = written
        self._callers = callers
        self._reading = asyncio.Semaphore(READERS)

    def app(self, name: str, health: Callable[[], Health], *more: Route) -> Starlette:
        """Return the application with all routes of the service."""
        return build_app(name, [*more, *self.routes()], health, max_body_bytes=MOST_BODY_BYTES)

    def routes(self) -> list[Route]:
        return [
            Route("/v1/archive", self.get_archive, methods=["GET"]),
            Route("/v1/start", self.get_start, methods=["GET"]),
            Route("/v1/snapshots/{name}", self.get_snapshot, methods=["GET"]),
            Route("/v1/records", self.get_records, methods=["GET"]),
            Route("/v1/history", self.get_history, methods=["GET"]),
            Route("/v1/check", self.get_check, methods=["GET"]),
            Route("/v1/check", self.post_check, methods=["POST"]),
            Route("/v1/recover", self.post_recover, methods=["POST"]),
            Route("/v1/recover/check", self.post_recover_check, methods=["POST"]),
        ]

    async def get_archive(self, _: Request) -> Response:
        """Describe all that this replica holds."""
        describe = partial(self._held.describe, self.filling, self.store())
        return JsonResponse(await asyncio.to_thread(describe))

    async def get_start(self, request: Request) -> Response:
        """Answer how a reader at ``epoch`` reaches the newest epoch, or with ``at_most`` one
        near that epoch.

        With ``tail=0`` the answer always names a snapshot. ``known`` in the answer states whether
        ``floor_epoch`` has ``floor_state_id`` here.
        """
        self._held.check_served()
        asked = StartQuestion(
            epoch=_number(request, "epoch", 0, LARGEST),
            at_most=_number(request, "at_most", LARGEST, LARGEST),
            floor_epoch=_number(request, "floor_epoch", 0, LARGEST),
            floor_state_id=_state_id(request, "floor_state_id"),
            decided=_flag(request, "decided", "0"),
            tail_will_do=_flag(request, "tail", "1"),
        )
        async with self._reading:
            return JsonResponse(await asyncio.to_thread(self._held.start, asked))

    async def get_snapshot(self, request: Request) -> Response:
        """Return the file of a snapshot, or with ``decided=1`` the file of its decided requests."""
        self._held.check_served()
        kept = self._archive.snapshots.named(request.path_params["name"])
        if kept is not None:
            path = kept.decided_path if _flag(request, "decided", "0") else kept.path
            if path.exists():  # it may be forgotten meanwhile
                return FileResponse(path, media_type=AVRO)
        raise HttpError(
            404,
            "unknown_snapshot",
            "There is no such snapshot here, or not any more.",
            hint="Ask /v1/start again.",
        )

    async def get_records(self, request: Request) -> Response:
        """Return records from epoch ``from`` on, up to ``last`` or ``limit_bytes``; none if none
        exist yet.

        With ``log_id``, answer only while this replica reads that log.
        """
        self._held.check_served()
        self._check_log(request.query_params.get("log_id", ""))
        first = _number(request, "from", 1, LARGEST)
        last = _number(request, "last", LARGEST, LARGEST)
        limit_bytes = _number(request, "limit_bytes", MOST_BYTES, MOST_BYTES)

        read = partial(self._held.records, max(1, first), last, limit_bytes)
        async with self._reading:
            found = await asyncio.to_thread(read)
        metrics.served_bytes.inc(len(found))
        return Response(found, media_type=AVRO)

    async def get_history(self, request: Request) -> Response:
        """Return what this replica can contribute to a recovery: all that it has read, once it
        is on disk.

        With ``epochs``, include the state ids of these epochs if they are here.
        """
        self._held.check_served()
        epochs = _numbers(request, "epochs", LARGEST, MOST_EPOCHS)
        try:
            async with asyncio.timeout(WRITTEN_S):
                await self._written()
        except OSError as error:  # as a TimeoutError is
            raise HttpError(
                503,
                "archive_behind",
                f"The newest epochs of this replica are not on its disk yet. {error}",
                hint="Ask again.",
            ) from error
        async with self._reading:
            return JsonResponse(await asyncio.to_thread(self._held.history, epochs))

    async def get_check(self, _: Request) -> Response:
        """Return the progress of the newest check of the whole archive, or its result."""
        return JsonResponse(self.checks.answer)

    async def post_check(self, request: Request) -> Response:
        """Start a check with ``percent`` of a processor, unless one is running."""
        percent = _number(request, "percent", PERCENT, 100)
        return JsonResponse(self.checks.begin(max(1, percent)), 202)

    async def post_recover(self, request: Request) -> Response:
        """Recover the log from this archive and the epochs in the body that follow it; see
        ``recovering``.
        """
        try:
            return JsonResponse(await self._recover(*await self._asked(request)))
        except TimeoutError as error:
            raise HttpError(
                504,
                "outcome_unknown",
                "The topic did not show the first record of the recovered log in time; whether it stands there"
                " is unknown.",
                hint="Look at Kafka, and at the settings of the topic; then recover again: it is done once.",
            ) from error
        except (NotRecoverable, DamagedFileError, LogError) as error:
            raise _not_recovered(error) from error

    async def post_recover_check(self, request: Request) -> Response:
        """Check whether ``post_recover`` would be refused for the same query and body.

        It changes nothing.
        """
        try:
            return JsonResponse(await self._check_recoverable(*await self._asked(request)))
        except (NotRecoverable, DamagedFileError, LogError) as error:
            raise _not_recovered(error) from error

    async def _asked(self, request: Request) -> tuple[RecoverQuestion, list[Archived]]:
        """Parse query and body of a recovery.

        Authorize the caller before and after reading the body.

        An unauthorized caller's body is not read. Receiving a body may take a minute, and the
        caller's token may be withdrawn in that time. Raises HttpError, DamagedFileError, LogError.
        """
        self._question(request)
        more = await _epochs(request)
        return self._question(request), more

    def _question(self, request: Request) -> RecoverQuestion:
        """Parse the query.

        Raises HttpError when it is malformed or the caller is not authorized.
        """
        actor = request.query_params.get("actor", "")[:MOST_CHARS]
        authorization = authorization_of(request.headers)
        if self._callers is None:
            require_actor(actor, authorization)
        else:
            caller = self._callers.who(authorization)
            caller.check(RECOVER)
            actor = caller.actor(actor)
        return RecoverQuestion(
            epoch=_number(request, "epoch", 0, LARGEST),
            state_id=_state_id(request, "state_id"),
            known_epoch=_number(request, "known_epoch", 0, LARGEST),
            known_log_id=_state_id(request, "known_log_id"),
            actor=actor,
            reason=request.query_params.get("reason", "")[:MOST_CHARS],
            force=_flag(request, "force", "0"),
            told_epoch=_number(request, "told_epoch", LARGEST, LARGEST),
        )

    def _check_log(self, log_id: str) -> None:
        """Raise HttpError when ``log_id`` is given and this replica does not read that log."""
        own = self._follower.image.log_id.hex()
        if not log_id or (log_id == own and self._follower.failure is None):
            return
        raise HttpError(
            404,
            "other_log",
            f"This replica is at log {own}, {self._held.trouble() or 'and reads it'};"
            f" {log_id[:40]} was asked for.",
            hint="Ask another replica.",
            details={"log_id": own},
        )


async def _epochs(request: Request) -> list[Archived]:
    """Decode the epochs in the body. Raises DamagedFileError, LogError."""
    body = await request.body()
    return await asyncio.to_thread(from_container, body) if body else []


def _not_recovered(error: Exception) -> HttpError:
    return HttpError(
        409,
        "not_recovered",
        f"{error}",
        hint="Look at what the replicas hold: `stele recover --dry-run`.",
    )


def _numbers(request: Request, name: str, most: int, most_of_them: int) -> tuple[int, ...]:
    """Parse the comma-separated numbers of a parameter, at most ``most_of_them``."""
    texts = request.query_params.get(name, "").split(",")
    if len(texts) > most_of_them:
        raise HttpError(
            400, "invalid", f"{name} has {len(texts)} numbers", hint=f"{most_of_them} at most."
        )
    return tuple(_parsed(name, text, most) for text in texts if text)


def _number(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name, "")
    return _parsed(name, text, most) if text else default


def _parsed(name: str, text: str, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS) or int(text) > most:
        raise HttpError(
            400, "invalid", f"{name}={text[:40]}", hint=f"It is a number from 0 to {most}."
        )
    return int(text)


def _flag(request: Request, name: str, default: str) -> bool:
    text = request.query_params.get(name, default)
    if text not in ("0", "1"):
        raise HttpError(400, "invalid", f"{name}={text[:40]}", hint="It is 0 or 1.")
    return text == "1"


def _state_id(request: Request, name: str) -> bytes:
    text = request.query_params.get(name, "")
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if text and (len(text) != STATE_ID_CHARS or not found):
        raise HttpError(400, "invalid", f"{name}={text[:40]}", hint="It is an id: 32 hex digits.")
    return found
