"""A long log: `python -m benchmarks.archive --epochs 1000000`. Archive, starts, and a thousand followers.

Everything on one broker, with real processes. A start is from the spawn of a process until it is well, with the
archive and, for comparison in the same run, by reading the whole topic.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from benchmarks.ring import Figure
from stele.domain.commands import AnyCommand, Envelope, FoundCluster, SetSetting
from stele.domain.facts import Epoch
from stele.domain.model.archive import SNAPSHOT_EPOCHS
from stele.log.brokers import Brokers
from stele.log.chain import FROZEN, FROZEN_BYTES
from stele.log.codec import decode_epoch
from stele.log.flows import flow_topic
from stele.log.fold import BEGINNING_FOR_FOLLOWERS, Fold
from stele.log.follower import LogFollower
from stele.log.kafka import KafkaLog
from stele.log.pipeline import CommitPipeline
from stele.metadata_log.writer import make_ids
from stele.runtime.catch_up import CatchUp
from stele.runtime.kafka import ensure_topics
from stele.runtime.request_ids import new_request_id
from stele.runtime.starting import begin
from stele_harness.stack.broker import BrokerCluster
from stele_harness.stack.ports import free_port
from stele_harness.stack.process import Process, Program, spawn

CLUSTER = "long"
BATCH = 10_000
START_S = 1200.0
POLL_S = 0.02
HEADER_BYTES = 10
ID_CHARS = 36
COMMITS = 100
COMMIT_EVERY_S = 0.1
LAST_EVENTS_S = 5.0


def records(count: int) -> Iterator[bytes]:
    """Yield a founding record and copies of one setting, each with its own ids."""
    sent = list[bytes]()
    pipeline = CommitPipeline(Fold(), make_ids(), asyncio.new_event_loop())
    commands: tuple[AnyCommand, ...] = FoundCluster(f"{CLUSTER}/1"), SetSetting("bench", "v" * 81)
    for offset, command in enumerate(commands):
        pipeline.submit(Envelope(request_id=new_request_id(), command=command))
        sent += pipeline.take_ready().records
        pipeline.on_record(offset, sent[-1])
    yield sent[0]
    epoch: Epoch = decode_epoch(sent[1])
    head, body = sent[1][:HEADER_BYTES], sent[1][FROZEN_BYTES:]
    at = body.index(epoch.request_id.encode())
    before, after = body[:at], body[at + ID_CHARS :]
    log_id, state_id = epoch.log_id, epoch.prev_state_id
    first = int.from_bytes(epoch.state_id, "big")
    for number in range(2, count + 1):
        previous, state_id = state_id, (first + number).to_bytes(16, "big")
        frozen = FROZEN.pack(previous, state_id, log_id, previous, number, number - 1)
        id_ = f"{epoch.request_id[:24]}{number:012x}".encode()
        yield b"".join((head, frozen[HEADER_BYTES:], before, id_, after))


def fill(bootstrap: str, count: int) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 20,
            "queue.buffering.max.messages": 10 * BATCH,
        }
    )
    batch, topic = list[dict[str, Any]](), flow_topic(CLUSTER, "epochs")
    for value in records(count):
        batch.append({"value": value})
        if len(batch) == BATCH:
            _send(producer, topic, batch)
            batch = []
    _send(producer, topic, batch)
    producer.flush()


def _send(producer: Producer, topic: str, batch: list[dict[str, Any]]) -> None:
    while batch:
        taken = producer.produce_batch(topic, batch, partition=0)
        batch = batch[taken:]
        producer.poll(0.05 if batch else 0)


@contextmanager
def process(module: str, directory: Path, bootstrap: str, **more: object) -> Iterator[str]:
    """Run a service's process, and yield its address."""
    name = f"{module}-{time.monotonic_ns()}"
    env = {
        **os.environ,
        "STELE_CLUSTER": CLUSTER,
        "STELE_KAFKA_BOOTSTRAP": bootstrap,
        "STELE_INSTANCE_ID": module.replace("_", "-"),
        "STELE_LOG_LEVEL": "warning",
        **{f"STELE_{key}".upper(): str(value) for key, value in more.items()},
    }
    argv = [sys.executable, "-m", f"stele.{module}"]
    spawned = spawn(Program(name, argv, directory / f"{name}.out", directory / f"{name}.err", env))
    try:
        yield _announced(spawned)
    finally:
        spawned.stop()


def _announced(spawned: Process) -> str:
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s:
        said = spawned.stdout_of_this_run()
        if said.endswith("\n"):
            return str(json.loads(said)["http"])
        assert spawned.poll() is None, spawned.tail()
        time.sleep(POLL_S)
    raise TimeoutError(f"not up within {START_S:g} s: {spawned.tail()}")


def until(url: str, path: str, condition: Callable[[Any], bool]) -> Any:
    with httpx.Client(timeout=60) as client:
        while True:
            found = client.get(url + path).json()
            if condition(found):
                return found
            time.sleep(POLL_S)


def start_s(module: str, directory: Path, bootstrap: str, last: int, **more: object) -> float:
    """From the spawn until it is well at epoch ``last``."""
    began_s = time.perf_counter()
    with process(module, directory, bootstrap, **more) as url:
        until(url, "/healthz", lambda answer: answer["ok"] and answer["epoch"] >= last)
        return time.perf_counter() - began_s


