"""Requests and answers of a run on real processes, kept in memory and as JSON lines in a file.

Times are seconds of one monotonic clock since the beginning of the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from stele.domain.commands import Envelope, Outcome
from stele_simulator.live.faults import FaultKind, Role


class Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="what"):
    """Base of everything that is recorded; it was over at ``ended``."""

    began: float
    ended: float


class DataOp(Record, frozen=True, kw_only=True, tag="data"):
    """A quorum write or read through node ``node``. ``value`` is None for a key that is not there.

    ``known`` is False when no answer came that tells whether it was done.
    """

    client: int
    node: str
    write: bool
    key: str
    value: str | None
    done: bool
    known: bool
    answer: str = ""


class Question(Record, frozen=True, kw_only=True, tag="command"):
    """A command, asked again under its request id until it was answered; ``outcome`` None: never."""

    envelope: Envelope
    through: str
    outcome: Outcome | None


class StateRead(Record, frozen=True, kw_only=True, tag="state"):
    """A read of the state through metadata-log ``through``; ``answer`` says why there was none."""

    through: str
    level: str
    answered: bool
    epoch: int = 0
    state_id: str = ""
    answer: str = ""


class WatchedEpoch(Record, frozen=True, kw_only=True, tag="watch"):
    """An epoch that arrived at watch number ``watch``."""

    watch: int
    epoch: int
    state_id: str


class Probe(Record, frozen=True, kw_only=True, tag="probe"):
    """A replica write of topology version ``version``, sent when node ``node`` had said ``epoch``."""

    node: str
    epoch: int
    version: int
    code: str


class Truncation(Record, frozen=True, kw_only=True, tag="truncation"):
    """The truncation of a keyspace, from the request until its end was observed.

    ``done`` is False when its end was not observed.
    """

    keyspace: str
    done: bool


class Copy(Record, frozen=True, kw_only=True, tag="copy"):
    """The row that replica ``node`` has for ``key`` at rest; None if it has none."""

    key: str
    node: str
    value: str | None


class Hit(Record, frozen=True, kw_only=True, tag="hit"):
    """A fault from its begin to its end; ``name`` is empty when it hit everybody."""

    role: Role
    name: str
    kind: FaultKind


class Event(Record, frozen=True, kw_only=True, tag="event"):
    """A fault, or what the run itself did."""

    text: str


AnyRecord = DataOp | Question | StateRead | WatchedEpoch | Probe | Truncation | Copy | Hit | Event
R = TypeVar("R", bound=Record)


class History:
    """Records in the order of their ends, in memory and in a file; ``tell`` hears each event."""

    def __init__(
        self, path: Path, tell: Callable[[float, str], None] = lambda at_s, text: None
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.records: list[AnyRecord] = []
        self._file = path.open("wb")
        self._tell = tell
        self._encoder = msgspec.json.Encoder()
        self._began = time.monotonic()

    def now(self) -> float:
        return time.monotonic() - self._began

    def add(self, record: AnyRecord) -> None:
        self.records.append(record)
        if not self._file.closed:
            self._file.write(self._encoder.encode(record) + b"\n")

    def event(self, text: str) -> None:
        now = self.now()
        self.add(Event(began=now, ended=now, text=text))
        self._tell(now, text)

    def of(self, kind: type[R]) -> list[R]:
        return [record for record in self.records if isinstance(record, kind)]

    def close(self) -> None:
        self._file.close()
