"""``nodetool ring``: every token, its owner, and where and how that stands."""

import re
from typing import Final

import msgspec

from stele.domain.legacy.texts.lines import (
    LOAD,
    OWNS,
    TextError,
    address_of,
    not_understood,
    numbered,
    token_of,
)

_DC: Final = re.compile(r"Datacenter: (\S+)")
_HEADER: Final = ["Address", "Rack", "Status", "State", "Load", "Owns", "Token"]
_HIGHEST: Final = re.compile(r"\s+(-?\d+)")
_ROW: Final = re.compile(
    rf"(\S+)\s+(\S+)\s+(Up|Down|\?)\s+(Normal|Leaving|Joining|Moving|\?)\s+{LOAD}\s+{OWNS}\s+(-?\d+)"
)
_EXPECTED: Final = "a row of `nodetool ring`: address, rack, status, state, load, owns, token"


class RingRow(msgspec.Struct, frozen=True):
    """One token. ``status`` is as ``LegacyNode`` has it."""

    line: int
    dc: str
    rack: str
    address: str
    status: str
    token: int


def parse_ring(text: str) -> tuple[RingRow, ...]:
    """All rows of all dcs. Raises TextError.

    Each dc's rows come after its highest token, which is that of its last row: so it is noticed when a text was
    cut off.
    """
    rows: list[RingRow] = []
    dc, highest, here = "", None, 0
    for number, line in numbered(text):
        found = _DC.fullmatch(line)
        if found:
            _check_whole(number, dc, highest, rows[here:])
            dc, highest, here = found[1], None, len(rows)
        elif not dc:
            raise not_understood(number, line, "`Datacenter: <name>` as the first line")
        elif set(line) == {"="} or line.split() == _HEADER:
            continue
        elif highest is None:
            alone = _HIGHEST.fullmatch(line)
            if alone is None:
                raise not_understood(number, line, "the highest token of the dc, alone on its line")
            highest = token_of(number, alone[1])
        else:
            rows.append(_row(number, line, dc))
    _check_whole(0, dc, highest, rows[here:])
    return tuple(rows)


def _row(number: int, line: str, dc: str) -> RingRow:
    found = _ROW.fullmatch(line)
    if found is None:
        raise not_understood(number, line, _EXPECTED)
    address, rack, up, state, token = found.groups()
    return RingRow(
        number, dc, rack, address_of(number, address), up[0] + state[0], token_of(number, token)
    )


def _check_whole(number: int, dc: str, highest: int | None, rows: list[RingRow]) -> None:
    if not number and not dc:
        raise TextError(0, "it is empty; it should be what `nodetool ring` prints")
    if dc and (not rows or rows[-1].token != highest):
        raise TextError(
            number,
            f"the rows of dc {dc} do not end with its highest token {highest}: the text was cut off",
        )
