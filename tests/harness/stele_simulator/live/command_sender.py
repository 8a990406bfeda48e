"""A question to either metadata-log, by HTTP or through Kafka, repeated until it is answered."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final

import aiohttp
import msgspec

from stele.domain.commands import AnyCommand, Envelope, Outcome
from stele.domain.image import Image
from stele.domain.names import UNFINISHED
from stele.log.commander import Commander, NotTakenError
from stele.runtime.answers.metadata_log import OutcomeAnswer
from stele.runtime.request_ids import new_request_id
from stele_simulator.live.history import History, Question
from stele_simulator.live.site import ANSWER_TIMEOUT_S

THROUGH_KAFKA: Final = "commands"
GIVE_UP_S: Final = 90.0
"""Time for which a command is retried. Afterwards its outcome stays unknown."""
RETRY_PAUSE_S: Final = 0.2
POLL_S: Final = 0.2
SHOWN_WITHIN_S: Final = 10.0
"""Until an image has what was answered."""
FINISHED_WITHIN_S: Final = 120.0


async def holds_within(true: Callable[[], bool], limit_s: float) -> bool:
    """Return whether the condition became true in time."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + limit_s
    while not true():
        if loop.time() > end_s:
            return False
        await asyncio.sleep(POLL_S)
    return True


async def see_finished(image: Callable[[], Image], request_id: str) -> bool:
    """Wait for the end of a request. Return True also when it was forgotten, long after its end. The image
    may be older than the answer to the request.
    """
    await holds_within(lambda: image().request(request_id) is not None, SHOWN_WITHIN_S)

    def finished() -> bool:
        request = image().request(request_id)
        return request is None or request.status not in UNFINISHED

    return await holds_within(finished, FINISHED_WITHIN_S)


class CommandSender:
    """Puts a question until it is answered, always under the same request id, and records it."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        commander: Commander,
        urls: Sequence[str],
        history: History,
        seed: int,
    ) -> None:
        self._http = http
        self._commander = commander
        self.urls = list(urls)
        self._history = history
        self._chance = random.Random(seed)

    async def ask(self, command: AnyCommand, reason: str) -> Outcome | None:
        """Return the outcome; None when there was none within ``GIVE_UP_S``."""
        envelope = Envelope(
            request_id=new_request_id(),
            command=command,
            actor="admin",
            reason=reason,
            origin="sim live",
        )
        began = self._history.now()
        by_kafka = self._chance.random() < 1 / (1 + len(self.urls))
        outcome = await (self._by_kafka(envelope) if by_kafka else self._by_http(envelope))
        self._history.add(
            Question(
                began=began,
                ended=self._history.now(),
                envelope=envelope,
                through=THROUGH_KAFKA if by_kafka else "http",
                outcome=outcome,
            )
        )
        return outcome

    async def _by_kafka(self, envelope: Envelope) -> Outcome | None:
        try:
            return await self._commander.submit(envelope, GIVE_UP_S)
        except (TimeoutError, NotTakenError):
            return None

    async def _by_http(self, envelope: Envelope) -> Outcome | None:
        body, loop = msgspec.json.encode(envelope), asyncio.get_running_loop()
        end_s = loop.time() + GIVE_UP_S
        while loop.time() < end_s:
            outcome = await self._once(self._chance.choice(self.urls), body)
            if outcome is not None:
                return outcome
            await asyncio.sleep(RETRY_PAUSE_S)
        return None

    async def _once(self, url: str, body: bytes) -> Outcome | None:
        try:
            async with self._http.post(
                f"{url}/v1/commands",
                data=body,
                timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S),
            ) as answer:
                given = await answer.read()
                if answer.status not in (200, 409):
                    return None
        except (aiohttp.ClientError, TimeoutError):
            return None
        told = msgspec.json.decode(given, type=OutcomeAnswer)
        return Outcome(
            request_id=told.request_id,
            applied=told.applied,
            epoch=told.epoch,
            state_id=bytes.fromhex(told.state_id),
            rejection=told.rejection,
        )
