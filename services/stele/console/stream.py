"""The event stream of one page: epochs from its position on, and each new poll of the services."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from http import HTTPStatus
from typing import Final, Literal

import msgspec

from stele.console.epoch_text import EpochText, epoch_text, names_of, row_of
from stele.console.mirror import Mirror
from stele.console.upstream import AwayError
from stele.console.watch import Hub, Watch
from stele.runtime.http import HttpError

MOST_BEHIND: Final = 5000
"""Epochs that a page receives one by one after a sleep. A page further behind reads the state
again."""
AT_ONCE: Final = 500
PING_S: Final = 10.0
PING: Final = b": \n\n"

_JSON: Final = msgspec.json.Encoder()


def event(name: str, data: bytes, number: int | None = None) -> bytes:
    """Encode one server-sent event. The data is JSON and has no line ends."""
    head = b"" if number is None else b"id: %d\n" % number
    return b"%sevent: %s\ndata: %s\n\n" % (head, name.encode(), data)


def epoch_event(epoch: EpochText) -> bytes:
    return event("epoch", _JSON.encode(epoch), epoch.epoch)


class Pages:
    """State shared by all pages: each event is encoded once."""

    def __init__(self, mirror: Mirror, hub: Hub, watch: Watch) -> None:
        self._mirror = mirror
        self._hub = hub
        self._watch = watch
        self._looked = (0, b"")

    async def events(
        self, after: int, state_id: str, stopping: asyncio.Event
    ) -> AsyncGenerator[bytes]:
        """Yield events after epoch ``after``, which had ``state_id``; with 0, from now on."""
        hub = self._hub
        hub.readers += 1
        stopped = asyncio.create_task(stopping.wait())
        try:
            while not self._mirror.image.epoch and not stopping.is_set():
                bell = hub.bell()
                yield self._look()
                if await _wait(bell, stopped):
                    yield PING
            while (ours := after and await self._is_ours(after, state_id)) is None:
                bell = hub.bell()
                yield self._look()
                if await _wait(bell, stopped):
                    yield PING
                if stopping.is_set():
                    return
            history, at = hub.history, after if ours else self._mirror.image.epoch
            yield self._hello("resumed" if ours else "anew" if after else "begun")
            seen = 0
            while not stopping.is_set():
                bell = hub.bell()
                if hub.history != history:
                    history, at = hub.history, self._mirror.image.epoch
                    yield self._hello("anew")
                async for number, data in self._following(at):
                    at = number
                    yield data
                if self._watch.number != seen:
                    seen = self._watch.number
                    yield self._look()
                # Checked again, because the generator was suspended at each yield. The bell was
                # taken before, so an event that arrives after this line is not missed.
                is_quiet = hub.history == history and not hub.after(at)
                if is_quiet and await _wait(bell, stopped):
                    yield PING
        finally:
            hub.readers -= 1
            stopped.cancel()

    async def _following(self, at: int) -> AsyncIterator[tuple[int, bytes]]:
        """Yield the events after an epoch: those not kept in the hub first, then the kept ones."""
        hub = self._hub
        newest = self._mirror.image.epoch
        while at < newest and (not hub.newest or at + 1 < hub.oldest):
            missing = await self._past(at, newest)
            if not missing:
                return
            for each in missing:
                at = each.epoch
                yield at, epoch_event(each)
        while found := hub.after(at):
            for number, bytes_ in found:
                at = number
                yield number, bytes_

    async def _past(self, at: int, newest: int) -> list[EpochText]:
        """Return the epochs after ``at`` in words; none while they are not available."""
        until = min(newest, self._hub.oldest - 1) if self._hub.newest else newest
        try:
            found = await self._mirror.epochs(at + 1, min(AT_ONCE, until - at))
        except (AwayError, HttpError):
            return []
        names = names_of(self._mirror.image)
        return [epoch_text(row_of(epoch), names) for epoch in found]

    async def _is_ours(self, after: int, state_id: str) -> bool | None:
        """Return True if the page is in this history; None while no service can answer."""
        newest = self._mirror.image.epoch
        if not newest - MOST_BEHIND <= after <= newest:
            return False
        try:
            return await self._mirror.state_id_at(after) == state_id
        except AwayError:
            return None
        except HttpError as error:
            return None if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR else False

    def _hello(self, how: str) -> bytes:
        """Encode the greeting with the newest state.

        ``how`` is ``begun``, ``resumed`` or ``anew``. With ``anew``, the page discards its state.
        """
        image = self._mirror.image
        place = {"epoch": image.epoch, "state_id": image.state_id.hex()}
        return event("hello", _JSON.encode({"how": how, **place}))

    def _look(self) -> bytes:
        if self._looked[0] != self._watch.number:
            self._looked = (
                self._watch.number,
                event("looked", _JSON.encode(self._watch.latest_poll)),
            )
        return self._looked[1]


async def _wait(bell: asyncio.Event, stopped: "asyncio.Task[Literal[True]]") -> bool:
    """Wait for the bell or the end, at most PING_S. Return True if a ping is due."""
    ringing = asyncio.ensure_future(bell.wait())
    done, _ = await asyncio.wait(
        (ringing, stopped), timeout=PING_S, return_when=asyncio.FIRST_COMPLETED
    )
    ringing.cancel()
    return not done
