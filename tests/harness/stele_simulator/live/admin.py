"""The base of those that change a live cluster at random."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from stele.domain.image import Image
from stele_simulator.live.command_sender import CommandSender


class Admin:
    """Makes one change after the other for as long as ``running``. Subclasses define ``_change``."""

    def __init__(
        self,
        sender: CommandSender,
        image: Callable[[], Image],
        seed: int | str,
        mean_pause_s: float,
    ) -> None:
        self.running = True
        self._sender = sender
        self._image = image
        self._chance = random.Random(seed)
        self._mean_pause_s = mean_pause_s

    async def work(self) -> None:
        while self.running:
            await asyncio.sleep(self._chance.expovariate(1 / self._mean_pause_s))
            await self._change()

    async def _change(self) -> None:
        raise NotImplementedError
