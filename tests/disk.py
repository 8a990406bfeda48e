"""A small file system that a test can fill."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

DISK_BYTES = 64 * 1024 * 1024
CHUNK_BYTES = 256 * 1024
COMMAND_S = 60.0


class Disk:
    """A separate file system that can be filled."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self, left: int) -> None:
        """A job may write meanwhile, so what is free is found by trying."""
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(CHUNK_BYTES))
            except OSError as error:
                assert error.errno == errno.ENOSPC, error
            file.truncate(file.tell() - left)

    def empty(self) -> None:
        self._ballast.unlink()


@contextmanager
def mounted(path: Path) -> Iterator[Disk]:
    """A disk at ``path``. Skips the test where nothing can be mounted."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    except FileNotFoundError:
        pytest.skip("A disk that can be filled takes mount, which is not here")
    if done.returncode:
        pytest.skip(f"A disk that can be filled takes a mount as root: {done.stderr.strip()}")
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], timeout=COMMAND_S, check=True)
