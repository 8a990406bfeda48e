"""Reading the Delta tables without Spark: their log is JSON, their data is Parquet.

Enough of Delta's protocol for the tables that ``tables`` makes: partitions, checkpoints, time travel by
version; no deletion vectors and no column mapping, which those tables do not use.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow.parquet as pq

from stele.domain.ring.ranges import RangeReplicas

Row = dict[str, Any]
"""Column -> value, as the table's schema has them."""

_VERSION_DIGITS: Final = 20


class TableMissing(Exception):
    """There is no Delta table in the folder, or not at that version."""


class Materialized(msgspec.Struct, frozen=True):
    """How far a cluster is materialized; ``state_id`` is 32 hex digits."""

    epoch: int
    state_id: str


def read_table(folder: Path, cluster: str, version: int | None = None) -> list[Row]:
    """The rows of one cluster, in no order, at ``version`` or the newest. Raises TableMissing."""
    return [
        row for path in _files(folder, cluster, version) for row in _rows(folder / path, cluster)
    ]


def reached(delta_dir: Path, cluster: str) -> Materialized | None:
    """The last epoch in table ``epochs``; all other tables hold at least as much. None: no epoch."""
    rows = read_table(delta_dir / "epochs", cluster)
    if not rows:
        return None
    last = max(rows, key=lambda row: int(row["epoch"]))
    return Materialized(last["epoch"], last["state_id"])


def current_placements(
    delta_dir: Path, cluster: str, version: int | None = None
) -> dict[str, list[RangeReplicas]]:
    """Table ``placements``: rows by the placement's name, ascending."""
    return _by_placement(read_table(delta_dir / "placements", cluster, version))


def placements_at(delta_dir: Path, cluster: str, epoch: int) -> dict[str, list[RangeReplicas]]:
    """The placements as they were at ``epoch``, from table ``placements_history``."""
    history = read_table(delta_dir / "placements_history", cluster)
    return _by_placement(
        row
        for row in history
        if row["from_epoch"] <= epoch and (row["to_epoch"] is None or epoch < row["to_epoch"])
    )


def _by_placement(rows: Any) -> dict[str, list[RangeReplicas]]:
    found: dict[str, list[RangeReplicas]] = {}
    for row in sorted(rows, key=lambda row: (row["placement"], row["start"])):
        replicas = RangeReplicas(
            row["start"], row["end"], tuple(row["reads"]), tuple(row["writes"])
        )
        found.setdefault(row["placement"], []).append(replicas)
    return found


def _files(folder: Path, cluster: str, version: int | None) -> list[str]:
    """Paths of the data files of one cluster, relative to the table, sorted."""
    live: dict[str, str] = {}
    for action in _actions(folder / "_delta_log", version):
        if action.get("add"):
            add = action["add"]
            live[add["path"]] = dict(add["partitionValues"])["cluster"]
        elif action.get("remove"):
            live.pop(action["remove"]["path"], None)
    return sorted(unquote(path) for path, owner in live.items() if owner == cluster)


def _actions(log: Path, version: int | None) -> Iterator[Row]:
    """The log's actions in order: from the last checkpoint in question, and the commits after it."""
    commits = {int(p.stem): p for p in log.glob("*.json") if len(p.stem) == _VERSION_DIGITS}
    if not commits or (version is not None and version not in commits):
        raise TableMissing(
            f"There is no Delta table at {log.parent}, version {version or 'newest'}."
        )
    newest = max(commits) if version is None else version
    begin, parts = _checkpoint(log, newest)
    for part in parts:
        yield from pq.read_table(part, columns=["add"]).to_pylist()
    for number in range(begin, newest + 1):
        for line in commits[number].read_bytes().splitlines():
            yield msgspec.json.decode(line)


def _checkpoint(log: Path, newest: int) -> tuple[int, list[Path]]:
    """The first commit to read, and the files of the checkpoint before it."""
    found: dict[int, list[Path]] = {}
    for path in log.glob("*.checkpoint*.parquet"):
        number = int(path.name[:_VERSION_DIGITS])
        if number <= newest:
            found.setdefault(number, []).append(path)
    if not found:
        return 0, []
    last = max(found)
    return last + 1, sorted(found[last])


def _rows(path: Path, cluster: str) -> Iterator[Row]:
    for row in pq.read_table(path, partitioning=None).to_pylist():
        yield {"cluster": cluster, **row}
