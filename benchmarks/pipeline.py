"""`python -m benchmarks.pipeline [folder of another checkout ...]`: how fast the Spark job is.

On one broker, one after the other: the plain consumer, the job of this checkout, those of the others, and the
plain consumer again, for ratios that the load of the machine decides less. One JSON line for each.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import httpx
import msgspec
import psutil
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from stele.domain.commands import AnyCommand, CreateKeyspace, DropKeyspace, Noop
from stele.domain.model.ring import PlacementChanged
from stele.log.brokers import Brokers
from stele.log.codec import decode_epoch, decode_placements_marker, encode_epoch
from stele.log.flows import flow_topic
from stele.placements.settings import default_jars
from stele.runtime.kafka import Topic, ensure_topics, topic_specs
from stele_harness.stack.ports import free_port
from tests.domain.history import three_nodes
from tests.polling import wait_until
from tests.servers import local_broker

BACKLOG = 20_000
FRESH = 30
FLEET = 100
LOOK_S = 0.1
FLEET_LOOK_S = 0.25
"""The answer to a look grows with the fleet: looks at every turn would be measured with the job."""
TOPICS_AT_ONCE = 500
"""More of them at once are refused by the broker."""
CLIENT = httpx.Client(timeout=30)
"""One for all looks: to make one takes as long as a look."""
LIMIT_S = 600.0
START_S = 300.0
KINDS = ("driver", "jvm", "workers")
"""Processes of a job: the one that is started, Spark's JVM below it, and its Python workers."""


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
def service(
    code: Path, kafka: str, cluster: str, pattern: str = ""
) -> Iterator[tuple[str, psutil.Process]]:
    """A process of a checkout, and its address."""
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
            yield url, psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(30)


def epoch_of(url: str, cluster: str) -> int:
    return epochs_of(url).get(cluster, 0)


def epochs_of(url: str) -> dict[str, int]:
    """Return the newest epoch in each cluster's tables, from the metrics, which cost the job least."""
    try:
        text = CLIENT.get(f"{url}/metrics").text
    except httpx.HTTPError:
        return {}
    found = re.findall(r'^stele_placements_epoch{cluster="(.+)"} ([0-9.e+]+)$', text, re.MULTILINE)
    return {cluster: int(float(epoch)) for cluster, epoch in found}


@cache
def producer_of(kafka: str) -> Producer:
    """One for all: the first record of an idempotent producer waits half a second."""
    return Producer({"bootstrap.servers": kafka, "enable.idempotence": True, "linger.ms": 0})


def send(kafka: str, clusters: Sequence[str], values: Sequence[bytes]) -> None:
    """The same records to each cluster."""
    producer = producer_of(kafka)
    for cluster in clusters:
        for value in values:
            produce(producer, flow_topic(cluster, "epochs"), value)
    assert producer.flush(60) == 0


def produce(producer: Producer, topic: str, value: bytes) -> None:
    """Waits while its queue is full."""
    while True:
        try:
            producer.produce(topic, value, partition=0)
        except BufferError:
            producer.poll(0.1)
        else:
            return


class Costs(NamedTuple):
    """Processor seconds and resident bytes of a job, by kind of process."""

    cpu_s: dict[str, float]
    resident_bytes: dict[str, int]

    @staticmethod
    def of(process: psutil.Process) -> Costs:
        cpu_s, resident_bytes = dict.fromkeys(KINDS, 0.0), dict.fromkeys(KINDS, 0)
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                kind = kind_of(process, each)
                cpu_s[kind] += sum(each.cpu_times()[:2])
                resident_bytes[kind] += each.memory_info().rss
        return Costs(cpu_s, resident_bytes)

    def since(self, before: Costs) -> dict[str, float]:
        """Milliseconds of processors."""
        return {kind: 1000 * (self.cpu_s[kind] - before.cpu_s[kind]) for kind in KINDS}


def kind_of(job: psutil.Process, process: psutil.Process) -> str:
    if process.pid == job.pid:
        return "driver"
    return "jvm" if process.name() == "java" else "workers"


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
                self.seen_s.setdefault(marked(message.value() or b""), time.monotonic())


def marked(value: bytes) -> int:
    """The epoch of a marker; earlier builds wrote it as JSON."""
    if value.startswith(b"{"):
        return int(msgspec.json.decode(value)["epoch"])
    return decode_placements_marker(value).epoch


def one_cluster(code: Path, kafka: str, name: str, log: list[bytes]) -> dict[str, float]:
    ensure_topics(Brokers(kafka), name)
    warm = len(log) - BACKLOG - FRESH
    send(kafka, [name], log[:warm])
    tail = Tail(kafka, name)
    try:
        with service(code, kafka, name) as (url, process):
            began_s = time.monotonic()
            wait_until(lambda: epoch_of(url, name) >= warm, "the first epochs", START_S)
            started_s, started = time.monotonic() - began_s, Costs.of(process)
            began_s = time.monotonic()
            send(kafka, [name], log[warm : warm + BACKLOG])
            wait_until(lambda: epoch_of(url, name) >= warm + BACKLOG, "the backlog", LIMIT_S)
            tables_s = time.monotonic() - began_s
            wait_until(lambda: tail.epoch() >= warm + BACKLOG, "the topic", LIMIT_S)
            backlog_s, done = tail.at(warm + BACKLOG) - began_s, Costs.of(process)
            topic, tables = fresh(kafka, name, log, url, tail)
            last = Costs.of(process)
        return {
            "start_to_first_data_s": started_s,
            **named("start_{}_cpu_s", started.cpu_s),
            "backlog_tables_per_s": BACKLOG / tables_s,
            "backlog_topic_per_s": BACKLOG / backlog_s,
            **named("backlog_{}_cpu_ms_per_epoch", done.since(started), BACKLOG),
            **spread("fresh_topic", topic),
            **spread("fresh_tables", tables),
            **named("fresh_{}_cpu_ms_per_epoch", last.since(done), FRESH),
            **named("{}_resident_mb", last.resident_bytes, 2**20),
        }
    finally:
        tail.close()


