"""Those who watch the log through a metadata log: every epoch once, in order, whoever answers."""

from typing import Final, NamedTuple

from stele.sim.process import Process

POLL_S: Final = 0.5
TIMEOUT_S: Final = 2.0
GROWS_AFTER: Final = 10
"""After so many calls without an answer it waits twice as long: where most records have lost their epochs, the
past takes long to read.
"""
MOST_EPOCHS: Final = 8
"""Most epochs asked for at once; sometimes fewer."""
MOST_REFUSALS: Final = 3


class TooOld(NamedTuple):
    """The epoch asked for is not known any more; the oldest state that can be had is that of ``oldest``."""

    oldest: int


Told = list[tuple[int, bytes]] | TooOld | None
"""Epochs and their state ids; None: no answer."""


class Watcher(Process):
    """Goes on where it broke off; what it has seen outlives it."""

    @property
    def last(self) -> int:
        """The newest epoch that it was told."""
        found: int = self.disk.get("last", 0)
        return found

    def start(self) -> None:
        self.spawn(self._work())

    async def _work(self) -> None:
        refusals = unanswered = 0
        while True:
            writers = self.world.writers
            writer = writers[int(self.random() * len(writers))]
            asked = self.last + 1, 1 + int(self.random() * MOST_EPOCHS)
            timeout_s = TIMEOUT_S * 2 ** (unanswered // GROWS_AFTER)
            told: Told = await self.call(
                writer, writer.serve_epochs, *asked, timeout_s=timeout_s
            ).wait()
            if told is None:
                unanswered += 1
            else:  # what took long once does so again
                unanswered -= unanswered % GROWS_AFTER
            if isinstance(told, TooOld):
                refusals += 1
                if refusals >= MOST_REFUSALS and told.oldest > self.last:
                    self.world.witness.watch_begins_anew(self.name, told.oldest)
                    self.disk["last"] = told.oldest
            elif told:
                refusals = 0
                for epoch, state_id in told:
                    self.world.witness.watched(self.name, epoch, state_id)
                    self.disk["last"] = epoch
            if not isinstance(told, list) or len(told) < asked[1]:
                await self.sleep(POLL_S * 2 * self.random())
