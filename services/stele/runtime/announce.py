"""What a service tells the cluster of itself: its release, and the features that it supports (seed 004).

async with announced("coordinator", settings, lambda: follower.image, lambda: caught_up): ...
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from confluent_kafka import KafkaException

from stele.domain.commands import AnnounceService, Envelope
from stele.domain.commits.restricted import takes_from
from stele.domain.image import Image
from stele.domain.requests.not_taken import horizon_of, moved_on
from stele.domain.services.facts import Service
from stele.log.brokers import Brokers
from stele.log.commander import Commander, NotTakenError
from stele.runtime.build import THIS_BUILD, Build
from stele.runtime.logs import get_logger
from stele.runtime.request_ids import new_request_id
from stele.runtime.settings import ServiceSettings

LOOK_S: Final = 0.5
"""Between two looks whether the log still tells of this process."""
LAST_PAUSE_S: Final = 30.0
"""Between two tries, in the end: a thousand processes must not fill a log that is away or full."""
FIRST_AGAIN_S: Final = 1.0
LAST_AGAIN_S: Final = 60.0
"""After what is said against the log, and doubled each time: two processes under one id, which say it in turn,
make 1,440 records a day each in the end.
"""
SUBMIT_TIMEOUT_S: Final = 10.0

ANOTHER: Final = (
    "If this goes on, another process runs under this id: give each a STELE_INSTANCE_ID of its own."
)

log = get_logger(__name__)


@asynccontextmanager
async def announced(
    name: str,
    settings: ServiceSettings,
    image: Callable[[], Image],
    is_read: Callable[[], bool],
    build: Build = THIS_BUILD,
) -> AsyncIterator[None]:
    """Inside the block the log is told of service ``name`` once ``is_read``, and again where it was forgotten
    or the log says what it is not.

    Nothing waits for it: a reader that lacks a feature stops where that is enabled, announced or not.
    """
    own = own_service(name, settings.instance_id, build)
    telling = Telling(own, settings.brokers, settings.cluster)
    task = asyncio.create_task(_keep_announced(telling, image, is_read), name="announce")
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class Announcer:
    """Tells one cluster of one process, under one id until it is known what became of that."""

    def __init__(
        self, make: Callable[[bytes | None, int], Envelope], brokers: Brokers, cluster: str
    ) -> None:
        """``make``: an announcement under a new id, by the newest state id that is known, behind a horizon."""
        self._make = make
        self._brokers = brokers
        self._cluster = cluster
        self._asked: Envelope | None = None
        self._horizon_ms = -1

    async def say(self, state_id: bytes | None = None) -> int | None:
        """The epoch that took it; None when it is to be said again. What went wrong is logged. ``state_id`` is
        the newest that this process has read.
        """
        while True:
            envelope, self._asked = self._asked or self._make(state_id, self._horizon_ms), None
            try:
                return await announce(envelope, self._brokers, self._cluster)
            except NotTakenError as error:
                before_ms, self._horizon_ms = self._horizon_ms, horizon_of(error.rejection)
                log.warning("the announcement was not taken", why=str(error))
                if not moved_on(self._horizon_ms, before_ms):
                    return None
            except (TimeoutError, KafkaException, OSError, RuntimeError) as error:
                self._asked = envelope  # it may be decided yet
                log.warning("the metadata log has not answered yet", why=str(error))
                return None

    def is_known(self) -> None:
        """The log tells of this process: what is said next is a new announcement."""
        self._asked = None


def announcement(own: Service, state_id: bytes | None = None, horizon_ms: int = -1) -> Envelope:
    """What is sent, again and again under one id, until it is known what became of it."""
    return Envelope(
        request_id=new_request_id(state_id, horizon_ms),
        command=AnnounceService(
            service_id=own.service_id,
            supported_features=own.supported_features,
            release_version=own.release_version,
        ),
        actor=actor_of(own),
        reason="started",
    )


async def announce(envelope: Envelope, brokers: Brokers, cluster: str) -> int | None:
    """The epoch that took it; None when it was refused, which is logged.

    Raises TimeoutError, KafkaException, NotTakenError.
    """
    commander = Commander(brokers, cluster)
    try:
        await commander.start()
        outcome = await commander.submit(envelope, SUBMIT_TIMEOUT_S)
    finally:
        await commander.close()
    if outcome.rejection is None:
        log.info("known to the cluster", by=envelope.actor, epoch=outcome.epoch)
        return outcome.epoch
    log.warning(
        "the cluster does not take the announcement",
        by=envelope.actor,
        why=outcome.rejection.message,
        hint=outcome.rejection.hint,
    )
    return None


def actor_of(own: Service) -> str:
    return f"service {own.service_id}"


def own_service(name: str, instance_id: str, build: Build = THIS_BUILD) -> Service:
    """What this process is, by its code."""
    return Service(
        service_id=f"{name}/{instance_id}",
        supported_features=tuple(sorted(build.features)),
        release_version=build.release,
    )


def growing_pauses() -> Iterator[float]:
    """Seconds after each time that one process says something against the log."""
    pause_s = FIRST_AGAIN_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, LAST_AGAIN_S)


class Telling:
    """One process tells one cluster what it is: once, and again where the log has forgotten it or says
    something else of it.
    """

    def __init__(self, own: Service, brokers: Brokers, cluster: str) -> None:
        self._own = own
        self._announcer = Announcer(partial(announcement, own), brokers, cluster)
        self._said: int | None = None
        """The epoch in which the log told of this process."""
        self._pause_s = LOOK_S
        self._pauses = growing_pauses()

    async def look(self, now: Image, *, is_read: bool) -> float:
        """Say it if need be; the seconds until the next look."""
        own, said = self._own, self._said
        known = now.services.services.get(own.service_id)
        if known == own:
            self._announcer.is_known()
            self._said, self._pause_s = now.epoch, LOOK_S
        elif not takes_from(now.commits, actor_of(own)):
            self._pause_s = LOOK_S  # it says so once the log is thawed
        elif not is_read or not now.cluster or (said is not None and now.epoch < said):
            pass
        elif said is None or known is None:
            self._pause_s = min(2 * self._pause_s, LAST_PAUSE_S)
            await self._say(now.state_id)
        else:
            self._pause_s = next(self._pauses)
            await self._contradict(known, now.state_id)
        return self._pause_s

    async def _say(self, state_id: bytes) -> None:
        self._said = await self._announcer.say(state_id) or self._said

    async def _contradict(self, known: Service, state_id: bytes) -> None:
        """What an earlier process of the service said came to the log late, or another runs under its id."""
        own = self._own
        log.warning(
            "the log says something else of this service, which announces itself again",
            service=own.service_id,
            release=own.release_version,
            said_release=known.release_version,
            said_features=known.supported_features,
            hint=ANOTHER,
        )
        await self._say(state_id)


async def _keep_announced(
    telling: Telling, image: Callable[[], Image], is_read: Callable[[], bool]
) -> None:
    while True:
        pause_s = await telling.look(image(), is_read=is_read())
        await asyncio.sleep(pause_s)
