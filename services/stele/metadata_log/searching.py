"""Queries on the whole history: /v1/epochs/search and /v1/epochs/stats, one slice per call.

Only one query runs at a time, so that they do not take over the process.
"""

import asyncio
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from stele.domain.epoch_search import FOR_EVER_MS, Question, ids_of
from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.view import epoch_view
from stele.log.history import History
from stele.log.search import count, search
from stele.metadata_log.questions import fact_names, limit_of, number, one_of
from stele.metadata_log.writer import Writer
from stele.runtime.http_encoding import respond

DEFAULT_FOUND: Final = 20
MAX_FOUND: Final = 1000
MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""Size limit of an answer with several epochs. The client continues from its end."""


class Searching:
    """The handlers of searches and statistics."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._turn = asyncio.Lock()

    def handlers(self) -> dict[str, Any]:
        """Return the handlers by path."""
        return {"/v1/epochs/search": self.search, "/v1/epochs/stats": self.stats}

    async def search(self, request: Request) -> Response:
        question, newest = _question_of(request, self._writer.image), self._writer.image.epoch
        limit = limit_of(request, DEFAULT_FOUND, MAX_FOUND)
        before = number(request, "before", newest + 1)
        async with self._turn:
            found = await search(self._writer.history, question, before, limit)
        shown, next_before = await asyncio.to_thread(as_json, found.epochs), found.next_before
        if len(shown) < len(found.epochs):
            next_before = found.epochs[len(shown) - 1].epoch
        head = {
            "newest": newest,
            "looked_at": found.looked_at,
            "next_before": next_before,
            **_deleted(self._writer.history),
        }
        body = msgspec.json.encode(head)[:-1] + b',"epochs":[' + b",".join(shown) + b"]}"
        return await respond(request, body)

    async def stats(self, request: Request) -> Response:
        history, newest = self._writer.history, self._writer.image.epoch
        first = max(history.oldest + 1, number(request, "from", 1))
        last = min(newest, number(request, "to", newest))
        async with self._turn:
            found = await count(history, first, last)
        head = {
            "newest": newest,
            "next_from": found.last + 1 if 0 < found.last < last else 0,
            "losers": self._writer.losers,
            "strays": self._writer.strays,
            **_deleted(history),
            "stats": found,
        }
        return await respond(request, msgspec.json.encode(head))


def _deleted(history: History) -> dict[str, object]:
    """Return where the archive begins, and the stores that hold deleted epochs."""
    return {"begins": history.oldest, "stores": history.stores}


def _question_of(request: Request, image: Image) -> Question:
    given = request.query_params
    refused = one_of("refused", given.get("refused", "false"), ("true", "false"))
    about = given.get("about", "")
    return Question(
        actor=given.get("actor", ""),
        command=given.get("command", ""),
        request=given.get("request", ""),
        facts=fact_names(request),
        about=ids_of(image, about) if about else frozenset(),
        text=tuple(given.get("text", "").split()),
        refused=refused == "true",
        since_ms=number(request, "since_ms", 0),
        until_ms=number(request, "until_ms", FOR_EVER_MS),
    )


def as_json(epochs: list[Epoch]) -> list[bytes]:
    """Encode each epoch as JSON, up to ``MAX_ANSWER_BYTES``, but at least one if there is one."""
    shown, size_bytes = list[bytes](), 0
    for epoch in epochs:
        part = msgspec.json.encode(epoch_view(epoch))
        size_bytes += len(part)
        if shown and size_bytes > MAX_ANSWER_BYTES:
            break
        shown.append(part)
    return shown
