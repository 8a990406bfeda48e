"""Which epoch a table holds of each cluster, as this process knows it.

Delta has it as the version of an application transaction, and reads files of its log for each one that is
asked for: milliseconds with a fleet, whose commits name hundreds of them. So what was read or committed is kept
for as long as no other process commits an epoch.
"""

import threading
from collections.abc import Mapping
from typing import Final

import msgspec
from deltalake import DeltaTable

from stele.placements.read import head_of_cluster

_WITHOUT_EPOCHS: Final = frozenset({"OPTIMIZE", "VACUUM START", "VACUUM END", "DELETE"})
"""What Delta calls the commits of the upkeep, and that which takes changes away."""
MOST_COMMITS: Final = 20
"""Of others that are looked at; behind more of them the heads are read again."""


class _Known(msgspec.Struct, frozen=True):
    """The heads of a table at one version of it; with ``is_whole``, a cluster that is not in them has none."""

    table_id: str
    version: int
    heads: dict[str, int]
    is_whole: bool


class Heads:
    """Of one table as it was opened."""

    def __init__(self, table: DeltaTable, known: _Known) -> None:
        self.known = known
        self._table = table

    def of(self, cluster: str) -> int:
        """The epoch that the table holds of a cluster; 0 when it has nothing of it."""
        heads = self.known.heads
        if cluster not in heads:
            asked = not self.known.is_whole and self._table.transaction_version(
                head_of_cluster(cluster)
            )
            heads[cluster] = asked or 0
        return heads[cluster]


class TableHeads:
    """Of all tables, by name. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: dict[str, _Known] = {}

    def read(self, name: str, table: DeltaTable) -> Heads:
        with self._lock:
            before = self._newest.get(name)
        table_id, version = str(table.metadata().id), table.version()
        if before is None or before.table_id != table_id or not _same_heads(before.version, table):
            known = _Known(table_id, version, {}, version == 0)
        else:
            known = msgspec.structs.replace(before, version=version)
        self._keep(name, known)
        return Heads(table, known)

    def committed(self, name: str, before: Heads, epochs: Mapping[str, int]) -> None:
        """The commit right behind what was read brought clusters to these epochs."""
        known = before.known
        heads = {**known.heads, **epochs}
        self._keep(name, _Known(known.table_id, known.version + 1, heads, known.is_whole))

    def _keep(self, name: str, known: _Known) -> None:
        with self._lock:
            newest = self._newest.get(name)
            is_older = (
                newest is not None
                and newest.table_id == known.table_id
                and newest.version > known.version
            )
            if not is_older:
                self._newest[name] = known


def _same_heads(version: int, table: DeltaTable) -> bool:
    """Whether no commit behind this version of the table can have brought a cluster to another epoch."""
    behind = table.version() - version
    if not 0 <= behind <= MOST_COMMITS:
        return False
    commits = table.history(behind) if behind else []
    return len(commits) == behind and all(
        commit.get("operation") in _WITHOUT_EPOCHS for commit in commits
    )
