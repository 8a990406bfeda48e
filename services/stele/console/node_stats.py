"""Bytes, requests and latency of each node, as the nodes themselves report them."""

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from stele.console.upstream import Upstream
from stele.console.views import addresses_of
from stele.domain.image import Image
from stele.runtime.answers.node import NodeView

T = TypeVar("T")

EVERY_S: Final = 5.0
"""Least time between two samples. All pages share a sample."""
LIMIT_S: Final = 2.0
"""A node that takes longer is missing in a sample."""
MOST_SAMPLES: Final = 720
"""One hour, if a page asks all the time."""
SUMS: Final = {
    "stele_node_request_seconds_count": "requests",
    "stele_node_request_seconds_sum": "seconds",
}


class NodeSample(msgspec.Struct, frozen=True, kw_only=True):
    """Values of one node. ``requests`` and ``seconds`` are sums since its process started.

    Bytes and keys are of all that the node stores, and None if it does not answer.
    """

    bytes: int | None = None
    keys: int | None = None
    requests: float | None = None
    seconds: float | None = None


class NodesSample(msgspec.Struct, frozen=True, kw_only=True):
    """Values of all nodes at a time (ms since 1970).

    ``rates`` are the data requests per second that each node coordinated since the sample before,
    and ``latencies`` their mean time in ms.
    """

    at_ms: int
    nodes: dict[str, NodeSample]
    rates: dict[str, float]
    latencies: dict[str, float]


class NodesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Samples that the console took while pages asked, the oldest first."""

    every_ms: int
    samples: tuple[NodesSample, ...]


class NodeStats:
    """Takes samples on demand, and keeps those of the last hour."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._samples = deque[NodesSample](maxlen=MOST_SAMPLES)
        self._turn = asyncio.Lock()
        self._next_s = 0.0

    async def answer(self, image: Image, node_id: str = "") -> NodesAnswer:
        """Return the newest sample of all nodes, or all samples of one node.

        Take a new sample first if the last one is old.
        """
        async with self._turn:
            if time.monotonic() >= self._next_s:
                self._samples.append(await self._sample(image))
                self._next_s = time.monotonic() + EVERY_S
        every_ms = round(1000 * EVERY_S)
        if not node_id:
            return NodesAnswer(every_ms=every_ms, samples=(self._samples[-1],))
        own = tuple(_only(sample, node_id) for sample in self._samples)
        return NodesAnswer(every_ms=every_ms, samples=own)

    async def _sample(self, image: Image) -> NodesSample:
        urls = addresses_of(image)
        found = await asyncio.gather(*(self._node(*each) for each in urls.items()))
        now = NodesSample(
            at_ms=time.time_ns() // 1_000_000,
            nodes=dict(zip(urls, found, strict=True)),
            rates={},
            latencies={},
        )
        return with_rates(self._samples[-1], now) if self._samples else now

    async def _node(self, name: str, url: str) -> NodeSample:
        view, metrics = await asyncio.gather(
            self._upstream.body(f"{url}/v1/node", LIMIT_S),
            self._upstream.body(f"{url}/metrics", LIMIT_S),
        )
        sums = sums_of(metrics.decode(errors="replace"))
        try:
            found = msgspec.json.decode(view, type=NodeView)
        except (msgspec.DecodeError, RecursionError):
            return NodeSample()
        if found.node_id != name:  # another node at the address
            return NodeSample()
        return NodeSample(bytes=found.bytes, keys=found.keys, **sums)


def _only(sample: NodesSample, node_id: str) -> NodesSample:
    def of(values: Mapping[str, T]) -> dict[str, T]:
        return {node_id: values[node_id]} if node_id in values else {}

    return NodesSample(
        at_ms=sample.at_ms,
        nodes=of(sample.nodes),
        rates=of(sample.rates),
        latencies=of(sample.latencies),
    )


def sums_of(metrics: str) -> dict[str, float]:
    """Return ``requests`` and ``seconds`` of the node's data requests, over all kinds.

    The result is empty if there are no metrics or they are unreadable. A node that has served no
    request yet has metrics without these samples.
    """
    sums = {"requests": 0.0, "seconds": 0.0}
    try:
        for family in text_string_to_metric_families(metrics):
            for sample in family.samples:
                if sample.name in SUMS:
                    sums[SUMS[sample.name]] += sample.value
    except ValueError:
        return {}
    return sums if metrics else {}


def with_rates(before: NodesSample, now: NodesSample) -> NodesSample:
    """Return the sample with rates and latencies since the one before.

    A node without both samples, or that restarted meanwhile, has none.
    """
    rates, latencies = dict[str, float](), dict[str, float]()
    seconds = (now.at_ms - before.at_ms) / 1000
    for name, node in now.nodes.items():
        old = before.nodes.get(name)
        if old is None or old.requests is None or node.requests is None or seconds <= 0:
            continue
        count = node.requests - old.requests
        if count < 0:
            continue
        rates[name] = round(count / seconds, 2)
        if count and node.seconds is not None and old.seconds is not None:
            latencies[name] = round(1000 * (node.seconds - old.seconds) / count, 3)
    return msgspec.structs.replace(now, rates=rates, latencies=latencies)
