"""How many acks a directory's node may have sent: a number on its disk that is never behind them.

An older copy of the directory lacks what was acknowledged since. Its number is behind what the topic
of acks holds, and so shows it (``agent.older_copy``).

The file is overwritten in place, which a full disk lets happen, and by turns in one of two slots, so that the
other one is whole whatever becomes of a write.
"""

import time
import zlib
from pathlib import Path
from typing import Final

from stele.log.archive.files import sync_file, whole_file
from stele.runtime.logs import get_logger

FILE: Final = "heartbeats"
SLOT_BYTES: Final = 4096
"""So that each is in a sector of its own: a write touches no other slot."""
AHEAD: Final = 32
"""By so many the number is raised: sixteen seconds of a node that has nothing to tell."""
MOST_AHEAD: Final = 256
OFTEN_S: Final = 4.0
"""Raised again sooner than this it goes up by twice as many, since a disk may be slow."""
_DAMAGED: Final = -1

log = get_logger(__name__)


class Heartbeats:
    """``counted`` is the greatest ``sequence`` that an ack of this node may have.

    Its methods may be called from any thread, by one at a time.
    """

    def __init__(self, path: Path, numbers: tuple[int, int]) -> None:
        self._path = path
        self._newest = numbers.index(max(numbers))
        """The slot that is not to be touched."""
        self.counted = max(numbers)
        self._step = AHEAD
        self._raised_s = float("-inf")

    def is_short(self, sequence: int) -> bool:
        """Whether it is time to raise it, when so many were sent."""
        return self.counted - sequence < self._step // 2

    def get_ahead_of(self, sequence: int) -> None:
        """Raise it, by more where that comes often. Returns once it is synced. Raises OSError."""
        now_s = time.monotonic()
        often = now_s - self._raised_s < OFTEN_S
        self._step, self._raised_s = min(2 * self._step, MOST_AHEAD) if often else AHEAD, now_s
        self.raise_to(sequence + self._step)

    def raise_to(self, number: int) -> None:
        """Returns once it is synced. Raises OSError."""
        if number > self.counted:
            slot = 1 - self._newest
            with self._path.open("r+b") as file:
                file.seek(slot * SLOT_BYTES)
                file.write(_slot(number))
                sync_file(file)
            self._newest, self.counted = slot, number


def begun(folder: Path) -> Heartbeats:
    """Of a directory that is made just now: none. Raises OSError."""
    path = folder / FILE
    with whole_file(path) as file:
        file.write(2 * _slot(0))
    return Heartbeats(path, (0, 0))


def read(folder: Path) -> Heartbeats:
    """Of a directory that was there, and has had the file for as long as a host id. Where the file is missing
    or damaged it counts none, so that only an operator lets its node go on. Raises OSError.
    """
    path = folder / FILE
    try:
        with path.open("r+b") as file:
            data = file.read()
            sync_file(file)  # what a process wrote before it was killed may not be on the disk yet
    except FileNotFoundError:
        data = b""
    one, other = _number(data[:SLOT_BYTES]), _number(data[SLOT_BYTES:])
    if one == other == _DAMAGED:
        log.error("the count of heartbeats is missing or damaged, and begins anew", file=str(path))
        return begun(folder)
    return Heartbeats(path, (one, other))


def _slot(number: int) -> bytes:
    text = b"%020d" % number
    return (b"%s %08x\n" % (text, zlib.crc32(text))).ljust(SLOT_BYTES)


def _number(slot: bytes) -> int:
    text, _, check = slot.strip().partition(b" ")
    return int(text) if text.isdigit() and check == b"%08x" % zlib.crc32(text) else _DAMAGED
