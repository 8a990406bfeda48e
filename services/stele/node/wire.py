"""Messages between nodes: msgpack arrays over HTTP, many operations in one call.

Every operation carries the topology version that its sender chose this node by, and the epoch of
the sender's image. Work for a topology operation also carries the session. The receiver checks all
three.
"""

from enum import StrEnum
from typing import Annotated, ClassVar, Final

import msgspec

from stele.agent.judging import Code
from stele.agent.stores import Span
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN
from stele.domain.routed import LOG, REPLICA
from stele.node.cells import Cell, Stamp, StoredCell
from stele.node.change_log import ChangePage
from stele.node.digests import Digest
from stele.node.store import Cursor

BATCH_PATH: Final = "/v1/replica/batch"
PAGE_PATH: Final = "/v1/replica/page"
MEASURE_PATH: Final = "/v1/replica/measure"
DIGESTS_PATH: Final = "/v1/replica/digests"
BACKUP_PATH: Final = "/v1/replica/backup"
REPLICA_HEADER: Final = REPLICA
"""Names the node that a call is for, since another node may have its address now."""
LOG_HEADER: Final = LOG
"""The log that the caller follows, 32 hex digits. The caller may have missed a recovery."""


class Op(msgspec.Struct, frozen=True, array_like=True, tag=True, kw_only=True):
    """An operation at a replica, with the routing that the replica checks."""

    reads: ClassVar[bool] = False
    version: int
    epoch: int
    coordinating: str
    """The node that coordinates the request."""
    data_id: str
    """The id of the keyspace's data. Dropped or truncated data has another id."""
    token: Annotated[int, msgspec.Meta(gt=MIN_TOKEN, le=MAX_TOKEN)]
    """The token of the key.

    Rows under a token outside these limits would be in no span, and never streamed.
    """
    key: bytes
    session: str = ""


class Write(Op, frozen=True, array_like=True, kw_only=True):
    """A write of one cell."""

    cell: Cell
    captured: bool = False
    """True if the sender's image has change data capture of the table switched on."""
    settles: bool = False
    """True for a write of a read that found replicas without the newest cell."""
    table_version: int = 0
    """Version of the table's columns by which the sender encoded the row; 0 for opaque data."""


class ReadMode(StrEnum):
    """The part of a cell that a read returns: all of it, its stamp, or its timestamp."""

    CELL = "cell"
    STAMP = "stamp"
    TIMESTAMP = "timestamp"


class Read(Op, frozen=True, array_like=True, kw_only=True):
    """A read of one key."""

    reads: ClassVar[bool] = True
    mode: ReadMode
    table_version: int = 0


class ReadChanges(Op, frozen=True, array_like=True, kw_only=True):
    """A read of a table's changes with tokens in (``start``, ``token``], by time.

    The times are in (``after_us``, ``upto_us``], in microseconds since 1970.
    """

    reads: ClassVar[bool] = True
    start: int
    after_us: int
    upto_us: int
    limit: int
    table_version: int = 0


AnyOp = Write | Read | ReadChanges


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The answer to an operation. ``epoch`` is one that a refused sender should read.

    For a missing key, a read returns no ``cell``, no ``stamp`` and a ``timestamp`` of 0.
    ``table_version`` is that of this replica if the sender's is older, and 0 otherwise.
    """

    code: Code
    timestamp: int = 0
    epoch: int = 0
    cell: Cell | None = None
    stamp: Stamp | None = None
    text: str = ""
    changes: ChangePage | None = None
    table_version: int = 0

    @property
    def done(self) -> bool:
        return self.code is Code.OK or self.code is Code.SUPERSEDED


class Scan(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A request for rows of spans, for a topology operation.

    If ``limit_bytes`` is 0, it asks only for the size.
    """

    epoch: int
    session: str
    spans: list[Span]
    cursor: Cursor | None = None
    limit_bytes: int = 0


class Scanned(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A page, or only its size if ``limit_bytes`` was 0.

    If there is none, ``code`` and ``text`` give the reason.
    """

    code: Code
    text: str = ""
    rows: list[StoredCell] = []
    keys: int = 0
    size_bytes: int = 0
    cursor: Cursor | None = None


class Compare(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A request for digests of spans, for a topology operation."""

    epoch: int
    session: str
    spans: list[Span]


class Compared(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Digests of the first spans, at least of one; or ``code`` and ``text`` why there are none.

    A digest is None if its span must be split.
    """

    code: Code
    text: str = ""
    digests: list[Digest | None] = []


class Fetch(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A request for a piece of a snapshot file that the receiver wrote.

    The session's restore determines the snapshot.
    """

    epoch: int
    session: str
    name: str
    offset: int = 0


class Fetched(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """``data`` from the offset, of a file of ``size_bytes``.

    If there is none, ``code`` and ``text`` give the reason.
    """

    code: Code
    text: str = ""
    size_bytes: int = 0
    data: bytes = b""


encode: Final = msgspec.msgpack.Encoder().encode
decode_ops: Final = msgspec.msgpack.Decoder(list[AnyOp]).decode
decode_answers: Final = msgspec.msgpack.Decoder(list[Answer]).decode
decode_scan: Final = msgspec.msgpack.Decoder(Scan).decode
decode_compare: Final = msgspec.msgpack.Decoder(Compare).decode
decode_fetch: Final = msgspec.msgpack.Decoder(Fetch).decode
