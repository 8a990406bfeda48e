"""A broker's data directory as formatting leaves it, kept beside Kafka's jars: a JVM less at each first start.

What is in it depends on Kafka's version, the cluster's id and the broker's number alone; the id of the
directory, which is in it too, must differ within one cluster only.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

MARK: Final = "meta.properties"
"""Is there once a directory is formatted, and says of which cluster."""


def format_once(
    data: Path, jars: Path, cluster_id: str, node_id: int, run: Callable[[], None]
) -> None:
    """``run`` formats ``data``, unless it is kept how the same broker's was formatted since the jars came."""
    newest = max((path.stat().st_mtime_ns for path in jars.rglob("*.jar")), default=0)
    kept = jars / f"formatted-{cluster_id}-{node_id}-{newest}"
    with contextlib.suppress(OSError):
        if f"cluster.id={cluster_id}" in (kept / MARK).read_text():
            _copy(kept, data)
            return
    run()
    with contextlib.suppress(OSError):  # somebody else has kept it meanwhile, or nobody may
        _copy(data, kept)


def _copy(source: Path, target: Path) -> None:
    """Whole, or not at all: what is half there would count as formatted."""
    with TemporaryDirectory(prefix="formatting-", dir=target.parent) as scratch:
        shutil.copytree(source, Path(scratch) / target.name).rename(target)
