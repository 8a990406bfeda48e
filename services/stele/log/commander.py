"""Send commands to the metadata-log through Kafka.

The topic ``commands`` carries commands, and ``outcomes`` their outcomes. A command is sent again,
unchanged, until its outcome arrives. A request id has one outcome, however often it is sent
(docs/design.md, rule 4). A time-out leaves the outcome unknown (rule 3). The caller may send the
command again under the same id.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Final, Self

import stamina

from stele.domain.commands import Envelope, Outcome, Rejection
from stele.domain.not_taken import BUSY, horizon_of
from stele.log.brokers import Brokers
from stele.log.codec import DecodeError, decode_outcome, encode_envelope
from stele.log.flows import FlowReader, FlowWriter, flow_topic, start_across_outage

RESEND_S: Final = 2.0
"""Interval of repetition. A commit takes milliseconds, a takeover of the metadata-log seconds."""


BUSY_WAIT_S: Final = 0.1
BUSY_WAIT_MAX_S: Final = 2.0
"""Limits of the pause between two attempts while the metadata log is busy. It doubles each time."""


class NotTakenError(Exception):
    """The command was not decided. The text gives the reason and what to do.

    If the log is frozen, the command may be taken later under the same id. For any other reason it
    never will be under this id.
    """

    def __init__(self, request_id: str, rejection: Rejection) -> None:
        self.request_id = request_id
        self.rejection = rejection
        super().__init__(f"{rejection.message} {rejection.hint} ({rejection.code})")


class _BusyError(Exception):
    """The metadata log was busy and decided nothing; another attempt may succeed."""


class OutcomeUnknownError(TimeoutError):
    """No answer in time: the command may have been applied, may be applied later, or never."""

    def __init__(self, request_id: str, timeout_s: float) -> None:
        self.request_id = request_id
        super().__init__(
            f"No answer to request {request_id} within {timeout_s:g} s: whether it is applied is"
            " unknown. Ask again with the same request id: it has one outcome."
        )


class Commander:
    """Sends the commands of one process. Use ``async with``, or ``start`` and ``close``."""

    def __init__(
        self,
        brokers: Brokers,
        cluster: str,
        resend_s: float = RESEND_S,
        on_unreadable: Callable[[DecodeError], None] = lambda error: None,
    ) -> None:
        """``on_unreadable`` receives the error of each outcome that cannot be decoded."""
        self.foreign = 0
        """Count of ignored outcomes of another log than the one that the command named."""
        self.horizon_ms = -1
        """Time in ms that the next id must exceed, by the newest refusal of an id; -1: none."""
        self._resend_s = resend_s
        self._commands = FlowWriter(brokers, flow_topic(cluster, "commands"))
        self._outcomes = FlowReader(
            brokers, flow_topic(cluster, "outcomes"), self._on_outcome, on_unreadable
        )
        self._waiting: dict[str, list[asyncio.Future[Outcome]]] = {}
        self._log_ids: dict[str, str] = {}

    async def start(self) -> None:
        """Return when the outcomes of all later commands will be received."""
        await self._outcomes.start()

    async def close(self) -> None:
        await self._outcomes.close()
        await self._commands.close()
        for future in (future for waiting in self._waiting.values() for future in waiting):
            future.cancel()

    async def submit(self, envelope: Envelope, timeout_s: float) -> Outcome:
        """Send a command and return its outcome, applied or rejected.

        Raises OutcomeUnknownError, a TimeoutError, after ``timeout_s``. Raises NotTakenError when
        the command was not decided. Concurrent callers with the same request id share the answer.
        """
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
                        return self._taken(await self._answer(envelope))
        except TimeoutError:
            raise OutcomeUnknownError(envelope.request_id, timeout_s) from None
        raise AssertionError("stamina either returns or raises")

    async def _answer(self, envelope: Envelope) -> Outcome:
        outcome = self.send(envelope)
        try:
            while not (await asyncio.wait((outcome,), timeout=self._resend_s))[0]:
                self._commands.send(envelope.request_id, encode_envelope(envelope))
            return outcome.result()
        finally:
            self._forget(envelope.request_id, outcome)

    def send(self, envelope: Envelope) -> asyncio.Future[Outcome]:
        """Send a command once, and return a future of its outcome, whether it is taken or not.

        The caller repeats the command if it matters, and cancels the future to stop waiting.
        """
        request_id = envelope.request_id
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        # Register before sending: the outcome may arrive at once.
        self._waiting.setdefault(request_id, []).append(future)
        self._log_ids[request_id] = envelope.log_id
        future.add_done_callback(partial(self._forget, request_id))
        self._commands.send(request_id, encode_envelope(envelope))
        return future

    def _on_outcome(self, value: bytes) -> None:
        if not self._waiting:
            return
        outcome = decode_outcome(value)
        wanted = self._log_ids.get(outcome.request_id, "")
        # An outcome of an earlier or copied log is no answer (docs/design.md, rule 13).
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
        # Other callers with the same request id may still wait.
        if not waiting:
            self._waiting.pop(request_id, None)
            self._log_ids.pop(request_id, None)

    def _taken(self, outcome: Outcome) -> Outcome:
        why = outcome.rejection
        if outcome.taken or why is None:
            return outcome
        if why.code == BUSY:
            raise _BusyError(why.message)
        self.horizon_ms = horizon_of(why)
        raise NotTakenError(outcome.request_id, why)

    async def __aenter__(self) -> Self:
        await start_across_outage(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        await self.close()
