"""One stack per directory: a lock that the kernel releases when its holder dies."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stele.cli.errors import CliError

LOCK_FILE = "stack.lock"
RUNS_ALREADY = (
    "`stele stack status` shows it. To have what was left out (`--without`): `stele stack down`, which keeps"
    " the data, then `stele stack up`. --dir chooses another."
)


@contextmanager
def hold(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory inside the block. Raises CliError if another stack has it."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK_FILE).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CliError(
                f"A stack runs over {directory} already.",
                RUNS_ALREADY,
            ) from error
        yield


def is_held(directory: Path) -> bool:
    """Return True while a stack runs over the directory."""
    try:
        with (directory / LOCK_FILE).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return False
