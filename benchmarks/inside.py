"""What one process can do next to the broker: `python -m benchmarks.inside <what> <bootstrap> ...`.

``raw``: produce a record and consume it again, with confluent-kafka alone. ``commit``: the service's own
writer, asked without HTTP. ``replay``: the log consumed raw, and folded to an image. Prints JSON.
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid

import msgspec
import uvloop
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks import payload
from benchmarks.core import chain
from benchmarks.load import Clock
from benchmarks.numbers import Measured, Rate, measured
from stele.log.brokers import Brokers
from stele.log.flows import flow_topic
from stele.log.fold import Fold
from stele.log.kafka import KafkaLog
from stele.log.port import Record
from stele.metadata_log.settings import MetadataLogSettings
from stele.metadata_log.writer import Writer
from stele.runtime.kafka import ensure_topics
from stele.runtime.service import collect_seldom

TIMEOUT_S = 30.0


def raw(bootstrap: str, clients: int, seconds: float) -> Measured:
    """``clients`` records in flight on a topic like the log's."""
    cluster = f"raw{uuid.uuid4().hex[:8]}"
    ensure_topics(Brokers(bootstrap), cluster)
    topic = flow_topic(cluster, "epochs")
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
            "delivery.report.only.error": True,
        }
    )
    consumer = _consumer(bootstrap, topic, 0)
    value = b"v" * payload.RECORD_BYTES
    sent_s = list[float]()
    clock = Clock(seconds)

    def send() -> None:
        sent_s.append(time.perf_counter())
        producer.produce(topic, value)

    for _ in range(clients):
        send()
    running = True
    while running:
        first = consumer.poll(TIMEOUT_S)
        assert first is not None
        for message in (first, *consumer.consume(500, 0)):
            assert message.error() is None
            offset = message.offset()
            assert offset is not None
            running = clock.note(sent_s[offset]) and running
            send()
        producer.poll(0)
    producer.flush(TIMEOUT_S)
    consumer.close()
    return measured("raw produce + consume", clients, clock.latencies_s, seconds)


async def commit(bootstrap: str, clients: int, seconds: float) -> Measured:
    """Commits of the service's writer in this process."""
    cluster = f"own{uuid.uuid4().hex[:8]}"
    await asyncio.to_thread(ensure_topics, Brokers(bootstrap), cluster)
    settings = MetadataLogSettings(cluster=cluster, found="auto")
    writer = Writer(KafkaLog(Brokers(bootstrap), flow_topic(cluster, "epochs")), settings)
    await writer.start()
    clock = Clock(seconds)

    async def client(number: int) -> None:
        running = True
        while running:
            sent_s = time.perf_counter()
            outcome = await writer.commit(payload.envelope(number), TIMEOUT_S)
            assert outcome.applied
            running = clock.note(sent_s)

    await asyncio.gather(*(client(number) for number in range(clients)))
    await writer.close()
    return measured("commit inside the service", clients, clock.latencies_s, seconds)


def fill(bootstrap: str, topic: str, count: int) -> Rate:
    """Make a log of ``count`` epochs by the production pipeline, and append it."""
    records = chain([payload.envelope(number) for number in range(count - 1)])
    began_s = time.perf_counter()
    producer = Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.messages": 2 * count})
    for record in records:
        producer.produce(topic, record)
    assert producer.flush(TIMEOUT_S) == 0
    return Rate("raw produce", count, time.perf_counter() - began_s)


def consume(bootstrap: str, topic: str, count: int) -> Rate:
    """Raw consumption of the log's first ``count`` records."""
    seen, began_s = 0, time.perf_counter()
    consumer = _consumer(bootstrap, topic, 0)  # it fetches from here on: that is part of the time
    while seen < count:
        first = consumer.poll(TIMEOUT_S)
        assert first is not None
        seen += sum(len(m.value() or b"") > 0 for m in (first, *consumer.consume(2000, 0)))
    seconds = time.perf_counter() - began_s
    consumer.close()
    return Rate("raw consume", seen, seconds)


async def replay(bootstrap: str, topic: str, count: int) -> Rate:
    """The same through KafkaLog and Fold: what a process does at its start."""
    log, fold, done = KafkaLog(Brokers(bootstrap), topic), Fold(), asyncio.Event()

    def on_records(records: list[Record]) -> None:
        for offset, value in records:
            fold.offer(offset, value)
        if fold.next_offset >= count:
            done.set()

    began_s = time.perf_counter()
    log.follow(0, on_records, lambda error: print(error, file=sys.stderr))
    await asyncio.wait_for(done.wait(), 10 * TIMEOUT_S)
    seconds = time.perf_counter() - began_s
    await log.close()
    return Rate("replay to an image", fold.image.epoch, seconds)


def _consumer(bootstrap: str, topic: str, offset: int) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.min.bytes": 1,
        }
    )
    consumer.assign([TopicPartition(topic, 0, offset)])
    return consumer


def main(what: str, bootstrap: str, *more: str) -> Measured | Rate:
    collect_seldom()  # as every service does
    match what:
        case "raw":
            return raw(bootstrap, int(more[0]), float(more[1]))
        case "commit":
            return uvloop.run(commit(bootstrap, int(more[0]), float(more[1])))
        case "fill":
            return fill(bootstrap, more[0], int(more[1]))
        case "consume":
            return consume(bootstrap, more[0], int(more[1]))
        case _:
            return uvloop.run(replay(bootstrap, more[0], int(more[1])))


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(main(*sys.argv[1:])).decode() + "\n")
