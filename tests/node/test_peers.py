"""Each operation is answered, however the call to the other node ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from stele.agent.judging import Code
from stele.domain.routed import REPLICA
from stele.node.peers import BATCH_OPS, CALLS_PER_NODE, Peers
from stele.node.wire import Answer, Compare, Fetch, Read, ReadMode, Scan
from stele.runtime.transport import FAILURES, HttpTransport

UNRESOLVABLE = "http://node..local:80"
"""No resolver accepts it: the client fails with a UnicodeError, which is not its own class."""
MANY = 2 * CALLS_PER_NODE * BATCH_OPS
LIMIT_S = 240.0


def read(token: int) -> Read:
    return Read(
        version=1, epoch=1, coordinating="n2", data_id="d", token=token, key=b"k", mode=ReadMode.CELL
    )  # fmt: skip


@pytest.fixture
async def peers() -> AsyncIterator[Peers]:
    peers = Peers(lambda node_id: {REPLICA: node_id})
    yield peers
    await peers.close()


def send(peers: Peers, address: str, left_s: float = LIMIT_S) -> asyncio.Future[Answer]:
    return peers.send("n1", address, read(1), asyncio.get_running_loop().time() + left_s)


async def test_operations_to_an_unresolvable_address_are_answered_unreachable(peers: Peers) -> None:
    async with asyncio.timeout(LIMIT_S):
        answers = await asyncio.gather(*(send(peers, UNRESOLVABLE) for _ in range(MANY)))
    assert {answer.code for answer in answers} == {Code.UNREACHABLE}
    assert UNRESOLVABLE in answers[0].text and "label empty" in answers[0].text


async def test_a_node_without_a_known_address_is_unreachable(peers: Peers) -> None:
    async with asyncio.timeout(LIMIT_S):
        answer = await send(peers, "")
    assert (answer.code, answer.text) == (Code.UNREACHABLE, "the node has no known address")


async def test_other_requests_to_an_unresolvable_address_do_not_raise(peers: Peers) -> None:
    scan = Scan(epoch=1, session="s", spans=[], cursor=None, limit_bytes=1)
    found = (
        await peers.scan("n1", UNRESOLVABLE, scan),
        await peers.digests("n1", UNRESOLVABLE, Compare(epoch=1, session="s", spans=[])),
        await peers.backup("n1", UNRESOLVABLE, Fetch(epoch=1, session="s", name="f")),
    )
    assert {each.code for each in found} == {Code.UNREACHABLE}


async def test_unexpected_exception_in_a_call_answers_all_operations(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> bytes:
        raise LookupError("a fault of ours")

    monkeypatch.setattr(peers, "_post", fails)
    async with asyncio.timeout(LIMIT_S):
        answers = await asyncio.gather(*(send(peers, "http://n1") for _ in range(MANY)))
    assert {answer.code for answer in answers} == {Code.UNREACHABLE}
    assert "a fault of ours" in answers[-1].text


async def test_cancelled_operation_does_not_block_operations_behind_it(
    peers: Peers,
) -> None:
    late = [send(peers, UNRESOLVABLE, left_s=-1) for _ in range(CALLS_PER_NODE)]
    other = send(peers, UNRESOLVABLE)
    for future in late:
        future.cancel()
    async with asyncio.timeout(LIMIT_S):
        assert (await other).code is Code.UNREACHABLE


async def test_waiting_operations_are_answered_when_the_node_stops(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> bytes:
        await asyncio.Event().wait()
        return b""

    monkeypatch.setattr(peers, "_post", never)
    sent = [send(peers, "http://n1") for _ in range(MANY)]
    await asyncio.sleep(0)
    await peers.close()
    assert all(future.done() for future in sent)


async def test_transport_raises_a_declared_failure_for_an_unresolvable_address() -> None:
    transport = HttpTransport()
    with pytest.raises(FAILURES, match="label empty"):
        await transport.ask(f"{UNRESOLVABLE}/v1/state", lambda *_: None, LIMIT_S)
    await transport.close()
