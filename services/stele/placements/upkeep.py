"""``python -m stele.placements.upkeep ADDRESS``: join small files of many batches, remove what is out of use.

The job starts it beside itself every ten minutes; whoever runs it elsewhere does no harm.
"""

import subprocess
import sys
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

log = get_logger(__name__)


def upkeep(store: Store) -> None:
    """Files that went a week ago are removed. A writer that comes first wins: what is left undone is done the
    next time. Raises TableLost, DeltaError, OSError.
    """
    for name in SCHEMAS:
        if name in OPTIONAL and not store.is_there(name):
            continue
        table = existing_table(store, name)
        try:
            table.optimize.compact(target_size=COMPACT_TARGETS.get(name, COMPACT_TARGET_BYTES))
        except CommitFailedError:
            continue
        table.vacuum(dry_run=False)


class Upkeep:
    """A process of its own, one at a time; it ends nothing when it fails."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Unless the one before still runs."""
        if self.running():
            return
        argv = [sys.executable, "-m", "stele.placements.upkeep", self._address]
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
    upkeep(Store(sys.argv[1]))
