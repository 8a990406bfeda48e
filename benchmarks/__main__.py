"""`python -m benchmarks`: everything in one run on one broker; JSON to build/bench, a table to the terminal."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.core import rates
from benchmarks.etcd import etcd, etcd_version
from benchmarks.numbers import Measured, Rate
from stele.log.brokers import Brokers
from stele.log.flows import flow_topic
from stele.runtime.kafka import ensure_topics
from stele_harness.stack.broker import BrokerCluster
from stele_harness.stack.process import Process, Program, spawn

CLIENTS = (1, 16, 128)
START_S = 60.0
POLL_S = 0.05
CLUSTER = "bench"
REPLAY_CLUSTER = "replay"
REPLAY_EPOCHS = 200_000
"""A log long enough that the reader's start, a third of a second, is a small part of its time."""
OUTPUT = Path("build/bench")
AS_IN_PRODUCTION = (
    *("-XX:TieredStopAtLevel=4", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
)
"""How Kafka's own scripts start a broker's JVM; a broker of the local stack is started to be there soon."""


class Report(msgspec.Struct, frozen=True):
    """One run: where, when, how busy the machine was, and all that was measured."""

    at: str
    cores: int
    load_average_before: float
    load_average_after: float
    record_bytes: int
    etcd: str
    measured: list[Measured]
    rates: list[Rate]


def child(module: str, *arguments: object) -> bytes:
    """Run a measurement in a separate process. Return the last line that it prints."""
    argv = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=True, timeout=600)
    return done.stdout.splitlines()[-1]


def load(what: str, target: str, clients: int, seconds: float) -> Measured:
    found = child("benchmarks.load", what, target, clients, seconds)
    return msgspec.json.decode(found, type=Measured)


def inside(what: str, bootstrap: str, clients: int, seconds: float) -> Measured:
    found = child("benchmarks.inside", what, bootstrap, clients, seconds)
    return msgspec.json.decode(found, type=Measured)


def rate(what: str, bootstrap: str, topic: str, count: int) -> Rate:
    found = child("benchmarks.inside", what, bootstrap, topic, count)
    return msgspec.json.decode(found, type=Rate)


@contextmanager
def metadata_log(directory: Path, bootstrap: str) -> Iterator[str]:
    """The service's address."""
    env = {
        **os.environ,
        "STELE_CLUSTER": CLUSTER,
        "STELE_KAFKA_BOOTSTRAP": bootstrap,
        "STELE_INSTANCE_ID": "bench",
        "STELE_HTTP_PORT": "0",
        "STELE_FOUND": "auto",
        "STELE_LOG_LEVEL": "warning",
    }
    argv = [sys.executable, "-m", "stele.metadata_log"]
    command = Program("metadata-log", argv, directory / "ml.out", directory / "ml.err", env)
    process = spawn(command)
    try:
        yield _announced(process)
    finally:
        process.stop()


def _announced(process: Process) -> str:
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s:
        said = process.stdout_of_this_run()
        if said.endswith("\n"):
            return str(json.loads(said)["http"])
        assert process.poll() is None, process.tail()
        time.sleep(POLL_S)
    raise TimeoutError(f"metadata-log was not up within {START_S:g} s: {process.tail()}")


def run(seconds: float, directory: Path) -> Report:
    before = os.getloadavg()[0]
    core, record_bytes = rates()
    measured = list[Measured]()
    brokers = BrokerCluster(directory / "kafka", java_options=AS_IN_PRODUCTION)
    brokers.start()
    try:
        brokers.wait_ready()
        bootstrap = brokers.bootstrap
        with metadata_log(directory, bootstrap) as url:
            for clients in CLIENTS:
                measured.append(inside("raw", bootstrap, clients, seconds))
                measured.append(inside("commit", bootstrap, clients, seconds))
                measured.append(load("http", url, clients, seconds))
                measured.append(load("topic", f"{bootstrap}/{CLUSTER}", clients, seconds))
        ensure_topics(Brokers(bootstrap), REPLAY_CLUSTER)
        topic = flow_topic(REPLAY_CLUSTER, "epochs")
        for what in ("fill", "consume", "replay"):
            core.append(rate(what, bootstrap, topic, REPLAY_EPOCHS))
    finally:
        brokers.stop()
    version = etcd_version()
    if version:
        with etcd(directory) as url:
            for clients in CLIENTS:
                measured.append(load("etcd-chain", url, clients, seconds))
                measured.append(load("etcd-put", url, clients, seconds))
    return Report(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        cores=os.cpu_count() or 0,
        load_average_before=before,
        load_average_after=os.getloadavg()[0],
        record_bytes=record_bytes,
        etcd=version,
        measured=measured,
        rates=core,
    )


def show(report: Report) -> None:
    console = Console()
    table = Table(title=f"{report.record_bytes}-byte records, {report.cores} cores")
    for name in ("what", "clients", "per second", "p50 ms", "p99 ms", "p50 / raw"):
        table.add_column(name, justify="left" if name == "what" else "right")
    raw = {m.clients: m.p50_ms for m in report.measured if m.what.startswith("raw")}
    for m in sorted(report.measured, key=lambda m: m.clients):
        ratio = f"{m.p50_ms / raw[m.clients]:.2f}"
        table.add_row(
            m.what, str(m.clients), f"{m.per_s:,.0f}", f"{m.p50_ms:.2f}", f"{m.p99_ms:.2f}", ratio
        )
    console.print(table)
    single = Table(title="one thread")
    single.add_column("what")
    single.add_column("per second", justify="right")
    for r in report.rates:
        single.add_row(r.what, f"{r.per_s:,.0f}")
    console.print(single)
    before, after = report.load_average_before, report.load_average_after
    console.print(
        f"load average {before:.1f} before, {after:.1f} after; {report.etcd or 'no etcd'}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="for each measurement")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stele-bench-") as directory:
        report = run(given.seconds, Path(directory))
    OUTPUT.mkdir(parents=True, exist_ok=True)
    path = OUTPUT / f"{report.at.replace(':', '')}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    (OUTPUT / "latest.json").write_bytes(path.read_bytes())
    show(report)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
