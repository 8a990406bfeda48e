"""What a request carries so that a replica can judge it, and how it travels in HTTP headers."""

from collections.abc import Mapping
from typing import Final

import msgspec

from stele.domain.ring.tokens import MAX_TOKEN, MIN_TOKEN

VERSION: Final = "x-stele-version"
EPOCH: Final = "x-stele-epoch"
DATA: Final = "x-stele-data"
TOKEN: Final = "x-stele-token"  # noqa: S105  (a place on the ring)
COORDINATING: Final = "x-stele-coordinating"
SESSION: Final = "x-stele-session"
LOG: Final = "x-stele-log"
REPLICA: Final = "x-stele-replica"


class MalformedRequest(ValueError):
    """It is not said by what the request was routed; the text names what is missing or wrong."""


class Routed(msgspec.Struct, frozen=True, kw_only=True):
    """``version`` and ``epoch`` are those of the sender's image when it chose ``replica``, at whose address
    another node may be by now.

    ``coordinating`` is the node that sends it, whose acks tell which versions it has in use; empty: a client,
    for which nobody waits (``domain.fencing.check_client``). ``session`` is that of the topology operation that
    it works for, if it does. ``log_id`` has 32 hex digits; empty: not said. Raises MalformedRequest for what is
    no token of a key: no span holds it, so a row of it would be streamed to nobody.
    """

    version: int
    epoch: int
    data_id: str
    token: int
    replica: str
    coordinating: str = ""
    session: str = ""
    log_id: str = ""

    def __post_init__(self) -> None:
        if not MIN_TOKEN < self.token <= MAX_TOKEN:
            raise MalformedRequest(
                f"{TOKEN}: {str(self.token)[:40]} is no token of a key: these are from {MIN_TOKEN + 1} to"
                f" {MAX_TOKEN}. Send what the look-up gave."
            )

    def headers(self) -> dict[str, str]:
        found = {
            VERSION: str(self.version),
            EPOCH: str(self.epoch),
            DATA: self.data_id,
            TOKEN: str(self.token),
            REPLICA: self.replica,
            COORDINATING: self.coordinating,
            SESSION: self.session,
            LOG: self.log_id,
        }
        return {name: value for name, value in found.items() if value}


def routed_of(headers: Mapping[str, str]) -> Routed:
    """Raises MalformedRequest."""
    return Routed(
        version=_number(headers, VERSION),
        epoch=_number(headers, EPOCH),
        data_id=_text(headers, DATA),
        token=_number(headers, TOKEN),
        replica=_text(headers, REPLICA),
        coordinating=headers.get(COORDINATING, ""),
        session=headers.get(SESSION, ""),
        log_id=headers.get(LOG, ""),
    )


def _text(headers: Mapping[str, str], name: str) -> str:
    found = headers.get(name, "")
    if not found:
        raise MalformedRequest(f"The request has no {name}: send what the look-up gave.")
    return found


def _number(headers: Mapping[str, str], name: str) -> int:
    text = _text(headers, name)
    try:
        return int(text)
    except ValueError:
        raise MalformedRequest(f"{name}: {text[:40]} is no number.") from None
