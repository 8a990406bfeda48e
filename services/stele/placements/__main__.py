"""``python -m stele.placements``: configured by STELE_* environment variables."""

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from prometheus_client import Counter, Gauge, Histogram
from pyspark.sql import SparkSession

from stele.placements.http import NAME, Api
from stele.placements.job import Job
from stele.placements.runner import Phase, Runner, SparkGone
from stele.placements.session import check_java, jar_files, spark_session
from stele.placements.settings import PlacementsSettings
from stele.runtime.announce import LAST_PAUSE_S, LOOK_S, Announcer
from stele.runtime.brokers import wait_for_topics
from stele.runtime.http import build_app, serve
from stele.runtime.kafka import ensure_topics
from stele.runtime.metrics import REGISTRY
from stele.runtime.service import Stop, run_service
from stele.runtime.start import started

STOP_DEADLINE_S: Final = 25.0
"""From the signal; the batch that is being written is finished. Compose grants 30 s."""
STOP_TIMEOUT_S: Final = 22.0
"""For the query and the session, within the deadline."""

batch_seconds = Histogram(
    "stele_placements_batch_seconds",
    "Time by part: events (judge and commit), batch, topic, tables, upkeep.",
    ["part"],
    buckets=(0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64),
    registry=REGISTRY,
)
restarts = Counter(
    "stele_placements_restarts",
    "Restarts of the query from where the tables stand.",
    registry=REGISTRY,
)
stopped = Gauge(
    "stele_placements_stopped",
    "1 for a cluster that does not go on: /v1/position says why, and what to do.",
    ["cluster"],
    registry=REGISTRY,
)
epoch_reached = Gauge(
    "stele_placements_epoch", "Last epoch that is materialized.", ["cluster"], registry=REGISTRY
)
strays_skipped = Gauge(
    "stele_placements_strays",
    "Records of other logs that were skipped in a cluster's topic.",
    ["cluster"],
    registry=REGISTRY,
)


async def main(stop: Stop) -> None:
    settings = started(NAME, PlacementsSettings)
    check_java()
    jar_files(settings.spark_jars)
    if not settings.clusters_pattern:
        await wait_for_topics(settings)
    loop = asyncio.get_running_loop()

    def on_end() -> None:
        with suppress(RuntimeError):  # the loop has closed: this process is leaving already
            loop.call_soon_threadsafe(stop.request, "Spark has ended")

    runner = Runner(partial(_session, settings), partial(_job, settings), restarts.inc, on_end)
    api = Api(runner, settings.instance_id, settings.job_options())
    runner.start()
    announcing = asyncio.create_task(_announce(settings, runner), name="announce")
    try:
        await serve(build_app(NAME, api.routes(), api.health), settings, NAME, stop)
    finally:
        announcing.cancel()
        await asyncio.wait((announcing,))
        await asyncio.to_thread(runner.stop, STOP_TIMEOUT_S)
    if runner.phase is Phase.FAILED:
        raise SparkGone(runner.reason)


async def _announce(settings: PlacementsSettings, runner: Runner) -> None:
    """Tell each cluster of this process once it is read; who is forgotten later is told of by a restart."""
    announcers, told, pause_s = dict[str, Announcer](), set[str](), LOOK_S
    while True:
        read = set() if runner.job is None else {*runner.job.reached}
        waiting = sorted(read - told)
        pause_s = min(2 * pause_s, LAST_PAUSE_S) if waiting else LOOK_S
        for cluster in waiting:
            if cluster not in announcers:
                announcers[cluster] = Announcer(
                    NAME, settings.instance_id, settings.kafka_bootstrap, cluster
                )
            if await announcers[cluster].say() is not None:
                told.add(cluster)
        await asyncio.sleep(pause_s)


def _session(settings: PlacementsSettings, scratch: Path) -> SparkSession:
    return spark_session(
        settings.spark_jars, settings.spark_master, settings.spark_driver_memory, scratch
    )


def _job(settings: PlacementsSettings, spark: SparkSession, scratch: Path) -> Job:
    def on_took(part: str, seconds: float) -> None:
        batch_seconds.labels(part).observe(seconds)
        for cluster, found in job.reached.items():
            epoch_reached.labels(cluster).set(found.epoch)
        for cluster, count in job.strays.items():
            strays_skipped.labels(cluster).set(count)

    stopped.clear()
    options = settings.job_options()
    job = Job(
        spark,
        options,
        scratch,
        partial(_ensure_topics, settings),
        on_took,
        on_stop=lambda cluster: stopped.labels(cluster).set(1),
    )
    return job


def _ensure_topics(settings: PlacementsSettings, cluster: str) -> None:
    ensure_topics(settings.kafka_bootstrap, cluster, settings.kafka_replication_factor)


if __name__ == "__main__":
    raise SystemExit(run_service(main, stop_deadline_s=STOP_DEADLINE_S))
