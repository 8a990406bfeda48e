"""The stream of one page: epochs from where it left, and each new look at the services."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from http import HTTPStatus
from typing import Final, Literal

import msgspec

from stele.console.hub import Hub
from stele.console.mirror import Mirror
from stele.console.told import EpochInWords, names_of, row_of, told
from stele.console.upstream import AwayError
from stele.console.watch import Watch
from stele.runtime.http import HttpError

MOST_BEHIND: Final = 5000
"""Epochs that a page is told one by one after a sleep; behind more it reads the state anew."""
AT_ONCE: Final = 500
PING_S: Final = 10.0
PING: Final = b": \n\n"

_JSON: Final = msgspec.json.Encoder()


def event(name: str, data: bytes, number: int | None = None) -> bytes:
    """One server-sent event; JSON has no line ends."""
    head = b"" if number is None else b"id: %d\n" % number
    return b"%sevent: %s\ndata: %s\n\n" % (head, name.encode(), data)


def told_event(epoch: EpochInWords) -> bytes:
    return event("epoch", _JSON.encode(epoch), epoch.epoch)


class Pages:
    """What all pages share: each event is encoded once."""

    def __init__(self, mirror: Mirror, hub: Hub, watch: Watch) -> None:
        self._mirror = mirror
        self._hub = hub
        self._watch = watch
        self._looked = (0, b"")

    async def events(
        self, after: int, state_id: str, stopping: asyncio.Event
    ) -> AsyncGenerator[bytes]:
        """From behind epoch ``after``, which had ``state_id``; with 0, from now on."""
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
                async for number, told_ in self._following(at):
                    at = number
                    yield told_
                if self._watch.number != seen:
                    seen = self._watch.number
                    yield self._look()
                is_quiet = hub.history == history and not hub.after(at)
                if is_quiet and await _wait(bell, stopped):
                    yield PING
        finally:
            hub.readers -= 1
            stopped.cancel()

    async def _following(self, at: int) -> AsyncIterator[tuple[int, bytes]]:
        """What is there behind an epoch: of the past what nobody has kept, then what is kept."""
        hub = self._hub
        newest = self._mirror.image.epoch
        while at < newest and (not hub.newest or at + 1 < hub.oldest):
            missing = await self._past(at, newest)
            if not missing:
                return
            for each in missing:
                at = each.epoch
                yield at, told_event(each)
        while found := hub.after(at):
            for number, bytes_ in found:
                at = number
                yield number, bytes_

    async def _past(self, at: int, newest: int) -> list[EpochInWords]:
        """Epochs behind ``at``; none while they cannot be had."""
        until = min(newest, self._hub.oldest - 1) if self._hub.newest else newest
        try:
            found = await self._mirror.epochs(at + 1, min(AT_ONCE, until - at))
        except (AwayError, HttpError):
            return []
        names = names_of(self._mirror.image)
        return [told(row_of(epoch), names) for epoch in found]

    async def _is_ours(self, after: int, state_id: str) -> bool | None:
        """Whether the page is in this history; None while nobody can be asked."""
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
        """``how``: begun, resumed, or anew, where what the page knows is of no use. With the newest state."""
        image = self._mirror.image
        place = {"epoch": image.epoch, "state_id": image.state_id.hex()}
        return event("hello", _JSON.encode({"how": how, **place}))

    def _look(self) -> bytes:
        if self._looked[0] != self._watch.number:
            self._looked = self._watch.number, event("looked", _JSON.encode(self._watch.looked))
        return self._looked[1]


async def _wait(bell: asyncio.Event, stopped: "asyncio.Task[Literal[True]]") -> bool:
    """Until the bell, the end, or for so long that a sign of life is due, which is True."""
    ringing = asyncio.ensure_future(bell.wait())
    done, _ = await asyncio.wait(
        (ringing, stopped), timeout=PING_S, return_when=asyncio.FIRST_COMPLETED
    )
    ringing.cancel()
    return not done
