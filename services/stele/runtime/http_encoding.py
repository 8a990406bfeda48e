"""Encoding of larger answers: 304 for known states, compression on request, pieces for long bodies.

Encoding and compression must not block the event loop, which in metadata-log commits. Pieces are
therefore small, other work runs after each, and zlib works in a thread without the interpreter's
lock.
"""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

COMPRESS_ABOVE_BYTES: Final = 1024
"""A smaller answer fits into one packet anyway."""
COMPRESS_HERE_BYTES: Final = 16 * 1024
"""Up to this size compression takes 0.2 ms, less than waking a thread."""
GZIP_LEVEL: Final = 1
"""JSON of placements shrinks to an eighth. Level 6 takes four times as long for another tenth."""
PIECE_BYTES: Final = 16 * 1024
"""Size encoded at once, in 0.3 ms.

A commit takes several turns of the loop, with a piece in each.
"""

JSON: Final = "application/json"


def etag_of(state_id: bytes) -> str:
    """Return a weak ETag: the same state may be sent compressed or not."""
    return f'W/"{state_id.hex()}"'


def not_modified(request: Request, etag: str) -> Response | None:
    """Return a 304 when the caller has this state already, else None."""
    known = (each.strip() for each in request.headers.get("if-none-match", "").split(","))
    if etag.removeprefix("W/") in {each.removeprefix("W/") for each in known}:
        return Response(status_code=304, headers={"etag": etag})
    return None


async def respond(request: Request, body: bytes, etag: str = "") -> Response:
    """Return a response with a whole JSON body."""
    headers = _headers(etag)
    if len(body) > COMPRESS_ABOVE_BYTES and takes_gzip(request):
        headers["content-encoding"] = "gzip"
        if len(body) > COMPRESS_HERE_BYTES:
            body = await asyncio.to_thread(gzip.compress, body, GZIP_LEVEL)
        else:
            body = gzip.compress(body, GZIP_LEVEL)
    return Response(body, media_type=JSON, headers=headers)


def respond_in_pieces(
    request: Request, parts: Iterable[bytes], turn: asyncio.Lock, etag: str = ""
) -> Response:
    """Return a JSON response of any length.

    All responses that share ``turn`` encode one piece at a time.
    """
    pieces = _pieces(parts, turn)
    headers = _headers(etag)
    if takes_gzip(request):
        headers["content-encoding"] = "gzip"
        pieces = _compressed(pieces)
    return StreamingResponse(pieces, media_type=JSON, headers=headers)


def takes_gzip(request: Request) -> bool:
    """Return True when the caller names gzip and does not refuse it by q=0."""
    for each in request.headers.get("accept-encoding", "").split(","):
        name, _, quality = each.replace(" ", "").partition(";q=")
        if name in ("gzip", "*"):
            return quality.strip("0.") != "" or quality == ""
    return False


async def _pieces(parts: Iterable[bytes], turn: asyncio.Lock) -> AsyncIterator[bytes]:
    """Join the parts to pieces of ``PIECE_BYTES``. Other work runs after each."""
    rest = iter(parts)
    while True:
        async with turn:
            piece = next_piece(rest)
            await asyncio.sleep(0)
        if not piece:
            return
        yield piece


def next_piece(rest: Iterable[bytes]) -> bytes:
    """Return the next parts of an iterator up to ``PIECE_BYTES``, joined; empty at its end."""
    piece, size_bytes = list[bytes](), 0
    for part in rest:
        piece.append(part)
        size_bytes += len(part)
        if size_bytes >= PIECE_BYTES:
            break
    return b"".join(piece)


async def _compressed(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    async for piece in pieces:
        packed = await asyncio.to_thread(packer.compress, piece)
        if packed:
            yield packed
    yield packer.flush()


def _headers(etag: str) -> dict[str, str]:
    headers: Mapping[str, str] = {"etag": etag} if etag else {}
    return {**headers, "vary": "accept-encoding"}
