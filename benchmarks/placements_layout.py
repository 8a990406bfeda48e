"""`python -m benchmarks.placements_layout`: what `placements` costs by a file for each cluster, or not.

One JSON line for each layout and fleet: seconds of the processor, and of the clock, of what job and readers do.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from stele.placements.derived_tables import commit
from stele.placements.queries import run
from stele.placements.tables import COMPACT_TARGET_BYTES, CONFIGURATION, CURRENT, SCHEMAS

LAYOUTS: Final = ("a file for each cluster", "joined", "joined, sorted by cluster")
FLEETS: Final = ((500, 100), (2_000, 100), (10, 20_000))
"""Clusters, and ranges of each."""
AT_ONCE: Final = 100
"""Clusters of one commit, as with a fleet whose changes are gathered."""
TIMES: Final = 5


def rows_of(clusters: Iterable[int], ranges: int, epoch: int) -> pa.Table:
    """Rows of clusters as the job writes them."""
    names = [f"cluster-{number:05}" for number in clusters]
    count = len(names) * ranges
    starts = [start << 40 for start in range(ranges)] * len(names)
    replicas = pa.array([["node-1", "node-2", "node-3"]] * count, pa.list_(pa.string()))
    none = pa.array([[]] * count, pa.list_(pa.string()))
    shards = pa.array([[0, 0, 0]] * count, pa.list_(pa.int32()))
    columns = {
        "cluster": [name for name in names for _ in range(ranges)],
        "placement": ["dc1:3"] * count,
        "range_start": starts,
        "range_end": [start + (1 << 40) for start in starts],
        "read_replicas": replicas,
        "write_replicas": replicas,
        "version": [epoch] * count,
        "version_before": [0] * count,
        "other_replicas": none,
        "from_epoch": [epoch] * count,
        "shards": shards,
        "other_shards": shards,
    }
    return pa.table(columns, schema=SCHEMAS[CURRENT])


class Layout:
    """The table in one layout."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.folder = folder
        self.path = str(folder / CURRENT)
        self.epoch = 0
        DeltaTable.create(
            self.path,
            SCHEMAS[CURRENT],
            partition_by=["cluster"] if name == LAYOUTS[0] else [],
            configuration=CONFIGURATION | {"delta.enableChangeDataFeed": "true"},
        )

    def write(self, clusters: range, ranges: int) -> None:
        self.epoch += 1
        epochs = {f"cluster-{number:05}": self.epoch for number in clusters}
        rows = rows_of(clusters, ranges, self.epoch)
        assert commit(DeltaTable(self.path), rows, epochs, "overwrite")

    def upkeep(self) -> None:
        optimize = DeltaTable(self.path).optimize
        if self.name == LAYOUTS[2]:
            optimize.z_order(["cluster"], target_size=COMPACT_TARGET_BYTES)
        else:
            optimize.compact(target_size=COMPACT_TARGET_BYTES)

    def open(self) -> None:
        DeltaTable(self.path)

    def read_one(self) -> None:
        data = DeltaTable(self.path).to_pyarrow_dataset()
        assert data.count_rows(filter=pc.field("cluster") == "cluster-00003")

    def ask(self) -> None:
        run(str(self.folder), "SELECT cluster, count(*) FROM placements GROUP BY cluster")


def took(work: Callable[[], None], times: int = TIMES) -> list[float]:
    """The median of seconds of the processor and of the clock."""
    found = []
    for _ in range(times):
        cpu_s, clock_s = time.process_time(), time.perf_counter()
        work()
        found.append((time.process_time() - cpu_s, time.perf_counter() - clock_s))
    return [round(statistics.median(each), 3) for each in zip(*found, strict=True)]


def measure(name: str, clusters: int, ranges: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        layout = Layout(Path(folder), name)
        at_once = min(AT_ONCE, clusters)
        for first in range(0, clusters, at_once):
            layout.write(range(first, first + at_once), ranges)
        told: dict[str, object] = {"layout": name, "clusters": clusters, "ranges": ranges}
        told["upkeep at first"] = took(layout.upkeep, 1)
        told["files"] = len(DeltaTable(layout.path).file_uris())
        told["one cluster is written"] = took(lambda: layout.write(range(7, 8), ranges))
        if clusters > at_once:
            told[f"{at_once} are written"] = took(lambda: layout.write(range(at_once), ranges))
        told["upkeep"] = took(layout.upkeep, 1)
        told["opened"] = took(layout.open)
        told["one cluster is read"] = took(layout.read_one)
        told["all is asked"] = took(layout.ask)
        return told


if __name__ == "__main__":
    for clusters, ranges in FLEETS:
        for name in LAYOUTS:
            print(json.dumps(measure(name, clusters, ranges)), flush=True)
