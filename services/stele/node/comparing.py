"""What a node lacks of a range that another replica has too: found by digests, split where they differ.

A span whose digests are equal is left out. Where they differ it is split further, down to a few rows, and these
are pulled. So what is moved goes with what differs, and not with what is there.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from enum import Enum
from typing import Final

from stele.agent.spans import Span
from stele.node.digests import Digest

FANOUT: Final = 16
LEAF_ROWS: Final = 16
"""So few rows are pulled rather than split: a call more costs more than they do."""
CALL_SPANS: Final = 64
BATCH_SPANS: Final = 256
"""Spans that are pulled together: 16 KiB of each request."""

Digests = list[Digest | None]


class Verdict(Enum):
    """What is to be done about a span."""

    NOTHING = "nothing"
    SPLIT = "split"
    PULL = "pull"


def judged(span: Span, mine: Digest | None, theirs: Digest | None) -> Verdict:
    """None stands for more rows than are summed up at once. What the others have not, they cannot give."""
    if theirs is not None and (theirs == mine or not theirs.keys):
        return Verdict.NOTHING
    if mine is not None and not mine.keys:
        return Verdict.PULL
    many = mine is None or theirs is None or max(mine.keys, theirs.keys) > LEAF_ROWS
    _, start, end = span.bounds()
    return Verdict.SPLIT if many and end - start > 1 else Verdict.PULL


class SourceGone(Exception):
    """The other replica gave no digests."""


async def differing(
    spans: Sequence[Span],
    mine: Callable[[Sequence[Span]], Awaitable[Digests]],
    theirs: Callable[[Sequence[Span]], Awaitable[Digests | None]],
    on_equal: Callable[[Digest], None],
) -> AsyncIterator[list[Span]]:
    """Spans to pull, some at a time. Both sides may answer for the first of the spans that they are asked for
    alone. Raises SourceGone.
    """
    waiting, found = deque(spans), list[Span]()
    while waiting:
        asked = [waiting.popleft() for _ in range(min(CALL_SPANS, len(waiting)))]
        ours, others = await asyncio.gather(mine(asked), theirs(asked))
        if not others:
            raise SourceGone
        answered = min(len(ours), len(others))
        waiting.extendleft(reversed(asked[answered:]))
        for span, one, other in zip(asked, ours, others, strict=False):
            verdict = judged(span, one, other)
            if verdict is Verdict.SPLIT:
                waiting.extendleft(reversed(span.split(FANOUT)))
            elif verdict is Verdict.PULL:
                found.append(span)
            elif other is not None:
                on_equal(other)
        if len(found) >= BATCH_SPANS:
            yield found
            found = []
    if found:
        yield found
