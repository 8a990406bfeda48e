"""Numbers that no record can hold: JSON has larger ones than the log's eight bytes."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from stele.domain.base import Fact

LEAST: Final = -(1 << 63)
MOST: Final = (1 << 63) - 1


def number_flaws(fact: Fact) -> Iterator[str]:
    """Of a fact that is no row of a placement."""
    for number in _numbers(msgspec.to_builtins(fact, builtin_types=(bytes,))):
        if not LEAST <= number <= MOST:
            yield f"{type(fact).__name__} has the number {str(number)[:40]}, which does not fit in 8 bytes"


def _numbers(value: Any) -> Iterator[int]:
    if isinstance(value, int):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _numbers(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _numbers(each)
