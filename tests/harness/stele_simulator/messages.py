"""Keys of data as witnesses have them, and what a client asked of one."""

from functools import cache
from math import inf

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


def begun(now_s: float, node: str, key: str, value: str | None) -> KvOp:
    """Return an operation without a known end: a write, or a read where ``value`` is None."""
    return KvOp(
        began=now_s,
        ended=inf,
        node=node,
        write=value is not None,
        key=key,
        value=value,
        done=False,
        known=False,
    )


def text_in(value: object) -> str:
    """Return the text or number inside a value of a column; empty if it is null."""
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list):
        return next(filter(None, map(text_in, value)), "")
    return "" if value is None else str(value)
