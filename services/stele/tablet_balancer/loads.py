"""The loads of all nodes, as the topic has them. It is read from its beginning, so a crash forgets none."""

import asyncio
import time
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
    """The fold of reports over an image; no input or output of its own."""

    def __init__(self) -> None:
        self._conditions = list[tuple[Load, float]]()
        self._table = LoadTable()
        self.histories = Histories()
        self.read = asyncio.Event()
        """What was in the topic at the start has been read."""

    def on_record(self, value: bytes, age_s: float) -> None:
        """Note one record; what cannot be decoded is counted and left out."""
        try:
            load = decode_load(value)
        except DecodeError as error:
            metrics.unreadable.inc()
            log.warning("left out a record", error=str(error))
            return
        self._conditions.append((load, time.monotonic() - age_s))

    def on_read_until(self, _at_s: float, _began_s: float) -> None:
        self.read.set()

    def table(self, image: Image) -> LoadTable:
        """What counts by an image, which has been read to the end that the log had at the start."""
        conditions, self._conditions = self._conditions, []
        now_s = time.monotonic()
        for load, at_s in conditions:
            if load.log_id == image.log_id:
                metrics.loads.inc()
                self._table = self._table.with_load(load, at_s)
                self.histories.note(image, load, now_s - at_s)
            else:
                foreign_messages.labels("load").inc()
        self._table = self._table.current(image)
        if conditions:
            self._table = with_heat(image, self._table)
        return self._table
