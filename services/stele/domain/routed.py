"""The fields of a request that a replica checks, and their HTTP headers."""

from collections.abc import Mapping
from typing import Final

import msgspec

from stele.domain.image import Image
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN

VERSION: Final = "x-stele-version"
EPOCH: Final = "x-stele-epoch"
DATA: Final = "x-stele-data"
TOKEN: Final = "x-stele-token"  # noqa: S105  (a place on the ring)
COORDINATING: Final = "x-stele-coordinating"
SESSION: Final = "x-stele-session"
LOG: Final = "x-stele-log"
REPLICA: Final = "x-stele-replica"
HOST: Final = "x-stele-host"
ACCESS: Final = "x-stele-access"
TABLE_VERSION: Final = "x-stele-table-version"
READ: Final = "read"
"""Value of ``ACCESS`` for a request that reads and writes nothing."""


class MalformedRequest(ValueError):
    """The request lacks a field that a replica needs, or has an invalid one.

    The text names the field.
    """


class Routed(msgspec.Struct, frozen=True, kw_only=True):
    """The routing fields of a request.

    ``version`` and ``epoch`` are those of the sender's image when it chose ``replica``. Another
    node may have the replica's address now. ``host_id`` is the id of the replica's data; empty if
    unknown. ``coordinating`` is the sending node, whose acks contain the versions that it has in
    use. It is empty for a client, for which no barrier waits (``domain.fencing.check_client``).
    ``session`` is that of the topology operation that the request works for. ``log_id`` has 32 hex
    digits, or is empty if unknown. A request that ``reads`` is served by the replicas that are
    read, any other by those that are written. ``table_version`` is the version of the table's
    columns that the sender used; 0 for opaque data.

    Raises MalformedRequest for a number that is no token of a key. No range holds it, so its rows
    would never be streamed.
    """

    version: int
    epoch: int
    data_id: str
    token: int
    replica: str
    coordinating: str = ""
    session: str = ""
    log_id: str = ""
    host_id: str = ""
    reads: bool = False
    table_version: int = 0

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
            HOST: self.host_id,
            ACCESS: READ if self.reads else "",
            TABLE_VERSION: str(self.table_version or ""),
        }
        return {name: value for name, value in found.items() if value}


def headers_for(image: Image, node_id: str) -> dict[str, str]:
    """Return the headers that name the receiving node of a call between nodes, and the log."""
    node = image.node(node_id)
    found = {REPLICA: node_id, HOST: node.host_id if node else "", LOG: image.log_id.hex()}
    return {name: value for name, value in found.items() if value}


def routed_of(headers: Mapping[str, str]) -> Routed:
    """Return the routing fields in these headers. Raises MalformedRequest."""
    return Routed(
        version=_number(headers, VERSION),
        epoch=_number(headers, EPOCH),
        data_id=_text(headers, DATA),
        token=_number(headers, TOKEN),
        replica=_text(headers, REPLICA),
        coordinating=headers.get(COORDINATING, ""),
        session=headers.get(SESSION, ""),
        log_id=headers.get(LOG, ""),
        host_id=headers.get(HOST, ""),
        reads=headers.get(ACCESS, "") == READ,
        table_version=table_version_of(headers),
    )


def table_version_of(headers: Mapping[str, str]) -> int:
    """Return the table version in these headers; 0 for none. Raises MalformedRequest."""
    return _number(headers, TABLE_VERSION) if headers.get(TABLE_VERSION) else 0


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
        raise MalformedRequest(f"{name}: {text[:40]} is not a number.") from None
