"""Keys of data as witnesses have them, and what a client asked of one."""

from functools import cache

import msgspec

from stele.domain.ring.partitioner import token_of

Key = tuple[str, str]
"""Id of a keyspace's data, and key: a name used again, or data that was truncated, has another id."""


@cache
def token_of_key(key: Key) -> int:
    return token_of(key[1].encode())


class KvOp(msgspec.Struct, frozen=True, kw_only=True):
    """A client's request, in virtual seconds; see ``registers.Operation``."""

    began: float
    ended: float
    node: str
    write: bool
    key: str
    value: str | None
    done: bool
    known: bool
