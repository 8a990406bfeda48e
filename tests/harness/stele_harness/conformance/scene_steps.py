"""Building blocks of scenes: agents that join, orders and their reports, judged requests."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec

from stele.agent.probing import JUDGE_PATH, ROW_PATH
from stele.domain.messages import Order
from stele.domain.names import NodeState, ReportStatus
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN, RangeReplicas
from stele.domain.routed import TABLE_VERSION, Routed
from stele_harness.conformance.cluster import KitCluster
from stele_harness.conformance.rules import Wrong
from stele_harness.conformance.values import meant_for

KEYSPACE: Final = "library"
JOIN_S: Final = 60.0
ANSWER_S: Final = 20.0
AGAIN_S: Final = 2.0
SILENCE_S: Final = 2.0
"""Time without a report after which an order counts as refused."""
HTTP_S: Final = 10.0
NO_CONTENT: Final = 204
NOT_FOUND: Final = 404

Scene = Callable[[KitCluster], Awaitable[None]]
Asked = tuple[Routed, str]
"""A request, and the expected code of the refusal; empty: it would be served."""


async def have(cluster: KitCluster, *names: str) -> None:
    """Make these agents members: those that were not started yet join."""
    missing = [name for name in names if name not in cluster.agents]
    for name in missing:
        cluster.start_agent(name)
    for name in missing:
        await is_member(cluster, name)


async def is_member(cluster: KitCluster, name: str, rule: str = "joins") -> None:
    normal = lambda: cluster.state_of(name) is NodeState.NORMAL  # noqa: E731
    await cluster.until(normal, rule, name, "membership", JOIN_S)
    await acknowledges(cluster, name)


async def acknowledges(cluster: KitCluster, name: str) -> None:
    await cluster.until(lambda: cluster.has_spoken(name), "heartbeat", name, "ack", JOIN_S)
    cluster.watch.expect_acks(name, asyncio.get_running_loop().time())


async def at_rest(cluster: KitCluster, *names: str) -> None:
    """Wait until nothing is under way and these agents have acknowledged that.

    A version that is not fenced yet makes no request stale.
    """

    def is_at_rest(name: str) -> bool:
        image = cluster.image
        clean = not any(node.cleanup_session() for node in image.membership.nodes.values())
        still = image.topology.settled() and not image.topology.transitions and clean
        return still and cluster.watch.epoch_of(name) >= image.epoch

    for name in names:
        what = "ack of the newest fence, with nothing under way"
        await cluster.until(lambda name=name: is_at_rest(name), "reads-on", name, what, JOIN_S)  # type: ignore[misc]


async def answered(cluster: KitCluster, order: Order, status: ReportStatus, rule: str) -> None:
    """Wait until an order is reported with this status.

    The order is sent again meanwhile, because an agent whose last look at the log is too old takes
    none.
    """
    next_s = asyncio.get_running_loop().time() + AGAIN_S

    def given() -> bool:
        nonlocal next_s
        if cluster.watch.status_of(order) is status:
            return True
        if (now_s := asyncio.get_running_loop().time()) >= next_s:
            next_s = now_s + AGAIN_S
            cluster.send(order)
        return False

    what = f"{status} of the order with index {order.index}"
    await cluster.until(given, rule, order.node_id, what, ANSWER_S)


def forbid(cluster: KitCluster, order: Order, rule: str, what: str) -> None:
    cluster.watch.forbid(order, rule, what)
    cluster.send(order)


def token_of(row: RangeReplicas) -> int:
    """Return a token of the row's range."""
    return MAX_TOKEN if row.end == MIN_TOKEN else row.end


def routed(cluster: KitCluster, data_id: str, row: RangeReplicas, coordinating: str) -> Routed:
    """Return a current request for this row, for any replica."""
    image = cluster.image
    return Routed(
        version=image.topology.version,
        epoch=image.epoch,
        data_id=data_id,
        token=token_of(row),
        replica="",
        coordinating=coordinating,
        log_id=image.log_id.hex(),
    )


async def ask(cluster: KitCluster, name: str, asked: Mapping[str, Asked]) -> None:
    """Let the agent judge requests, by the rule that each one tests. Raises Wrong.

    An agent without that path is skipped, and the result states this.
    """
    limit = aiohttp.ClientTimeout(total=HTTP_S)
    async with aiohttp.ClientSession(timeout=limit) as http:
        for rule, (request, expected) in asked.items():
            answer = await _judged(cluster, http, name, JUDGE_PATH, request)
            if answer.status == NOT_FOUND:
                cluster.not_asked = f"{JUDGE_PATH} is not there"
                return
            if answer.code != expected:
                what = f"it answers '{answer.code or 'served'}', not '{expected or 'served'}'"
                raise Wrong(rule, name, what)


class Judged(NamedTuple):
    """The answer of an agent: the code of a refusal, and the table's version if it was sent."""

    status: int
    code: str
    table_version: int


async def ask_row(cluster: KitCluster, name: str, request: Routed, *columns: str) -> Judged | None:
    """Let the agent judge a write of a row. Return None if it keeps no columns.

    The result of the kit states then that such rows were not judged.
    """
    limit = aiohttp.ClientTimeout(total=HTTP_S)
    async with aiohttp.ClientSession(timeout=limit) as http:
        row = msgspec.json.encode(dict.fromkeys(columns))
        answer = await _judged(cluster, http, name, ROW_PATH, request, row)
    if answer.status == NOT_FOUND:
        cluster.no_columns = f"{ROW_PATH} is not there"
        return None
    return answer


async def _judged(
    cluster: KitCluster,
    http: aiohttp.ClientSession,
    name: str,
    path: str,
    request: Routed,
    row: bytes = b"",
) -> Judged:
    """Return the answer. Try again for ANSWER_S.

    An agent that was started again may have announced its new address only a moment ago.
    """
    end_s = asyncio.get_running_loop().time() + ANSWER_S * cluster.patience
    while True:
        node = cluster.image.node(name)
        assert node is not None
        try:
            url, headers = node.address + path, meant_for(name, request).headers()
            async with http.post(url, headers=headers, data=row or None) as answer:
                return _answer(answer.status, answer.headers, await answer.read())
        except aiohttp.ClientConnectionError:
            if asyncio.get_running_loop().time() > end_s:
                raise
        await cluster.pause()


def _answer(status: int, headers: Mapping[str, str], body: bytes) -> Judged:
    if status == NO_CONTENT:
        return Judged(status, "", int(headers.get(TABLE_VERSION, "0")))
    try:
        error = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError:
        error = {}
    version = error.get("details", {}).get("table_version", 0)
    return Judged(status, str(error.get("code", f"status {status}")), int(version))
