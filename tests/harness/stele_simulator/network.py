"""The network between processes: loss, doubles, delay with a long tail (hence reordering), partitions."""

from collections.abc import Callable
from typing import Any

import msgspec

from stele_simulator.kernel import Kernel, Owner, us


class Weather(msgspec.Struct, frozen=True, kw_only=True):
    """How messages and appends fare. Shares are 0 to 1, delays are seconds."""

    loss: float = 0.0
    duplicate: float = 0.0
    delay_s: float = 0.002
    """Usual delay: between this and five times this."""
    tail: float = 0.0
    """Share of messages that take up to ``tail_s``."""
    tail_s: float = 5.0
    append_loss: float = 0.0
    append_duplicate: float = 0.0
    append_tail: float = 0.0
    """Share of appends that hang up to ``tail_s`` before they land: their writer knows nothing."""


FINE = Weather()


class Network:
    """Carries calls between owners, or does not."""

    def __init__(self, kernel: Kernel, weather: Weather) -> None:
        self.weather = weather
        self.sent = 0
        self.lost = 0
        self._kernel = kernel
        self._links: dict[tuple[str, str], Callable[[], float]] = {}
        self._cuts: dict[int, frozenset[tuple[str, str]]] = {}
        self._blocked: frozenset[tuple[str, str]] = frozenset()

    def cut(self, name: int, pairs: frozenset[tuple[str, str]]) -> None:
        """Block these (from, to) pairs until ``mend(name)``; cuts add up."""
        self._cuts[name] = pairs
        self._blocked = frozenset().union(*self._cuts.values())

    def mend(self, name: int) -> None:
        self._cuts.pop(name, None)
        self._blocked = frozenset[tuple[str, str]]().union(*self._cuts.values())

    def mend_all(self) -> None:
        self._cuts = {}
        self._blocked = frozenset()

    def reaches(self, source: str, target: str) -> bool:
        return (source, target) not in self._blocked

    def chance(self, source: str, target: str) -> Callable[[], float]:
        """Each link draws its own luck, so that what is left out elsewhere does not change it."""
        link = (source, target)
        if link not in self._links:
            self._links[link] = self._kernel.random(f"link/{source}/{target}").random
        return self._links[link]

    def delay_us(self, draw: Callable[[], float]) -> int:
        if self.weather.tail and draw() < self.weather.tail:
            return us(self.weather.tail_s * draw())
        return us(self.weather.delay_s * (1 + 4 * draw()))

    def send(self, source: Owner, target: Owner, call: Callable[..., None], *args: Any) -> None:
        """Call at the target once, or twice, or never. A process always reaches itself."""
        self.sent += 1
        weather = self.weather
        if source is target:
            self._kernel.deliver(self._kernel.now_us, target, call, *args)
            return
        draw = self.chance(source.name, target.name)
        if not self.reaches(source.name, target.name) or (weather.loss and draw() < weather.loss):
            self.lost += 1
            return
        self._kernel.deliver(self._kernel.now_us + self.delay_us(draw), target, call, *args)
        if weather.duplicate and draw() < weather.duplicate:
            self._kernel.deliver(self._kernel.now_us + self.delay_us(draw), target, call, *args)
