"""The tablet of a token, and the range of a tablet.

A map has a power of two of tablets with equal ranges, numbered from 0 in ring order. The module
needs no numpy, so the command line can use it.
"""

from typing import Final

from stele.domain.ring.ranges import MIN_TOKEN, Range, ranges_of

TOKEN_BITS: Final = 64
MAX_TABLETS: Final = 1 << 20
"""Largest number of tablets of one table."""


def ranges(count: int) -> tuple[Range, ...]:
    """Return the ranges of a map of ``count`` tablets, which is a power of two."""
    width = (1 << TOKEN_BITS) // count
    return ranges_of(MIN_TOKEN + width * tablet - 1 for tablet in range(1, count))


def range_of(count: int, tablet: int) -> Range:
    """Return the range of one tablet. Raise IndexError if there is no such tablet."""
    if not 0 <= tablet < count:
        raise IndexError(f"There is no tablet {tablet} of {count}.")
    width = (1 << TOKEN_BITS) // count
    begin, end = (MIN_TOKEN + width * at - 1 for at in (tablet, tablet + 1))
    return Range(begin if tablet else MIN_TOKEN, end if tablet + 1 < count else MIN_TOKEN)


def tablet_of(count: int, end: int) -> int:
    """Return the number of the tablet whose range ends at ``end``."""
    if end == MIN_TOKEN:
        return count - 1
    return (end - MIN_TOKEN) * count >> TOKEN_BITS
