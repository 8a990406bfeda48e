"""Rows of system tables: what cqlsh prints for ``SELECT JSON *``, or writes with ``COPY … WITH HEADER``."""

import ast
import csv
import re
from io import StringIO
from typing import Any, Final

import msgspec

from stele.domain.legacy.description import LegacyKeyspace, class_name
from stele.domain.legacy.texts.lines import (
    TextError,
    address_of,
    not_understood,
    numbered,
    token_of,
    uuid_of,
)

_COUNT: Final = re.compile(r"\s*\(\d+ rows?\)")
Row = tuple[int, dict[str, Any]]
"""A row, and the number of its line."""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A row of system.peers, system.peers_v2 or system.local."""

    line: int
    address: str
    host_id: str
    dc: str
    rack: str
    release: str
    schema_version: str
    tokens: tuple[int, ...]


def parse_keyspaces(text: str) -> tuple[LegacyKeyspace, ...]:
    """Rows of system_schema.keyspaces. Raises TextError."""
    return tuple(keyspace_of(number, row) for number, row in _rows(text))


def parse_peers(text: str) -> tuple[Peer, ...]:
    """Rows of system.peers, system.peers_v2 and system.local. Raises TextError."""
    return tuple(peer_of(number, row) for number, row in _rows(text))


def keyspace_of(number: int, row: dict[str, Any]) -> LegacyKeyspace:
    replication = _map(number, row.get("replication"))
    name, strategy = row.get("keyspace_name"), replication.pop("class", None)
    if not isinstance(name, str) or not isinstance(strategy, str):
        raise TextError(number, "it is no row of system_schema.keyspaces")
    options = {str(key): str(value) for key, value in replication.items()}
    return LegacyKeyspace(name=name, strategy=class_name(strategy), options=options)


def peer_of(number: int, row: dict[str, Any]) -> Peer:
    """Raises TextError for what is no row, or lacks what a member has."""
    address = row.get("peer") or row.get("broadcast_address")
    tokens = row.get("tokens")
    if isinstance(tokens, str):
        tokens = _literal(number, tokens)
    lacking = [name for name in ("data_center", "rack", "host_id") if not row.get(name)]
    if not address or lacking:
        missing = ", ".join(lacking or ["peer or broadcast_address"])
        raise TextError(number, f"the row of {address or 'a node'} lacks {missing}")
    return Peer(
        line=number,
        address=address_of(number, str(address)),
        host_id=uuid_of(number, str(row["host_id"])),
        dc=str(row["data_center"]),
        rack=str(row["rack"]),
        release=str(row.get("release_version") or ""),
        schema_version=str(row.get("schema_version") or ""),
        tokens=tuple(sorted(token_of(number, str(token)) for token in tokens or ())),
    )


def _rows(text: str) -> list[Row]:
    lines = [*numbered(text)]
    if not lines:
        raise TextError(0, "it is empty")
    if "{" in lines[0][1] or lines[0][1].strip() == "[json]" or lines[0][1].startswith("["):
        return _json_rows(lines)
    return _csv_rows(text)


def _json_rows(lines: list[tuple[int, str]]) -> list[Row]:
    """A row a line, with or without what cqlsh draws around them, or an array with a row a line."""
    found: list[Row] = []
    for number, line in lines:
        bare = line.strip()
        if bare in ("[json]", "[", "]") or set(bare) == {"-"} or _COUNT.fullmatch(line):
            continue
        try:
            row = msgspec.json.decode(bare.removesuffix(","), type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise not_understood(number, line, f"a JSON object ({error})") from error
        found.append((number, row))
    return found


def _csv_rows(text: str) -> list[Row]:
    reader = csv.DictReader(StringIO(text), strict=True)
    found: list[Row] = []
    try:
        for row in reader:
            if None in row or None in row.values():
                raise TextError(reader.line_num, "it has another number of columns than the header")
            found.append((reader.line_num, dict(row)))
    except csv.Error as error:
        raise TextError(reader.line_num, f"it is no CSV: {error}") from error
    return found


def _map(number: int, value: object) -> dict[str, Any]:
    found = _literal(number, value) if isinstance(value, str) else value
    if not isinstance(found, dict):
        raise TextError(number, "it is no row of system_schema.keyspaces: no map `replication`")
    return {**found}


def _literal(number: int, text: str) -> Any:
    """A map or set as cqlsh writes it into CSV."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise not_understood(number, text, "a map or set as cqlsh writes it") from None
