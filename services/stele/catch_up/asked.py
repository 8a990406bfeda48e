"""What a question to catch-up says behind its ``?``: numbers, flags and ids, refused where they are none."""

from typing import Final

from starlette.requests import Request

from stele.runtime.http import HttpError

STATE_ID_CHARS: Final = 32
LARGEST: Final = 1 << 62
MOST_DIGITS: Final = 19


def number(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name, "")
    return _number(name, text, most) if text else default


def numbers(request: Request, name: str, most: int, most_of_them: int) -> tuple[int, ...]:
    """Those between commas."""
    texts = request.query_params.get(name, "").split(",")
    if len(texts) > most_of_them:
        raise HttpError(
            400, "invalid", f"{name} has {len(texts)} numbers", hint=f"{most_of_them} at most."
        )
    return tuple(_number(name, text, most) for text in texts if text)


def _number(name: str, text: str, most: int) -> int:
    known = text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS
    if not known or int(text) > most:
        raise HttpError(
            400, "invalid", f"{name}={text[:40]}", hint=f"It is a number from 0 to {most}."
        )
    return int(text)


def flag(request: Request, name: str, default: str) -> bool:
    text = request.query_params.get(name, default)
    if text not in ("0", "1"):
        raise HttpError(400, "invalid", f"{name}={text[:40]}", hint="It is 0 or 1.")
    return text == "1"


def state_id_in(request: Request, name: str) -> bytes:
    text = request.query_params.get(name, "")
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if text and (len(text) != STATE_ID_CHARS or not found):
        raise HttpError(400, "invalid", f"{name}={text[:40]}", hint="It is an id: 32 hex digits.")
    return found
