"""Arbitrary reports of processes: each can only spoil its own part of the page."""

import pytest

from stele.console.watch import MOST_TEXT, Watch
from stele.runtime.transport import HttpReply


class Upstream:
    """One process, which answers this."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    async def one(self, url: str, limit_s: float) -> HttpReply:
        return HttpReply(200, self.body)


def watching(body: bytes) -> Watch:
    watch = object.__new__(Watch)
    watch._upstream = Upstream(body)  # type: ignore[assignment]
    return watch


@pytest.mark.parametrize(
    "body", [b'{"ok":true,"x":' + b"[" * 5000 + b"]" * 5000 + b"}", b"no JSON", b"[]"]
)
async def test_an_answer_that_is_none_is_said_of_the_process_that_gave_it(body: bytes) -> None:
    shown = await watching(body)._process("node n1", "http://n1")
    assert (shown.up, shown.ok) == (True, False)
    assert "none of a service of this project" in shown.reason


async def test_words_without_end_are_cut_before_every_page_is_sent_them() -> None:
    body = b'{"ok":false,"epoch":0,"reason":"' + b"x" * 100_000 + b'"}'
    shown = await watching(body)._process("node n1", "http://n1")
    assert len(shown.reason) <= MOST_TEXT + 4
