"""What people give as text, as commands take it: replication, spans of time, tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from stele.domain.schema.facts import Replication

_PART: Final = re.compile(r"(\d{1,13}(?:\.\d{1,3})?)\s*(ms|s|m|h|d)\s*")
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
MOST_S: Final = 100 * 365 * 86_400
"""A century, so that no sum of times passes what clocks show."""


class GivenError(ValueError):
    """A text that is not understood: what is wrong with it, and what to give instead."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def span_ms(text: str, option: str) -> int:
    """Milliseconds of ``90s``, ``1h30m`` or ``2 d``, one at least; ``option`` is where it stands.

    Raises GivenError.
    """
    parts = _PART.findall(text)
    whole = "".join(match[0] for match in _PART.finditer(text))
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if not parts or whole != text.lstrip() or not 0 < seconds <= MOST_S:
        raise GivenError(
            f"{option} '{text}' is no span of time.", f"For example {option} 90s, 30m, 2h or 1d12h."
        )
    return max(1, round(1000 * seconds))


def tokens_of(text: str) -> tuple[int, ...]:
    """Those of ``1,-2,3``; none of an empty text. Raises GivenError."""
    try:
        return tuple(int(token) for token in text.split(",")) if text else ()
    except ValueError as error:
        raise GivenError(
            f"'{text}' is no list of tokens.", "Whole numbers with commas: --tokens=-5,7"
        ) from error


def replication_of(given: Iterable[str]) -> Replication:
    """``("dc1=3,dc2=r1,r2",)``: by dc how many copies, or the racks that have one each. A number with a comma
    behind it is a rack. Raises GivenError.
    """
    copies, racks = dict[str, int](), dict[str, tuple[str, ...]]()
    for dc, values in _by_dc(given):
        if dc in copies or dc in racks:
            raise GivenError(f"--replication names '{dc}' twice.", "Say once how many copies.")
        if len(values) == 1 and values[0].isdigit():
            copies[dc] = int(values[0])
        else:
            racks[dc] = tuple(filter(None, values))
    return Replication(copies, racks)


def _by_dc(given: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Each dc, with all that stands between its sign and the next dc."""
    found = list[tuple[str, list[str]]]()
    for text in given:
        named = len(found)
        for part in text.split(","):
            dc, separator, value = (each.strip() for each in part.partition("="))
            if separator and dc and value:
                found.append((dc, [value]))
            elif not separator and len(found) > named:
                found[-1][1].append(dc)
            else:
                raise GivenError(
                    f"--replication '{part}' is neither DC=COPIES nor DC=RACK,RACK.",
                    "For example dc1=3, or dc1=r1,r2,r3.",
                )
    return found
