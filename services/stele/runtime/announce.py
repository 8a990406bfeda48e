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
from stele.domain.requests.not_taken import horizon_of
from stele.domain.services.facts import Service
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
    announcer = Announcer(partial(announcement, own), settings.kafka_bootstrap, settings.cluster)
    task = asyncio.create_task(_keep_announced(own, announcer, image, is_read), name="announce")
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class Announcer:
    """Tells one cluster of one process, under one id until it is known what became of that."""

    def __init__(
        self, make: Callable[[bytes | None, int], Envelope], bootstrap: str, cluster: str
    ) -> None:
        """``make``: an announcement under a new id, by the newest state id that is known, behind a horizon."""
        self._make = make
        self._bootstrap = bootstrap
        self._cluster = cluster
        self._asked: Envelope | None = None
        self._horizon_ms = -1

    async def say(self, state_id: bytes | None = None) -> int | None:
        """The epoch that took it; None when it is to be said again. What went wrong is logged. ``state_id`` is
        the newest that this process has read.
        """
        envelope, self._asked = self._asked or self._make(state_id, self._horizon_ms), None
        try:
            return await announce(envelope, self._bootstrap, self._cluster)
        except NotTakenError as error:
            self._horizon_ms = horizon_of(error.rejection)
            log.warning("the announcement was not taken", why=str(error))
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


async def announce(envelope: Envelope, bootstrap: str, cluster: str) -> int | None:
    """The epoch that took it; None when it was refused, which is logged.

    Raises TimeoutError, KafkaException, NotTakenError.
    """
    commander = Commander(bootstrap, cluster)
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


async def _keep_announced(
    own: Service, announcer: Announcer, image: Callable[[], Image], is_read: Callable[[], bool]
) -> None:
    said: int | None = None  # the epoch in which the log told of this process
    pause_s, pauses = LOOK_S, growing_pauses()
    while True:
        now = image()
        known = now.services.services.get(own.service_id)
        if known == own:
            announcer.is_known()
            said, pause_s = now.epoch, LOOK_S
        elif not takes_from(now.commits, actor_of(own)):
            pause_s = LOOK_S  # it says so once the log is thawed
        elif not is_read() or not now.cluster or (said is not None and now.epoch < said):
            pass
        elif said is None or known is None:
            pause_s = min(2 * pause_s, LAST_PAUSE_S)
            said = await announcer.say(now.state_id) or said
        else:
            pause_s = next(pauses)
            said = await _contradict(known, own, announcer, now.state_id) or said
        await asyncio.sleep(pause_s)


async def _contradict(
    known: Service, own: Service, announcer: Announcer, state_id: bytes
) -> int | None:
    """What an earlier process of the service said came to the log late, or another runs under its id. The epoch
    that took what is said against it; None: it is to be said again.
    """
    log.warning(
        "the log says something else of this service, which announces itself again",
        service=own.service_id,
        release=own.release_version,
        said_release=known.release_version,
        said_features=known.supported_features,
        hint="If this goes on, another process runs under this id: give each a STELE_INSTANCE_ID of its own.",
    )
    return await announcer.say(state_id)