def named(form: str, values: Mapping[str, float], by: float = 1) -> dict[str, float]:
    return {form.format(kind): value / by for kind, value in values.items()}


def spread(name: str, seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        f"{name}_p50_s": statistics.median(ordered),
        f"{name}_p99_s": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
        f"{name}_max_s": ordered[-1],
    }


def fresh(
    kafka: str, name: str, log: list[bytes], url: str, tail: Tail
) -> tuple[list[float], list[float]]:
    """One epoch a second: the times to the topic and to the tables."""
    sent_s: dict[int, float] = {}
    tables_s: dict[int, float] = {}
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(LOOK_S):
            tables_s.setdefault(epoch_of(url, name), time.monotonic())

    thread = threading.Thread(target=look)
    thread.start()
    for index in range(len(log) - FRESH, len(log)):
        sent_s[index + 1] = time.monotonic()
        send(kafka, [name], [log[index]])
        time.sleep(1)
    wait_until(lambda: max(tables_s) >= len(log) and tail.epoch() >= len(log), "the end", LIMIT_S)
    stop.set()
    thread.join()
    topic = [tail.at(epoch) - sent for epoch, sent in sent_s.items()]
    tables = [
        min(when for found, when in tables_s.items() if found >= epoch) - sent
        for epoch, sent in sent_s.items()
    ]
    return topic, tables


def plain(kafka: str, log: list[bytes]) -> dict[str, float]:
    """Measure the plain consumer on the same log, in a separate process."""
    name = f"plain{time.monotonic_ns()}"
    ensure_topics(Brokers(kafka), name)
    send(kafka, [name], log)
    with tempfile.TemporaryDirectory() as folder:
        argv = [
            sys.executable,
            "-m",
            "benchmarks.pipeline_plain",
            kafka,
            name,
            str(len(log)),
            folder,
        ]
        done = subprocess.run(argv, stdout=subprocess.PIPE, check=True, timeout=LIMIT_S)
    return {"plain_per_s": len(log) / float(done.stdout)}


def changes_ranges(log: Sequence[bytes]) -> int:
    """Return the offset of a late record that changes the placements table and its topic."""
    kinds = [{type(fact) for fact in decode_epoch(value).facts} for value in log[:60]]
    return max(offset for offset, found in enumerate(kinds) if PlacementChanged in found)


def make_topics(kafka: str, clusters: Sequence[str]) -> None:
    """Make the topics of each cluster that the job reads, writes, and announces itself by."""
    specs = topic_specs(1)
    admin = AdminClient({"bootstrap.servers": kafka})
    new = [
        NewTopic(flow_topic(cluster, topic), 1, 1, config=dict(specs[topic].config))
        for cluster in clusters
        for topic in (Topic.EPOCHS, Topic.PLACEMENTS, Topic.COMMANDS, Topic.OUTCOMES)
    ]
    for at in range(0, len(new), TOPICS_AT_ONCE):
        for each in admin.create_topics(new[at : at + TOPICS_AT_ONCE]).values():
            each.result(LIMIT_S)


def fleet(
    code: Path, kafka: str, name: str, log: list[bytes], count: int = FLEET
) -> dict[str, float]:
    names = [f"{name}-{number}" for number in range(count)]
    make_topics(kafka, names)
    at = changes_ranges(log)
    send(kafka, names, log[:at])
    with service(code, kafka, names[0], f"{name}-.*") as (url, process):

        def all_at(epoch: int) -> bool:
            time.sleep(FLEET_LOOK_S)
            found = epochs_of(url)
            return all(found.get(each, 0) >= epoch for each in names)

        began_s = time.monotonic()
        wait_until(lambda: all_at(at), "the first epochs of all", LIMIT_S)
        first_s = time.monotonic() - began_s
        before = Costs.of(process)
        began_s = time.monotonic()
        send(kafka, names, [log[at]])
        sent_s = time.monotonic() - began_s
        wait_until(lambda: all_at(at + 1), "the next epoch of all", LIMIT_S)
        took_s, after = time.monotonic() - began_s, Costs.of(process)
    return {
        f"{count}_clusters_first_s": first_s,
        f"{count}_clusters_x_1_epoch_s": took_s,
        f"{count}_clusters_x_1_epoch_sent_s": sent_s,  # of these: until the broker had taken all
        **named(f"{count}_clusters_{{}}_cpu_ms_per_epoch", after.since(before), count),
        **named(f"{count}_clusters_{{}}_resident_mb", after.resident_bytes, 2**20),
    }


def main() -> None:
    here = Path(__file__).resolve().parents[1]
    codes = [here, *(Path(argument).resolve() for argument in sys.argv[1:])]
    log = make_log(BACKLOG + FRESH + 100)
    with tempfile.TemporaryDirectory() as folder, local_broker(Path(folder)) as kafka:
        print(json.dumps(plain(kafka, log)), flush=True)
        for number, code in enumerate(codes):
            load_before = os.getloadavg()[0]
            found = one_cluster(code, kafka, f"one{number}", log)
            found |= fleet(code, kafka, f"fleet{number}", log)
            loads = {"load_before": load_before, "load_after": os.getloadavg()[0]}
            print(json.dumps({"code": str(code), **found, **loads}), flush=True)
        print(json.dumps(plain(kafka, log)), flush=True)


if __name__ == "__main__":
    main()