async def missed_s(bootstrap: str, urls: tuple[str, ...], last: int, *, archived: bool) -> float:
    """A reader that has nothing: until it holds epoch ``last``."""
    log, catch_up = KafkaLog(Brokers(bootstrap), flow_topic(CLUSTER, "epochs")), CatchUp(urls)
    began_s = time.perf_counter()
    try:
        start = BEGINNING_FOR_FOLLOWERS
        if archived:
            start, _ = await begin(catch_up, CLUSTER, log.ends, None, decided=False)
        follower = LogFollower(log, start)
        follower.start()
        await follower.wait_for_epoch(last, START_S)
        took_s = time.perf_counter() - began_s
        follower.stop()
        return took_s
    finally:
        await catch_up.close()
        await log.close()


async def followers_ms(url: str, count: int, commits: int) -> list[float]:
    """``count`` connections that follow the log; milliseconds from a commit's request to each one's event."""
    sent, latencies, ready = dict[str, float](), list[float](), asyncio.Semaphore(0)
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def follow() -> None:
            headers = {"accept": "text/event-stream"}
            async with session.get(f"{url}/v1/epochs", headers=headers) as answer:
                ready.release()
                async for line in answer.content:
                    now_s = time.perf_counter()
                    if line.startswith(b"data: "):
                        at = line.find(b'"request_id":"') + 14
                        began_s = sent.get(line[at : at + ID_CHARS].decode())
                        if began_s is not None:
                            latencies.append(1000 * (now_s - began_s))

        tasks = [asyncio.create_task(follow()) for _ in range(count)]
        for _ in tasks:
            await ready.acquire()
        await asyncio.sleep(1)
        for number in range(commits):
            id_ = new_request_id()
            command = {"type": "set_setting", "name": f"bench-{number % 8}", "value": str(number)}
            sent[id_] = time.perf_counter()
            body = {"request_id": id_, "command": command}
            async with session.post(f"{url}/v1/commands", json=body) as answer:
                assert answer.status == 200, await answer.text()
            await asyncio.sleep(COMMIT_EVERY_S)
        await asyncio.sleep(LAST_EVENTS_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return sorted(latencies)


def figures(epochs: int, followers: int, directory: Path, *, replay: bool) -> Iterator[Figure]:
    with ExitStack() as stack:
        brokers = BrokerCluster(directory / "kafka")
        brokers.start()
        stack.callback(brokers.stop)
        brokers.wait_ready()
        bootstrap = brokers.bootstrap
        ensure_topics(Brokers(bootstrap), CLUSTER)
        began_s = time.perf_counter()
        fill(bootstrap, epochs)
        yield Figure(
            "the topic is filled, plain Kafka", epochs / (time.perf_counter() - began_s), "/s"
        )
        port = free_port()
        urls = f"http://127.0.0.1:{port}"
        more = {"catch_up_urls": urls, "http_port": port, "data_dir": directory / "archive"}
        began_s, due = time.perf_counter(), SNAPSHOT_EPOCHS.default
        url = stack.enter_context(process("catch_up", directory, bootstrap, **more))
        until(
            url, "/v1/archive", lambda a: bool(a.get("spans")) and a["spans"][-1]["last"] >= epochs
        )
        yield Figure("archived by one replica", epochs / (time.perf_counter() - began_s), "/s")
        archive = until(
            url,
            "/v1/archive",
            lambda a: bool(a.get("snapshots")) and a["snapshots"][0]["epoch"] > epochs - due,
        )
        yield Figure("the archive, of each epoch", archive["size_bytes"] / epochs, "bytes")
        for module in ("coordinator", "metadata_log"):
            took_s = start_s(module, directory, bootstrap, epochs, catch_up_urls=urls)
            yield Figure(f"start of {module}, by a snapshot", took_s, "s", 3)
            if replay:
                took_s = start_s(module, directory, bootstrap, epochs)
                yield Figure(f"start of {module}, by the whole topic", took_s, "s")
        took_s = asyncio.run(missed_s(bootstrap, (urls,), epochs, archived=True))
        yield Figure("all epochs missed, by a snapshot", took_s, "s", 2)
        if replay:
            took_s = asyncio.run(missed_s(bootstrap, (), epochs, archived=False))
            yield Figure("all epochs missed, by the whole topic", took_s, "s")
        log = stack.enter_context(process("metadata_log", directory, bootstrap, catch_up_urls=urls))
        until(log, "/healthz", lambda answer: bool(answer["ok"]))
        found = asyncio.run(followers_ms(log, followers, COMMITS))
        yield Figure(
            f"{followers} followers: seen of what was to be seen",
            len(found) / (followers * COMMITS),
            "",
        )
        yield Figure("an epoch at a follower, p50", found[len(found) // 2], "ms")
        yield Figure("an epoch at a follower, p99", found[len(found) * 99 // 100], "ms", 250)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.archive", description=__doc__)
    parser.add_argument("--epochs", type=int, default=1_000_000)
    parser.add_argument("--followers", type=int, default=1000)
    parser.add_argument("--no-replay", action="store_true", help="leave the comparison out")
    given = parser.parse_args()
    table = Table("what", "measured", "goal", title=f"{given.epochs:,} epochs")
    with tempfile.TemporaryDirectory(prefix="stele-archive-") as directory:
        for figure in figures(
            given.epochs, given.followers, Path(directory), replay=not given.no_replay
        ):
            goal = f"{figure.goal:g} {figure.unit}" if figure.goal else ""
            table.add_row(figure.what, f"{figure.value:,.2f} {figure.unit}", goal)
            print(figure, flush=True)
    Console().print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
