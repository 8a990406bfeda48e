"""What a keyspace's replication is here: NetworkTopologyStrategy is all that there is."""

import re
from collections import Counter
from typing import Final

from stele.domain.context import bad_name
from stele.domain.legacy.description import (
    NETWORK,
    SIMPLE,
    Legacy,
    LegacyKeyspace,
    Problem,
)

_FACTOR: Final = re.compile(r"\d{1,3}")
_NETWORK: Final = "ALTER KEYSPACE {} WITH replication = {{'class': 'NetworkTopologyStrategy', …}}"


class _Refused(Exception):
    """``what`` is wrong, and what to do beside leaving the keyspace out."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy


def replication_of(legacy: Legacy, keyspace: LegacyKeyspace) -> dict[str, int] | Problem:
    """dc -> replication factor, those of factor 0 left out.

    SimpleStrategy is taken for NetworkTopologyStrategy where there is one dc; whether both come to the same
    replicas is a matter of the racks, and shows when they are compared.
    """
    nodes = Counter(node.dc for node in legacy.nodes if node.tokens)
    try:
        return _checked(_factors(keyspace, nodes), nodes)
    except _Refused as refused:
        remedy = f"{refused.remedy}, or leave it out: --without {keyspace.name}."
        return Problem(f"keyspace {keyspace.name}", refused.what, remedy)


def _factors(keyspace: LegacyKeyspace, nodes: Counter[str]) -> dict[str, str]:
    """By dc, as they are written."""
    name, options = keyspace.name, keyspace.options
    alter = f"Run {_NETWORK.format(name)} and repair it"
    if bad_name("keyspace", name, dots=False) is not None:
        raise _Refused("a keyspace cannot have this name here", "Rename it")
    if keyspace.tablets:
        what = "its tables have tablets, whose maps are not imported"
        raise _Refused(what, "Copy its data into a keyspace without tablets")
    if keyspace.strategy == NETWORK:
        return options
    if keyspace.strategy != SIMPLE:
        raise _Refused(f"{keyspace.strategy} is not a strategy that there is here", alter)
    if len(nodes) != 1:
        what = (
            f"SimpleStrategy over {len(nodes)} dcs does not look at dcs; here every strategy does"
        )
        raise _Refused(what, alter)
    if options.keys() != {"replication_factor"}:
        raise _Refused(f"{options} is no replication of SimpleStrategy", alter)
    return dict.fromkeys(nodes, options["replication_factor"])


def _checked(factors: dict[str, str], nodes: Counter[str]) -> dict[str, int]:
    wrong = next((each for each in factors.values() if not _FACTOR.fullmatch(each)), None)
    if wrong is not None:
        what = f"'{wrong[:40]}' is no plain replication factor, as transient replicas have none"
        raise _Refused(what, "Alter it first")
    wanted = {dc: int(factor) for dc, factor in sorted(factors.items()) if int(factor)}
    if not wanted:
        raise _Refused("it has no replicas", "Alter it first")
    for dc, factor in wanted.items():
        if factor > nodes[dc]:
            what = f"replication factor {factor} in {dc}, which has {nodes[dc]} nodes with tokens"
            raise _Refused(what, "Add nodes, or lower the factor and repair it")
    return wanted
