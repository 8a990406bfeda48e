"""What nodes say to each other: msgpack arrays over HTTP, many operations in one call.

Every operation carries the topology version by which its sender chose this node, the epoch of the sender's
image, and the session when it works for a topology operation. Whoever answers checks all three.
"""

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from stele.agent.codes import Code
from stele.agent.spans import Span
from stele.domain.ring.tokens import MAX_TOKEN, MIN_TOKEN
from stele.domain.routed import LOG, REPLICA
from stele.node.cells import Cell, Row, Stamp
from stele.node.digests import Digest
from stele.node.store import Cursor

BATCH_PATH: Final = "/v1/replica/batch"
PAGE_PATH: Final = "/v1/replica/page"
MEASURE_PATH: Final = "/v1/replica/measure"
DIGESTS_PATH: Final = "/v1/replica/digests"
BACKUP_PATH: Final = "/v1/replica/backup"
REPLICA_HEADER: Final = REPLICA
"""Names the node that a call is meant for: another one may have come to its address."""
LOG_HEADER: Final = LOG
"""The log that the caller follows, 32 hex digits: it may not have heard that it was recovered."""


class Op(msgspec.Struct, frozen=True, array_like=True, tag=True, kw_only=True):
    version: int
    epoch: int
    coordinating: str
    """The node whose request it is part of."""
    data_id: str
    """Of the keyspace: what was dropped or truncated away has another one."""
    token: Annotated[int, msgspec.Meta(gt=MIN_TOKEN, le=MAX_TOKEN)]
    """Of the key; no span holds another number, so its rows would be streamed to nobody."""
    key: bytes
    session: str = ""


class Write(Op, frozen=True, array_like=True, kw_only=True):
    cell: Cell


class ReadMode(StrEnum):
    """What a read wants to know: all, what tells it apart, or only how new it is."""

    CELL = "cell"
    STAMP = "stamp"
    TIMESTAMP = "timestamp"


class Read(Op, frozen=True, array_like=True, kw_only=True):
    mode: ReadMode


AnyOp = Write | Read


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """``epoch`` is one that a refused sender should have read.

    A read's key that is not there has no ``cell``, no ``stamp`` and a ``timestamp`` of 0.
    """

    code: Code
    timestamp: int = 0
    epoch: int = 0
    cell: Cell | None = None
    stamp: Stamp | None = None
    text: str = ""

    @property
    def done(self) -> bool:
        return self.code is Code.OK or self.code is Code.SUPERSEDED


class Scan(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Rows of spans for a topology operation; ``limit_bytes`` of 0 only asks how much there is."""

    epoch: int
    session: str
    spans: list[Span]
    cursor: Cursor | None = None
    limit_bytes: int = 0


class Scanned(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A page, or with ``limit_bytes`` 0 its size alone; or why there is none."""

    code: Code
    text: str = ""
    rows: list[Row] = []
    keys: int = 0
    size_bytes: int = 0
    cursor: Cursor | None = None


class Compare(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Digests of spans for a topology operation."""

    epoch: int
    session: str
    spans: list[Span]


class Compared(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Digests of the first of the spans, at least of one, None for one that is to be split; or why there are
    none.
    """

    code: Code
    text: str = ""
    digests: list[Digest | None] = []


class Fetch(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A piece of a file that the other node wrote for the snapshot which the session restores from."""

    epoch: int
    session: str
    name: str
    offset: int = 0


class Fetched(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """``data`` from the offset on, of a file of so many bytes; or why there is none."""

    code: Code
    text: str = ""
    size_bytes: int = 0
    data: bytes = b""


encode: Final = msgspec.msgpack.Encoder().encode
decode_ops: Final = msgspec.msgpack.Decoder(list[AnyOp]).decode
decode_answers: Final = msgspec.msgpack.Decoder(list[Answer]).decode
decode_scan: Final = msgspec.msgpack.Decoder(Scan).decode
decode_scanned: Final = msgspec.msgpack.Decoder(Scanned).decode
decode_compare: Final = msgspec.msgpack.Decoder(Compare).decode
decode_compared: Final = msgspec.msgpack.Decoder(Compared).decode
decode_fetch: Final = msgspec.msgpack.Decoder(Fetch).decode
decode_fetched: Final = msgspec.msgpack.Decoder(Fetched).decode
