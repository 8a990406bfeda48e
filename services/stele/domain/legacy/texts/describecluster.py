"""``nodetool describecluster``: name, partitioner, schema versions; of Cassandra 4 and later also releases and
keyspaces.
"""

import re
from typing import Final

import msgspec

from stele.domain.legacy.description import LegacyKeyspace, class_name
from stele.domain.legacy.texts.lines import (
    TextError,
    addresses_of,
    not_understood,
    numbered,
    uuid_of,
    with_port,
)

_FIELD: Final = re.compile(r"(Name|Snitch|DynamicEndPointSnitch|Partitioner): (.+)")
_COUNT: Final = re.compile(r"(?:Live|Joining|Moving|Leaving|Unreachable): \d+")
_DC: Final = re.compile(r"\S+ #Nodes: \d+ #Down: \d+")
_LIST: Final = re.compile(r"(\S+): \[([^\]]*)\]")
_KEYSPACE: Final = re.compile(r"(\w+) -> Replication class: ([\w.]+) \{([^}]*)\}")
_SECTIONS: Final = {
    "Cluster Information:": "information",
    "Schema versions:": "versions",
    "Stats for all nodes:": "stats",
    "Data Centers:": "dcs",
    "Database versions:": "releases",
    "Keyspaces:": "keyspaces",
}


class Describecluster(msgspec.Struct, frozen=True, kw_only=True):
    """``releases`` are by address; ``keyspaces`` is None where the text does not speak of them."""

    cluster: str
    partitioner: str
    schema_versions: dict[str, tuple[str, ...]]
    unreachable: tuple[str, ...]
    releases: dict[str, str]
    keyspaces: tuple[LegacyKeyspace, ...] | None


def parse_describecluster(text: str) -> Describecluster:
    """Raises TextError."""
    section, fields = "", dict[str, str]()
    versions, releases = dict[str, tuple[str, ...]](), dict[str, str]()
    unreachable: tuple[str, ...] = ()
    keyspaces: list[LegacyKeyspace] | None = None
    for number, line in numbered(text):
        bare = line.strip()
        if bare in _SECTIONS:
            section = _SECTIONS[bare]
            keyspaces = [] if section == "keyspaces" else keyspaces
            continue
        field, listed = _FIELD.fullmatch(bare), _LIST.fullmatch(bare)
        if section == "information" and field:
            fields[field[1]] = field[2]
        elif section == "versions" and listed and listed[1] == "UNREACHABLE":
            unreachable = addresses_of(number, listed[2])
        elif section == "versions" and listed:
            versions[uuid_of(number, listed[1])] = addresses_of(number, listed[2])
        elif section == "releases" and listed:
            hosts = (with_port(number, each) for each in listed[2].split(", "))
            releases |= dict.fromkeys(hosts, listed[1])
        elif section == "keyspaces" and keyspaces is not None:
            keyspaces.append(_keyspace(number, bare))
        elif not (section == "stats" and _COUNT.fullmatch(bare)) and not (
            section == "dcs" and _DC.fullmatch(bare)
        ):
            raise not_understood(number, line, "what `nodetool describecluster` prints")
    for name in ("Name", "Partitioner"):
        if name not in fields:
            raise TextError(0, f"it does not say `{name}:`; is it of `nodetool describecluster`?")
    return Describecluster(
        cluster=fields["Name"],
        partitioner=class_name(fields["Partitioner"]),
        schema_versions=versions,
        unreachable=unreachable,
        releases=releases,
        keyspaces=None if keyspaces is None else tuple(keyspaces),
    )


def _keyspace(number: int, line: str) -> LegacyKeyspace:
    found = _KEYSPACE.fullmatch(line)
    if found is None:
        raise not_understood(number, line, "`<keyspace> -> Replication class: <class> {…}`")
    name, strategy, options = found.groups()
    pairs = (each.partition("=") for each in options.split(", ") if each)
    return LegacyKeyspace(
        name=name,
        strategy=class_name(strategy),
        options={key: value for key, _, value in pairs},
    )
