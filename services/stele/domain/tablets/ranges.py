"""Which tablet a token is in, and which range a tablet has.

A map has a power of two of tablets, of equal ranges, numbered from 0 in the order of the ring. This needs no
numpy, so the command line can ask too.
"""

from typing import Final

from stele.domain.ring.ranges import Range, ranges_of
from stele.domain.ring.tokens import MIN_TOKEN

TOKEN_BITS: Final = 64
MAX_TABLETS: Final = 1 << 20
"""Of one table."""


def ranges(count: int) -> tuple[Range, ...]:
    """The ranges of a map of so many tablets, which is a power of two."""
    width = (1 << TOKEN_BITS) // count
    return ranges_of(MIN_TOKEN + width * tablet - 1 for tablet in range(1, count))


def range_of(count: int, tablet: int) -> Range:
    """The range of one tablet. Raises IndexError."""
    if not 0 <= tablet < count:
        raise IndexError(f"There is no tablet {tablet} of {count}.")
    width = (1 << TOKEN_BITS) // count
    begin, end = (MIN_TOKEN + width * at - 1 for at in (tablet, tablet + 1))
    return Range(begin if tablet else MIN_TOKEN, end if tablet + 1 < count else MIN_TOKEN)


def tablet_of(count: int, end: int) -> int:
    """The number of the tablet whose range ends at ``end``."""
    if end == MIN_TOKEN:
        return count - 1
    return (end - MIN_TOKEN) * count >> TOKEN_BITS
