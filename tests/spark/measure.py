"""``python -m tests.spark.measure [folder of another checkout ...]``: how fast the job is, beside others.

Each measurement runs the processes of all checkouts in turn on one broker, for ratios that the load of the
machine does not decide. Prints one JSON line for each.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition

from stele.domain.commands import AnyCommand, CreateKeyspace, DropKeyspace, Noop
from stele.log.codec import encode_epoch
from stele.log.flows import flow_topic
from stele.placements.session import default_jars
from stele.runtime.kafka import ensure_topics
from stele.stack.ports import free_port
from tests.domain.history import three_nodes
from tests.polling import wait_until
from tests.servers import local_broker

BACKLOG = 5_000
FRESH = 20
FLEET = 20
LIMIT_S = 600.0
START_S = 300.0


def make_log(epochs: int) -> list[bytes]:
    """A cluster of three nodes, then keyspaces that come and go and nothing in turn."""
    history, driver = three_nodes()
    commands: list[AnyCommand]
    commands = [CreateKeyspace("k", {"dc1": 2}), Noop(), DropKeyspace("k"), Noop()]
    turns = cycle(commands)
    while len(history.epochs) < epochs:
        history.apply(next(turns))
        driver.run()
    return [encode_epoch(epoch) for epoch in history.epochs[:epochs]]


@contextmanager
def service(code: Path, kafka: str, cluster: str, pattern: str = "") -> Iterator[str]:
    """The address of a process of a checkout, once its query runs."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w") as log:
        env = {
            **os.environ,
            "PYTHONPATH": f"{code}/services:{code}",
            "STELE_CLUSTER": cluster,
            "STELE_CLUSTERS_PATTERN": pattern,
            "STELE_KAFKA_BOOTSTRAP": kafka,
            "STELE_DATA_DIR": f"{folder}/data",
            "STELE_SPARK_JARS": str(default_jars()),
            "STELE_HTTP_PORT": str(port),
        }
        argv = [sys.executable, "-m", "stele.placements"]
        process = subprocess.Popen(argv, env=env, cwd=code, stdout=log, stderr=log)
        url = f"http://127.0.0.1:{port}"
        try:
            yield url
        finally:
            process.terminate()
            process.wait(30)


def epoch_of(url: str, cluster: str) -> int:
    try:
        clusters: dict[str, Any] = httpx.get(f"{url}/v1/position", timeout=30).json()["clusters"]
    except (httpx.HTTPError, KeyError):
        return -1
    return int(clusters.get(cluster, {"epoch": 0})["epoch"])


def send(kafka: str, cluster: str, values: Sequence[bytes]) -> None:
    producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True, "linger.ms": 0})
    for value in values:
        producer.produce(flow_topic(cluster, "epochs"), value, partition=0)
    assert producer.flush(60) == 0


class Tail:
    """Notes when the topic's marker says each epoch."""

    def __init__(self, kafka: str, cluster: str) -> None:
        self.seen_s: dict[int, float] = {}
        self._stop = threading.Event()
        self._consumer = Consumer({"bootstrap.servers": kafka, "group.id": "unused"})
        self._consumer.assign([TopicPartition(flow_topic(cluster, "placements"), 0, 0)])
        self._key = f"{cluster}/epoch".encode()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def epoch(self) -> int:
        return max(self.seen_s, default=0)

    def at(self, epoch: int) -> float:
        return min(when for found, when in self.seen_s.items() if found >= epoch)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None and message.key() == self._key:
                epoch = msgspec.json.decode(message.value() or b"{}")["epoch"]
                self.seen_s.setdefault(epoch, time.monotonic())


def one_cluster(code: Path, kafka: str, name: str, log: list[bytes]) -> dict[str, float]:
    ensure_topics(kafka, name)
    warm = len(log) - BACKLOG - FRESH
    send(kafka, name, log[:warm])
    tail = Tail(kafka, name)
    try:
        with service(code, kafka, name) as url:
            began_s = time.monotonic()
            wait_until(lambda: epoch_of(url, name) >= warm, "the first epochs", START_S)
            started_s = time.monotonic() - began_s
            began_s = time.monotonic()
            send(kafka, name, log[warm : warm + BACKLOG])
            wait_until(lambda: epoch_of(url, name) >= warm + BACKLOG, "the backlog", LIMIT_S)
            tables_s = time.monotonic() - began_s
            wait_until(lambda: tail.epoch() >= warm + BACKLOG, "the topic", LIMIT_S)
            backlog_s = tail.at(warm + BACKLOG) - began_s
            topic, tables = fresh(kafka, name, log, url, tail)
        return {
            "start_to_first_data_s": started_s,
            "backlog_tables_per_s": BACKLOG / tables_s,
            "backlog_topic_per_s": BACKLOG / backlog_s,
            "fresh_topic_p50_s": topic,
            "fresh_tables_p50_s": tables,
        }
    finally:
        tail.close()


def fresh(kafka: str, name: str, log: list[bytes], url: str, tail: Tail) -> tuple[float, float]:
    """One epoch a second: the median time to the topic and to the tables."""
    sent_s: dict[int, float] = {}
    tables_s: dict[int, float] = {}
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.05):
            tables_s.setdefault(epoch_of(url, name), time.monotonic())

    thread = threading.Thread(target=look)
    thread.start()
    for index in range(len(log) - FRESH, len(log)):
        sent_s[index + 1] = time.monotonic()
        send(kafka, name, [log[index]])
        time.sleep(1)
    wait_until(lambda: max(tables_s) >= len(log) and tail.epoch() >= len(log), "the end", LIMIT_S)
    stop.set()
    thread.join()
    topic = [tail.at(epoch) - sent for epoch, sent in sent_s.items()]
    tables = [
        min(when for found, when in tables_s.items() if found >= epoch) - sent
        for epoch, sent in sent_s.items()
    ]
    return statistics.median(topic), statistics.median(tables)


def fleet(code: Path, kafka: str, name: str, log: list[bytes]) -> dict[str, float]:
    names = [f"{name}-{number}" for number in range(FLEET)]
    for each in names:
        ensure_topics(kafka, each)
        send(kafka, each, log[:1])
    with service(code, kafka, names[0], f"{name}-.*") as url:

        def all_at(epoch: int) -> bool:
            return all(epoch_of(url, each) >= epoch for each in names)

        wait_until(lambda: all_at(1), "the first epoch of all", START_S)
        began_s = time.monotonic()
        for each in names:
            send(kafka, each, log[1:2])
        wait_until(lambda: all_at(2), "the second epoch of all", LIMIT_S)
        return {f"{FLEET}_clusters_x_1_epoch_s": time.monotonic() - began_s}


def main() -> None:
    here = Path(__file__).resolve().parents[2]
    codes = [here, *(Path(argument).resolve() for argument in sys.argv[1:])]
    log = make_log(BACKLOG + FRESH + 100)
    with tempfile.TemporaryDirectory() as folder, local_broker(Path(folder)) as kafka:
        for number, code in enumerate(codes):
            load_before = os.getloadavg()[0]
            found = one_cluster(code, kafka, f"one{number}", log)
            found |= fleet(code, kafka, f"fleet{number}", log)
            loads = {"load_before": load_before, "load_after": os.getloadavg()[0]}
            print(json.dumps({"code": str(code), **found, **loads}), flush=True)


if __name__ == "__main__":
    main()
