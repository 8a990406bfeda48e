"""``python -m stele.placements``: configured by STELE_* environment variables."""

import asyncio
import re
import time
from collections.abc import Mapping
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from stele.domain.commands import Envelope
from stele.domain.model.archive import AnnounceReader
from stele.log.loops import call_in
from stele.placements import metrics
from stele.placements.http import NAME, Api
from stele.placements.job import Job
from stele.placements.runner import Phase, Runner, SparkGone
from stele.placements.settings import (
    PlacementsSettings,
    choose_java,
    is_submitted,
    jar_files,
    spark_session,
)
from stele.placements.topic import framing_of
from stele.runtime.announce import LOOK_S, Announcer, ServiceAnnouncer, own_service
from stele.runtime.http import Listener, build_app, listening
from stele.runtime.java import SPARK
from stele.runtime.kafka import ensure_topics, wait_for_topics
from stele.runtime.logs import get_logger
from stele.runtime.request_ids import new_request_id
from stele.runtime.service import Stop, run_service, started
from stele.runtime.settings import ConfigurationError

EVERY_EPOCHS: Final = 500
"""Epochs between announcements of a position. An announcement is an epoch too, so a quiet log gets
none. Snapshots are ten thousand epochs apart.
"""
POSITION_S: Final = 10.0
"""Interval for comparing positions."""
STOP_DEADLINE_S: Final = 25.0
"""Time from the signal to a forced end.

The batch that is being written is finished. Compose grants 30 s.
"""
STOP_TIMEOUT_S: Final = 22.0
"""Time for stopping the query and the session, within the deadline."""

log = get_logger(__name__)


async def main(stop: Stop) -> None:
    settings = started(NAME, PlacementsSettings)
    if not is_submitted():
        if note := choose_java().note(SPARK):
            log.info("another Java than the first is taken", why=note)
        jar_files(settings.spark_jars)
    try:
        framing_of(settings.placement_schema_ids)
    except ValueError as error:
        raise ConfigurationError(f"STELE_PLACEMENT_SCHEMA_IDS: {error}") from error
    try:
        re.compile(settings.clusters_pattern)
    except re.error as error:
        raise ConfigurationError(
            f"STELE_CLUSTERS_PATTERN={settings.clusters_pattern!r} is no regular expression: {error}"
        ) from error
    async with listening(settings, NAME) as listener:
        if not settings.clusters_pattern:
            await wait_for_topics(settings)
        await _run(settings, listener, stop)


async def _run(settings: PlacementsSettings, listener: Listener, stop: Stop) -> None:
    loop = asyncio.get_running_loop()

    def on_end() -> None:
        call_in(loop, stop.request, "Spark has ended")

    runner = Runner(
        partial(_session, settings), partial(_job, settings), metrics.restarts.inc, on_end
    )
    api = Api(runner, settings)
    runner.start()
    announcing = asyncio.create_task(_announce(settings, runner), name="announce")
    announcing_positions = asyncio.create_task(
        _announce_positions(settings, runner), name="positions"
    )
    try:
        await listener.serve(build_app(NAME, api.routes(), api.health), stop)
    finally:
        announcing.cancel()
        announcing_positions.cancel()
        await asyncio.wait((announcing, announcing_positions))
        await asyncio.to_thread(runner.stop, STOP_TIMEOUT_S)
    if runner.phase is Phase.FAILED:
        raise SparkGone(runner.reason)


async def _announce_positions(settings: PlacementsSettings, runner: Runner) -> None:
    """Announce to each cluster how far its log was read, so that needed records are not truncated.

    An announcement that was not accepted is sent again.
    """
    told, instance_id = dict[str, int](), settings.instance_id

    def announcement(epoch: int, state_id: bytes | None, horizon_ms: int) -> Envelope:
        return Envelope(
            request_id=new_request_id(state_id, horizon_ms),
            command=AnnounceReader(f"{NAME}.{instance_id}"[:64], epoch),
            actor=f"service {NAME}/{instance_id}",
            reason="reports its position",
        )

    while True:
        reached = {} if runner.job is None else runner.job.reached
        epochs = {cluster: head.epoch for cluster, head in reached.items()}
        for cluster, epoch in positions_to_announce(epochs, told).items():
            announcer = Announcer(partial(announcement, epoch), settings.brokers, cluster)
            if await announcer.send() is not None:
                told[cluster] = epoch
        await asyncio.sleep(POSITION_S)


def positions_to_announce(reached: Mapping[str, int], told: Mapping[str, int]) -> dict[str, int]:
    """Return the clusters that need an announcement, and its epoch."""
    return {
        cluster: epoch
        for cluster, epoch in reached.items()
        if epoch and (cluster not in told or abs(epoch - told[cluster]) >= EVERY_EPOCHS)
    }


async def _announce(settings: PlacementsSettings, runner: Runner) -> None:
    """Announce this process to each cluster once that is read, and again when the cluster's log
    differs.
    """
    own = own_service(NAME, settings.instance_id)
    announcers, due_s = dict[str, ServiceAnnouncer](), dict[str, float]()
    while True:
        images = {} if runner.job is None else runner.job.images()
        for cluster, image in sorted(images.items(), key=itemgetter(0)):
            if cluster not in announcers:
                announcers[cluster] = ServiceAnnouncer(own, settings.brokers, cluster)
            if due_s.get(cluster, 0.0) <= time.monotonic():
                pause_s = await announcers[cluster].check(image, is_read=True)
                due_s[cluster] = time.monotonic() + pause_s
        await asyncio.sleep(LOOK_S)


def _session(settings: PlacementsSettings, scratch: Path) -> SparkSession:
    return spark_session(
        settings.spark_jars,
        settings.spark_master,
        settings.spark_driver_memory,
        scratch,
        settings.spark_driver_host,
    )


def _job(settings: PlacementsSettings, spark: SparkSession, scratch: Path) -> Job:
    def on_took(part: str, seconds: float) -> None:
        metrics.batch_seconds.labels(part).observe(seconds)

    metrics.stopped.clear()
    job = Job(
        spark,
        settings,
        scratch,
        partial(_ensure_topics, settings),
        on_took,
        on_stop=lambda cluster: metrics.stopped.labels(cluster).set(1),
    )
    metrics.CLUSTERS.job = job
    return job


def _ensure_topics(settings: PlacementsSettings, cluster: str) -> None:
    ensure_topics(settings.brokers, cluster, settings.kafka_replication_factor)


if __name__ == "__main__":
    raise SystemExit(run_service(main, stop_deadline_s=STOP_DEADLINE_S))
