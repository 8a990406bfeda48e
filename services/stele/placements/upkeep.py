"""``python -m stele.placements.upkeep ADDRESS``: join small files of many batches, remove what is out of use.

The job starts it beside itself every ten minutes, and once an hour it looks for files to remove; whoever runs
it elsewhere does no harm.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from deltalake.exceptions import CommitFailedError

from stele.placements.store import Store
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
"""Between two looks for files that are out of use: each lists all files of all tables."""
JOIN_ONLY: Final = "--join-only"

log = get_logger(__name__)


def upkeep(store: Store, *, removes: bool = True) -> None:
    """Files that are no part of a table and a week old are removed, whoever left them: those that went, changes
    for the feed, and what a process wrote that died before its commit. (Delta's own notes of what went are gone
    with the next checkpoint once they are a week old, so files are looked for in the folder itself.) A writer
    that comes first wins: what is left undone is done the next time. Raises TableLost, DeltaError, OSError.
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
    """A process of its own, one at a time; it ends nothing when it fails."""

    def __init__(self, address: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = address
        self._clock = clock
        self._removed_s = clock() - VACUUM_S
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Unless the one before still runs."""
        if self.running():
            return
        argv = [sys.executable, "-m", "stele.placements.upkeep", self._address]
        if self._clock() - self._removed_s < VACUUM_S:
            argv.append(JOIN_ONLY)
        else:
            self._removed_s = self._clock()
        self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def running(self) -> bool:
        """Says once when the last one failed; why stands in its standard error, which is this process's."""
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
    upkeep(Store(sys.argv[1]), removes=JOIN_ONLY not in sys.argv[2:])
