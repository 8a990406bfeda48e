"""Asking the metadata log through Kafka: a command on ``commands``, its answer on ``outcomes``.

A command is sent again, unchanged, until its answer comes: a request id has one outcome, however often it
is sent. Whoever runs out of time knows nothing, and may ask again under the same id.
"""

import asyncio
from types import TracebackType
from typing import Final, Self

import stamina

from stele.domain.commands import Envelope, Outcome, Rejection
from stele.domain.requests.not_taken import BUSY, horizon_of
from stele.log.brokers import Brokers
from stele.log.codec import DecodeError, decode_outcome, encode_envelope
from stele.log.flows import FlowReader, FlowWriter, flow_topic

RESEND_S: Final = 2.0
"""A whole commit takes milliseconds; a metadata log that is taken over by another, seconds."""


BUSY_WAIT_S: Final = 0.1
BUSY_WAIT_MAX_S: Final = 2.0
"""Between two tries while the metadata log is busy; the pause doubles."""


class NotTakenError(Exception):
    """The command was not decided; the text says why and what to do. Where the log is frozen it may be taken
    later, under the same id; else it never will be under this one.
    """

    def __init__(self, request_id: str, rejection: Rejection) -> None:
        self.request_id = request_id
        self.rejection = rejection
        super().__init__(f"{rejection.message} {rejection.hint} ({rejection.code})")


class _BusyError(Exception):
    """Nothing was decided; another try may be."""


class OutcomeUnknownError(TimeoutError):
    """No answer in time: the command may have been applied, may be still, or may never be."""

    def __init__(self, request_id: str, timeout_s: float) -> None:
        self.request_id = request_id
        super().__init__(
            f"No answer to request {request_id} within {timeout_s:g} s: whether it is applied is"
            " unknown. Ask again with the same request id: it has one outcome."
        )


class Commander:
    """Commands of one process. ``async with Commander(...)``, or ``start`` and ``close``."""

    def __init__(self, brokers: Brokers, cluster: str, resend_s: float = RESEND_S) -> None:
        self.unreadable = 0
        """Outcomes that could not be decoded."""
        self.foreign = 0
        """Outcomes of another log than the command was meant for; they are no answers."""
        self.horizon_ms = -1
        """What the next id must be newer than, as the newest refusal of an id tells; -1: it tells nothing."""
        self._resend_s = resend_s
        self._commands = FlowWriter(brokers, flow_topic(cluster, "commands"))
        self._outcomes = FlowReader(
            brokers, flow_topic(cluster, "outcomes"), self._on_outcome, self._on_unreadable
        )
        self._waiting: dict[str, list[asyncio.Future[Outcome]]] = {}
        self._log_ids: dict[str, str] = {}

    async def start(self) -> None:
        """Returns once answers to what is sent from now on will be seen."""
        await self._outcomes.start()

    async def close(self) -> None:
        await self._outcomes.close()
        await self._commands.close()
        for future in (future for waiting in self._waiting.values() for future in waiting):
            future.cancel()

    async def submit(self, envelope: Envelope, timeout_s: float) -> Outcome:
        """The command's outcome, applied or rejected.

        Raises OutcomeUnknownError, a TimeoutError; NotTakenError when nothing was or will be decided.

        Callers that ask with the same request id at the same time share the answer.
        """
        value = encode_envelope(envelope)
        tries = stamina.retry_context(
            on=_BusyError,
            attempts=None,
            timeout=None,
            wait_initial=BUSY_WAIT_S,
            wait_max=BUSY_WAIT_MAX_S,
        )
        try:
            async with asyncio.timeout(timeout_s):
                async for attempt in tries:
                    with attempt:
                        return self._taken(await self._answer(envelope, value))
        except TimeoutError:
            raise OutcomeUnknownError(envelope.request_id, timeout_s) from None
        raise AssertionError("stamina either returns or raises")

    async def _answer(self, envelope: Envelope, value: bytes) -> Outcome:
        request_id = envelope.request_id
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(request_id, []).append(future)
        self._log_ids[request_id] = envelope.log_id
        try:
            while not future.done():
                self._commands.send(request_id, value)
                await asyncio.wait((future,), timeout=self._resend_s)
            return future.result()
        finally:
            self._forget(request_id, future)

    def send(self, envelope: Envelope) -> None:
        """Send once and wait for nothing; the sender says again what matters."""
        self._commands.send(envelope.request_id, encode_envelope(envelope))

    def _on_outcome(self, value: bytes) -> None:
        if not self._waiting:
            return
        outcome = decode_outcome(value)
        wanted = self._log_ids.get(outcome.request_id, "")
        if outcome.taken and wanted not in ("", outcome.log_id.hex()):
            self.foreign += 1
            return
        for future in self._waiting.pop(outcome.request_id, ()):
            if not future.done():
                future.set_result(outcome)

    def _forget(self, request_id: str, future: asyncio.Future[Outcome]) -> None:
        waiting = self._waiting.get(request_id, [])
        if future in waiting:
            waiting.remove(future)
        if not waiting:
            self._waiting.pop(request_id, None)
            self._log_ids.pop(request_id, None)

    def _on_unreadable(self, error: DecodeError) -> None:
        self.unreadable += 1

    def _taken(self, outcome: Outcome) -> Outcome:
        why = outcome.rejection
        if outcome.taken or why is None:
            return outcome
        if why.code == BUSY:
            raise _BusyError(why.message)
        self.horizon_ms = horizon_of(why)
        raise NotTakenError(outcome.request_id, why)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
