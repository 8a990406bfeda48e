"""Queries of the state: their parameters, and the image that level, epoch or cursor select."""

import base64
import re
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from starlette.requests import Request

from stele.domain.image import Image
from stele.domain.registry import FACTS
from stele.metadata_log.writer import Writer
from stele.runtime.http import ErrorCode, HttpError

LEVELS: Final = ("local", "barrier", "linearizable")
PAGE_ROWS: Final = 1000
MAX_PAGE_ROWS: Final = 10_000
MAX_NUMBER: Final = 10**18 - 1
"""The largest number of 18 digits."""

_ID: Final = re.compile(r"[0-9a-f]{32}")
_FACT_NAMES: Final = frozenset(fact.__name__ for fact in FACTS)
_PAGING: Final = ("cursor", "limit", "epoch", "level")


class PageCursor(msgspec.Struct, frozen=True, array_like=True):
    """Start of the next page: the state, the number of rows before it, and the query."""

    epoch: int
    state_id: str
    offset: int
    question: int


def level_of(request: Request) -> str:
    return one_of("level", request.query_params.get("level", LEVELS[0]), LEVELS)


def one_of(name: str, value: str, values: Sequence[str]) -> str:
    """Return the value.

    Raises HttpError when it is not in ``values``; if these are empty, any value is accepted.
    """
    if values and value not in values:
        raise invalid(f"{name} is '{value[:40]}'", f"Use one of {', '.join(values)}.")
    return value


def limit_of(request: Request, default: int = PAGE_ROWS, most: int = MAX_PAGE_ROWS) -> int:
    limit = number(request, "limit", default)
    if not 1 <= limit <= most:
        raise invalid(f"limit is {limit}", f"Use 1 to {most}.")
    return limit


def cursor_of(request: Request) -> PageCursor | None:
    """Return the cursor of the request. Raises HttpError when it belongs to another query."""
    text = request.query_params.get("cursor", "")
    if not text:
        return None
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        cursor = msgspec.json.decode(raw, type=PageCursor)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise invalid("the cursor", "Send next_cursor of the page before, unchanged.") from error
    if cursor.question != question_of(request) or cursor.epoch < 0 or cursor.offset < 0:
        raise invalid(
            "the cursor is of another question", "Send the same path and filters for all pages."
        )
    return cursor


def cursor_text(epoch: int, state_id: bytes, offset: int, request: Request) -> str:
    cursor = PageCursor(epoch, state_id.hex(), offset, question_of(request))
    return base64.urlsafe_b64encode(msgspec.json.encode(cursor)).rstrip(b"=").decode()


def question_of(request: Request) -> int:
    """Return the same number for all pages of one query."""
    asked = sorted((k, v) for k, v in request.query_params.items() if k not in _PAGING)
    return zlib.crc32(f"{request.url.path} {asked}".encode())


def filters_of(request: Request) -> dict[str, str]:
    """Return the parameters beside those of paging. ``known_alone`` has checked them before."""
    return {k: v for k, v in request.query_params.items() if k not in _PAGING}


def known_alone(request: Request, known: Iterable[str]) -> None:
    """Raise HttpError for a parameter that is not ``known``."""
    for name in request.query_params:
        if name not in known:
            told = ", ".join(sorted(known))
            hint = f"Use {told}." if told else "It takes no parameters."
            raise invalid(f"there is no '{name[:40]}' here", hint)


def fact_names(request: Request) -> frozenset[str]:
    """Return the names of the requested facts; empty means all.

    Raises HttpError for an unknown one.
    """
    names = frozenset(filter(None, request.query_params.get("facts", "").split(",")))
    unknown = sorted(names - _FACT_NAMES)
    if unknown:
        raise invalid(
            f"there are no facts '{unknown[0][:40]}'", f"Use {', '.join(sorted(_FACT_NAMES))}."
        )
    return names


def number(request: Request, name: str, default: int) -> int:
    given = request.query_params.get(name)
    return default if given is None else parse(name, given)


def parse(name: str, text: str) -> int:
    """Parse a number from 0 to ``MAX_NUMBER``. Epochs have 64 bits."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_NUMBER))):
        raise invalid(f"{name} is '{text[:40]}'", f"Send a whole number, 0 to {MAX_NUMBER}.")
    return int(text)


def resumed_after(request: Request) -> int | None:
    """Return the epoch after which a stream resumes; None without the header."""
    told = request.headers.get("last-event-id", "")
    return parse("Last-Event-ID", told) if told else None


def id_of(request: Request, name: str) -> bytes:
    """Return the ``state_id`` or ``log_id`` of the request; empty when there is none."""
    text = request.query_params.get(name, "")
    if text and not _ID.fullmatch(text):
        raise invalid(f"{name} is '{text[:40]}'", "Send 32 hex digits, as answers have it.")
    return bytes.fromhex(text)


def token(name: str, text: str) -> int:
    """Parse a signed 64-bit token."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        raise invalid(f"{name} is '{text[:60]}'", "Send signed 64-bit tokens.")
    found = int(text)
    if not -(1 << 63) <= found < 1 << 63:
        raise invalid(f"{name} is '{text[:60]}'", "Send signed 64-bit tokens.")
    return found


def invalid(what: str, hint: str) -> HttpError:
    return HttpError(400, ErrorCode.INVALID_REQUEST, f"Not understood: {what}.", hint=hint)


# The image of a query.


KEPT_IMAGES: Final = 16
"""States kept while their pages are read. Images share their structure, so each is cheap."""


class ImageReads:
    """Finds images, and keeps those whose pages were served recently."""

    def __init__(self, writer: Writer, timeout_s: float) -> None:
        self._writer = writer
        self._timeout_s = timeout_s
        self._kept: OrderedDict[int, Image] = OrderedDict()

    async def image(self, request: Request) -> Image:
        """Return the image for ``level`` and ``epoch``.

        Raises the errors of the writer and its history.
        """
        image = await self._at_level(level_of(request))
        epoch = number(request, "epoch", -1)
        return image if epoch < 0 else await self.image_at(epoch)

    async def image_of(self, request: Request, cursor: PageCursor | None) -> Image:
        """Return the image of the cursor: the state of its first page."""
        if cursor is None:
            return await self.image(request)
        image = await self.image_at(cursor.epoch)
        if image.state_id.hex() != cursor.state_id:
            raise HttpError(
                410,
                "cursor_expired",
                f"Epoch {cursor.epoch} of this log is not the state that the cursor is of.",
                hint="Begin again with the first page.",
            )
        return image

    async def image_at(self, epoch: int) -> Image:
        kept = self._kept.get(epoch)
        return await self._writer.history.image_at(epoch) if kept is None else kept

    def keep(self, image: Image) -> None:
        """Keep an image, because the next page will need it."""
        self._kept[image.epoch] = image
        self._kept.move_to_end(image.epoch)
        if len(self._kept) > KEPT_IMAGES:
            self._kept.popitem(last=False)

    async def _at_level(self, level: str) -> Image:
        match level:
            case "barrier":
                return await self._writer.barrier(self._timeout_s)
            case "linearizable":
                return await self._writer.linearizable(self._timeout_s)
            case _:
                return self._writer.image
