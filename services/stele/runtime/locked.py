"""A folder that one process at a time may use."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from stele.runtime.settings import ConfigurationError

LOCK: Final = "lock"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of the folder inside the block. Raises ConfigurationError."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigurationError(
                f"STELE_DATA_DIR={folder} is in use by another process: end that one first"
            ) from error
        yield
