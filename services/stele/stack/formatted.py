"""A cache of formatted broker directories, beside Kafka's jars. It saves a JVM at each first start.

The content depends only on Kafka's version, the cluster's id and the broker's number. It includes
the id of the directory, which must be unique only within one cluster.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

MARK: Final = "meta.properties"
"""File that exists once a directory is formatted. It contains the cluster's id."""


def format_once(
    data: Path, jars: Path, cluster_id: str, node_id: int, run: Callable[[], None]
) -> None:
    """Copy the cached format of this broker into ``data``, or call ``run`` to format it and
    cache the result.

    A cache that is older than the jars is not used.
    """
    newest = max((path.stat().st_mtime_ns for path in jars.rglob("*.jar")), default=0)
    kept = jars / f"formatted-{cluster_id}-{node_id}-{newest}"
    with contextlib.suppress(OSError):
        if f"cluster.id={cluster_id}" in (kept / MARK).read_text():
            _copy(kept, data)
            return
    run()
    with contextlib.suppress(OSError):  # another process has cached it, or the folder is read-only
        _copy(data, kept)


def _copy(source: Path, target: Path) -> None:
    """Copy completely or not at all, because a partial copy would count as formatted."""
    with TemporaryDirectory(prefix="formatting-", dir=target.parent) as scratch:
        shutil.copytree(source, Path(scratch) / target.name).rename(target)
