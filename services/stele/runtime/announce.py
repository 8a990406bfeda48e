"""Announce a service to the cluster: its release, and the features that it supports.

Source: ScyllaDB, pull request #15196, "Cluster features on raft: new procedure for joining group
0".

async with announced("coordinator", settings, lambda: follower.image, lambda: caught_up): ...
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Set
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version as installed_version
from typing import Final

import msgspec
from confluent_kafka import KafkaException

from stele.domain.commands import AnnounceService, Envelope
from stele.domain.image import Image
from stele.domain.model.services import Service
from stele.domain.not_taken import horizon_of, moved_on, takes_from
from stele.domain.registry import KNOWN_FEATURES
from stele.log.brokers import Brokers
from stele.log.commander import Commander, NotTakenError
from stele.runtime.logs import get_logger
from stele.runtime.request_ids import new_request_id
from stele.runtime.settings import ServiceSettings


class Build(msgspec.Struct, frozen=True):
    """Release and features.

    ``features`` are the semantics it folds beyond the first, and message forms it reads.
    """

    release: str
    features: Set[str]


THIS_BUILD: Final = Build(installed_version("stele"), KNOWN_FEATURES)


LOOK_S: Final = 0.5
"""Interval for checking that the log still lists this process, in seconds."""
LAST_PAUSE_S: Final = 30.0
"""Longest pause between two attempts.

A thousand processes must not flood a log that is unavailable or full.
"""
FIRST_CORRECTION_PAUSE_S: Final = 1.0
LAST_CORRECTION_PAUSE_S: Final = 60.0
"""Longest pause after correcting the log; pauses double.

Two processes with one id correct each other in turn. With this pause each of them appends 1,440
records a day.
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
    """Keep service ``name`` announced in the log inside the block, once ``is_read`` returns True.

    It is announced again when the log has forgotten it or differs from it. No work waits for the
    announcement. A reader that lacks a feature stops where that is enabled, announced or not.
    """
    own = own_service(name, settings.instance_id, build)
    announcer = ServiceAnnouncer(own, settings.brokers, settings.cluster)

    async def keep_announced() -> None:
        while True:
            pause_s = await announcer.check(image(), is_read=is_read())
            await asyncio.sleep(pause_s)

    task = asyncio.create_task(keep_announced(), name="announce")
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class Announcer:
    """Announces one process to one cluster, under one request id until the outcome is known."""

    def __init__(
        self, make: Callable[[bytes | None, int], Envelope], brokers: Brokers, cluster: str
    ) -> None:
        """``make`` returns an announcement under a new id, given the newest known state id and a
        horizon.
        """
        self._make = make
        self._brokers = brokers
        self._cluster = cluster
        self._undecided: Envelope | None = None
        self._horizon_ms = -1

    async def send(self, state_id: bytes | None = None) -> int | None:
        """Return the epoch of the announcement; None when it must be repeated. Failures are logged.

        ``state_id`` is the newest that this process has read.
        """
        while True:
            envelope, self._undecided = (
                self._undecided or self._make(state_id, self._horizon_ms),
                None,
            )
            try:
                return await announce(envelope, self._brokers, self._cluster)
            except NotTakenError as error:
                before_ms, self._horizon_ms = self._horizon_ms, horizon_of(error.rejection)
                log.warning("the announcement was not taken", why=str(error))
                if not moved_on(self._horizon_ms, before_ms):
                    return None
            except (TimeoutError, KafkaException, OSError, RuntimeError) as error:
                self._undecided = envelope  # it may still be decided, so keep the id
                log.warning("the metadata log has not answered yet", why=str(error))
                return None

    def on_listed(self) -> None:
        """Record that the log lists this process. The next ``send`` sends a new announcement."""
        self._undecided = None


def announcement(own: Service, state_id: bytes | None = None, horizon_ms: int = -1) -> Envelope:
    """Return the announcement. It is repeated under one id until its outcome is known."""
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
    """Send an announcement. Return its epoch; None when it was refused, which is logged.

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
    """Return the row of this process, as its code defines it."""
    return Service(
        service_id=f"{name}/{instance_id}",
        supported_features=tuple(sorted(build.features)),
        release_version=build.release,
    )


def growing_pauses() -> Iterator[float]:
    """Yield the pauses in seconds after successive corrections of the log by one process."""
    pause_s = FIRST_CORRECTION_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, LAST_CORRECTION_PAUSE_S)


class ServiceAnnouncer:
    """Keeps one process announced in one cluster: once, and again when the log's row is missing
    or differs.
    """

    def __init__(self, own: Service, brokers: Brokers, cluster: str) -> None:
        self._own = own
        self._announcer = Announcer(partial(announcement, own), brokers, cluster)
        self._listed_epoch: int | None = None
        """The epoch in which the log last listed this process."""
        self._pause_s = LOOK_S
        self._pauses = growing_pauses()

    async def check(self, image: Image, *, is_read: bool) -> float:
        """Announce the process if necessary. Return the seconds until the next check."""
        own, listed_epoch = self._own, self._listed_epoch
        row = image.services.services.get(own.service_id)
        if row == own:
            self._announcer.on_listed()
            self._listed_epoch, self._pause_s = image.epoch, LOOK_S
        elif not takes_from(image.commits, actor_of(own)):
            self._pause_s = LOOK_S  # it is announced once the log is thawed
        elif (
            not is_read
            or not image.cluster
            # The image is older than the announcement.
            or (listed_epoch is not None and image.epoch < listed_epoch)
        ):
            pass
        elif listed_epoch is None or row is None:
            self._pause_s = min(2 * self._pause_s, LAST_PAUSE_S)
            await self._send(image.state_id)
        else:
            self._pause_s = next(self._pauses)
            await self._correct(row, image.state_id)
        return self._pause_s

    async def _send(self, state_id: bytes) -> None:
        self._listed_epoch = await self._announcer.send(state_id) or self._listed_epoch

    async def _correct(self, row: Service, state_id: bytes) -> None:
        """Announce again although the log has another row for this service.

        An earlier process's announcement came late, or another process runs under the same id.
        """
        own = self._own
        log.warning(
            "the log says something else of this service, which announces itself again",
            service=own.service_id,
            release=own.release_version,
            said_release=row.release_version,
            said_features=row.supported_features,
            hint="If this persists, another process has the same id: give each a different"
            " STELE_INSTANCE_ID.",
        )
        await self._send(state_id)
