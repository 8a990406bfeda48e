"""``python -m stele.placements.upkeep ADDRESS``: join small files of many batches, remove unused
files.

The job starts it as a process every ten minutes, and with removal once an hour. Running it
elsewhere too is harmless.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from deltalake.exceptions import CommitFailedError

from stele.placements.store import TableStore
from stele.placements.tables import (
    COMPACT_TARGET_BYTES,
    COMPACT_TARGETS,
    OPTIONAL,
    SCHEMAS,
    existing_table,
)
from stele.runtime.logs import get_logger

END_S: Final = 5.0
VACUUM_S: Final = 3600.0
"""Interval between removals: each lists all files of all tables."""
JOIN_ONLY: Final = "--join-only"

log = get_logger(__name__)


def upkeep(store: TableStore, *, removes: bool = True) -> None:
    """Compact each table, and with ``removes`` delete files that are unused and a week old.

    These are replaced files, changes for the feed, and files of a process that died before its
    commit. Delta's own notes of removed files disappear with the next checkpoint once they are a
    week old. The folder itself is therefore searched.

    A writer that commits first wins; the rest is done the next time. Raises TableLost, DeltaError,
    OSError.
    """
    for name in SCHEMAS:
        if name in OPTIONAL and not store.is_there(name):
            continue
        table = existing_table(store, name)
        with suppress(CommitFailedError):
            table.optimize.compact(target_size=COMPACT_TARGETS.get(name, COMPACT_TARGET_BYTES))
        if removes:
            table.vacuum(dry_run=False, full=True)


class Upkeep:
    """Runs the upkeep as a process, one at a time. Its failure ends no other work."""

    def __init__(self, address: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = address
        self._clock = clock
        self._removed_s = clock() - VACUUM_S
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, unless the previous one still runs."""
        if self.running():
            return
        argv = [sys.executable, "-m", "stele.placements.upkeep", self._address]
        if self._clock() - self._removed_s < VACUUM_S:
            argv.append(JOIN_ONLY)
        else:
            self._removed_s = self._clock()
        self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def running(self) -> bool:
        """Return whether it runs.

        Logs a failure once; the cause is in the shared standard error.
        """
        if self._process is None:
            return False
        if self._process.poll() is None:
            return True
        if self._process.returncode:
            log.warning("the upkeep of the tables failed", exit_code=self._process.returncode)
        self._process = None
        return False

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(END_S)


if __name__ == "__main__":
    upkeep(TableStore(sys.argv[1]), removes=JOIN_ONLY not in sys.argv[2:])
