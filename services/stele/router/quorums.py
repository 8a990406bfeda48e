"""Asking all replicas of a key at once, until enough of them have done it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from stele.router.errors import StaleRoute, Unavailable
from stele.router.routes import Place, Replicas

A = TypeVar("A")
Send = Callable[[Place], Awaitable[A]]
"""Asks one replica; returns when it has done it. Raises StaleRoute when it refuses the version, and anything
else, CancelledError too, when it did not do it or it is not known whether it did.
"""

_under_way: Final = set[asyncio.Task[object]]()
"""Writes that nobody waits for any more: the other replicas are to have them too."""


async def write_quorum(replicas: Replicas, send: Send[A], timeout_s: float = 5.0) -> dict[str, A]:
    """Ask all write replicas; the answers by node once they are a write quorum. The others go on.

    Raises StaleRoute and Unavailable, after either of which the write may be at some replicas: send it again
    with the same timestamp, or read. ``timeout_s`` ends each call.
    """
    return await _ask(replicas, replicas.writes, send, replicas.written, timeout_s, lasting=True)


async def read_quorum(replicas: Replicas, send: Send[A], timeout_s: float = 5.0) -> dict[str, A]:
    """Ask all read replicas; the answers by node once they are a read quorum, of which one at least has all
    that was acknowledged before. Raises StaleRoute, Unavailable.
    """
    return await _ask(replicas, replicas.reads, send, replicas.read, timeout_s, lasting=False)


async def _ask(
    replicas: Replicas,
    nodes: Iterable[str],
    send: Send[A],
    enough: Callable[[set[str]], bool],
    timeout_s: float,
    *,
    lasting: bool,
) -> dict[str, A]:
    calls = {
        asyncio.ensure_future(_call(send, replicas.place(node_id), timeout_s)): node_id
        for node_id in nodes
    }
    answers, refused = dict[str, A](), dict[str, str]()
    waiting = set(calls)
    try:
        while not enough({*answers}):
            if not enough({*answers, *(calls[task] for task in waiting)}):
                raise _unavailable(replicas, answers, refused)
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            stale: StaleRoute | None = None
            for task in done:
                if task.cancelled():  # what it waited for was: that says nothing of the others
                    refused[calls[task]] = "the call was cancelled"
                    continue
                error = task.exception()
                if error is None:
                    answers[calls[task]] = task.result()
                    continue
                refused[calls[task]] = str(error) or repr(error)
                stale = error if isinstance(error, StaleRoute) else stale
            if stale is not None and not enough({*answers}):
                raise stale
        return answers
    finally:
        for task in calls:
            if lasting:
                _under_way.add(task)
                task.add_done_callback(_ended)
            else:
                task.cancel()
                task.add_done_callback(_ended)


async def _call(send: Send[A], place: Place, timeout_s: float) -> A:
    try:
        async with asyncio.timeout(timeout_s):
            return await send(place)
    except TimeoutError:
        raise TimeoutError(f"{place.address} did not answer within {timeout_s:g} s") from None


def _ended(task: asyncio.Task[A]) -> None:
    """Its error was looked at where it counted."""
    _under_way.discard(task)
    if not task.cancelled():
        task.exception()


def _unavailable(replicas: Replicas, answers: dict[str, A], refused: dict[str, str]) -> Unavailable:
    told = "; ".join(f"{node_id}: {why}" for node_id, why in sorted(refused.items())) or "none"
    return Unavailable(
        f"Only {sorted(answers)} of {list(replicas.writes)} did it ({told}), which is no quorum. See who is"
        " down: `stele nodes`.",
        frozenset(answers),
        refused,
    )
