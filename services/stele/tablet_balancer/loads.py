"""The loads of all nodes. The topic is read from its beginning, so a restart loses none."""

import asyncio
import time
from collections import deque
from typing import Final

from stele.domain.image import Image
from stele.domain.messages import Load
from stele.domain.tablets.heat import with_heat
from stele.domain.tablets.load import LoadTable
from stele.log.codec import DecodeError, decode_load
from stele.runtime.live_flow import LiveFlow
from stele.runtime.logs import get_logger
from stele.runtime.metrics import foreign_messages
from stele.tablet_balancer import metrics
from stele.tablet_balancer.load_history import Histories

LOADS: Final = LiveFlow("tablet-balancer", "load")

log = get_logger(__name__)


class Loads:
    """The fold of reports over an image, without input or output.

    ``table`` may run in another thread than ``on_record``, in one at a time.
    """

    def __init__(self) -> None:
        self._reports = deque[tuple[Load, float]]()
        self._table = LoadTable()
        self.histories = Histories()
        self.read = asyncio.Event()
        """Set once the reports that were in the topic at the start have been read."""

    def on_record(self, value: bytes, age_s: float) -> None:
        """Note one record. A record that cannot be decoded is counted and skipped."""
        try:
            load = decode_load(value)
        except DecodeError as error:
            metrics.unreadable.inc()
            log.warning("left out a record", error=str(error))
            return
        self._reports.append((load, time.monotonic() - age_s))

    def on_read_until(self, _at_s: float, _began_s: float) -> None:
        self.read.set()

    def table(self, image: Image) -> LoadTable:
        """Return the loads that count for an image.

        The image includes all epochs that existed at the start.
        """
        reports = [self._reports.popleft() for _ in range(len(self._reports))]
        now_s = time.monotonic()
        for load, at_s in reports:
            # Records wait for the image, because only a caught-up one has the log id to compare
            # with.
            if load.log_id == image.log_id:
                metrics.loads.inc()
                self._table = self._table.with_load(load, at_s)
                self.histories.note(image, load, now_s - at_s)
            else:
                foreign_messages.labels("load").inc()
        self._table = self._table.current(image)
        if reports:
            self._table = with_heat(image, self._table)
        return self._table
