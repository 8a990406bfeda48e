"""``nodetool status``: every node with its host id."""

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
    uuid_of,
)

_DC: Final = re.compile(r"Datacenter: (\S+)")
_LEGEND: Final = ("Status=Up/Down", "|/ State=Normal/Leaving/Joining/Moving")
_NODE: Final = r"([UD?][NLJM?])\s+(\S+)\s+"
_TOKENS: Final = re.compile(rf"{_NODE}{LOAD}\s+(\d+)\s+{OWNS}\s+(\S+)\s+(\S+)")
"""Where some node has several tokens: their number stands after the load."""
_TOKEN: Final = re.compile(rf"{_NODE}{LOAD}\s+{OWNS}\s+(\S+)\s+-?\d+\s+(\S+)")
"""Where every node has one: it stands before the rack."""
_EXPECTED: Final = "a row of `nodetool status`: status, address, load, tokens, owns, host id, rack"


class StatusRow(msgspec.Struct, frozen=True):
    """One node; ``tokens`` is how many it has."""

    line: int
    dc: str
    rack: str
    address: str
    status: str
    tokens: int
    host_id: str


def parse_status(text: str) -> tuple[StatusRow, ...]:
    """All rows of all dcs. Raises TextError."""
    rows: list[StatusRow] = []
    dc, counted = "", True
    for number, line in numbered(text):
        found = _DC.fullmatch(line)
        if found:
            dc = found[1]
        elif not dc:
            raise not_understood(number, line, "`Datacenter: <name>` as the first line")
        elif set(line) == {"="} or line in _LEGEND:
            continue
        elif line.startswith("--"):
            counted = _counted(number, line)
        else:
            rows.append(_row(number, line, dc, counted))
    if not rows:
        raise TextError(0, "it has no node; it should be what `nodetool status` prints")
    return tuple(rows)


def _counted(number: int, line: str) -> bool:
    """Whether the table has the number of tokens; else it has the only one."""
    words = line.replace("(effective)", "").split()
    if words == ["--", "Address", "Load", "Tokens", "Owns", "Host", "ID", "Rack"]:
        return True
    if words == ["--", "Address", "Load", "Owns", "Host", "ID", "Token", "Rack"]:
        return False
    raise not_understood(number, line, "the header of `nodetool status`")


def _row(number: int, line: str, dc: str, counted: bool) -> StatusRow:
    found = (_TOKENS if counted else _TOKEN).fullmatch(line)
    if found is None:
        raise not_understood(number, line, _EXPECTED)
    status, address, *tokens, host_id, rack = found.groups()
    return StatusRow(
        number,
        dc,
        rack,
        address_of(number, address),
        status,
        int(tokens[0]) if tokens else 1,
        uuid_of(number, host_id),
    )
