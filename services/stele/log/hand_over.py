"""From the threads that read and hear of deliveries into the event loop: records in their order, a few batches
at a time."""

import asyncio
import threading
from typing import Final

from stele.log.delivered import Delivered
from stele.log.loops import call_in
from stele.log.port import HasRoom, OnRecords, Record
from stele.log.pulse import Moment

MAX_IN_HAND: Final = 4
"""Batches that may wait for the event loop before the reading thread pauses."""


class HandOver:
    """Of one follower, from ``offset`` on. ``fetched`` and ``reported`` may be called in threads."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        offset: int,
        on_records: OnRecords,
        has_room: HasRoom,
        stop: threading.Event,
    ) -> None:
        self._loop = loop
        self._on_records = on_records
        self._has_room = has_room
        self._stop = stop
        self._delivered = Delivered(offset)
        self._in_order = threading.Lock()
        self._in_hand = threading.Semaphore(MAX_IN_HAND)

    def fetched(self, batch: list[Record]) -> None:
        """Waits while too much is in hand. Raises AnchorLostError."""
        while not self._in_hand.acquire(timeout=0.2):
            if self._stop.is_set():
                return
        records = list[Record]()
        try:
            with self._in_order:
                records = self._delivered.fetched(batch)
                if records:
                    call_in(self._loop, self._run, records)
        finally:
            if not records:
                self._in_hand.release()

    def reported(self, offset: int, value: bytes, sent: Moment) -> None:
        """Of an own record. Waits for nothing: what cannot be taken now is taken once it is fetched."""
        if self._stop.is_set() or not self._has_room():
            return
        if not self._in_hand.acquire(blocking=False):
            return
        with self._in_order:
            if self._delivered.reported(offset, value, sent):
                call_in(self._loop, self._run, [Record(offset, value)])
                return
        self._in_hand.release()

    def end(self) -> None:
        """Following is over: nothing is given after that is told."""
        with self._in_order:
            self._delivered.end()

    def _run(self, batch: list[Record]) -> None:
        try:
            self._on_records(batch)
        finally:
            self._in_hand.release()
