"""A history that fits its log passes, and each planted contradiction is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict

import msgspec
import pytest

from stele.domain.commands import AnyCommand, Envelope, Leave, Outcome, SetSetting
from stele.domain.decide import decide
from stele.domain.messages import Ack
from stele.domain.model.schema import CreateKeyspace
from stele.domain.ring.partitioner import token_of
from stele.domain.snapshot import state_hash
from stele.log.codec import encode_epoch
from stele.log.port import Record
from stele_simulator.live.checks import LogRead, check_all
from stele_simulator.live.clients import KEYSPACE
from stele_simulator.live.convergence import Rest
from stele_simulator.live.history import AnyRecord, Probe, Question, StateRead, WatchedEpoch
from stele_simulator.live.watchers import PROBE_KEY
from stele_simulator.violation import Violation
from tests.domain.history import History, join, three_nodes


class Moment(TypedDict):
    began: float
    ended: float


class Run:
    """The result of a run without faults. Tests change a part of it."""

    def __init__(self) -> None:
        self.history, driver = three_nodes()
        self.first = self.history.image.epoch
        self.records: list[AnyRecord] = []
        self.at = 0.0
        self.ask(SetSetting(name="a", value="1"))
        self.ask(Leave(node_id="nobody"))
        self.history.apply(CreateKeyspace(name=KEYSPACE, replication={"dc1": 3}))
        before_join = self.history.image.topology.version
        self.history.apply(
            msgspec.structs.replace(join(4), initial_tokens=(token_of(PROBE_KEY.encode()),))
        )
        driver.run()
        self.read()
        self.read("barrier")
        self.ask(SetSetting(name="a", value="2"))
        log = LogRead(records(self.history))
        for epoch in range(1, log.image.epoch + 1):
            self.add(
                WatchedEpoch(**self.moment(), watch=0, epoch=epoch, state_id=state_id(log, epoch))
            )
        self.add(
            Probe(
                **self.moment(),
                node="n1",
                epoch=log.image.epoch,
                version=before_join,
                code="stale_version",
            )
        )
        self.log = log
        self.acks = [
            Ack(
                node_id=f"n{number}",
                boot_id="1",
                sequence=1,
                epoch=log.image.epoch,
                version=99,
                fence_version=99,
                oldest_version_in_use=99,
                at_ms=-1,
            )
            for number in (1, 2, 3, 4)
        ]
        here = (log.image.epoch, state_hash(log.image))
        self.rest = Rest(
            epoch=log.image.epoch, took_s=1.0, positions={"n1": here, "n2": here}, silent=[]
        )

    def moment(self) -> Moment:
        self.at += 1
        return {"began": self.at, "ended": self.at + 0.5}

    def add(self, record: AnyRecord) -> None:
        self.records.append(record)

    def ask(self, command: AnyCommand) -> None:
        number = len(self.records)
        envelope = Envelope(request_id=f"q{number}", command=command, actor="ada", reason="why")
        rejection = self.history.submit(envelope)
        if rejection is not None:
            self.history.refuse(envelope, rejection)
        image = self.history.image
        outcome = Outcome(
            request_id=envelope.request_id,
            applied=rejection is None,
            epoch=image.epoch,
            state_id=image.state_id,
            rejection=rejection,
        )
        self.add(Question(**self.moment(), envelope=envelope, through="http", outcome=outcome))

    def read(self, level: str = "linearizable") -> None:
        image = self.history.image
        self.add(
            StateRead(
                **self.moment(),
                through="metadata-log-1",
                level=level,
                answered=True,
                epoch=image.epoch,
                state_id=image.state_id.hex(),
            )
        )

    def change(self, kind: type[msgspec.Struct], at: int, **fields: object) -> None:
        """Replace fields of the record number ``at`` of a kind."""
        found = [i for i, record in enumerate(self.records) if isinstance(record, kind)]
        where = found[at]
        self.records[where] = msgspec.structs.replace(self.records[where], **fields)

    def answer(self, at: int, **fields: object) -> None:
        questions = [r for r in self.records if isinstance(r, Question)]
        outcome = questions[at].outcome
        assert outcome is not None
        self.change(Question, at, outcome=msgspec.structs.replace(outcome, **fields))


def records(history: History) -> list[Record]:
    return [Record(offset, encode_epoch(epoch)) for offset, epoch in enumerate(history.epochs)]


def shown(run: Run, at: int) -> int:
    """Return the epoch that read number ``at`` returned."""
    return [r.epoch for r in run.records if isinstance(r, StateRead)][at]


def state_id(log: LogRead, epoch: int) -> str:
    return log.images[epoch].state_id.hex()


def test_run_that_fits_its_log_passes() -> None:
    run = Run()
    checked = check_all(run.records, run.log, run.acks, run.rest)
    assert checked.epochs == run.log.image.epoch > run.first
    assert (checked.commands, checked.rejected, checked.probes) == (3, 1, 1)
    assert (checked.barriers, checked.barrier_reads) == (1, 1)
    assert checked.gates > 8, "a join of each of four nodes, fenced at every step"
    assert checked.watched == checked.epochs


def test_read_at_barrier_may_return_a_state_older_than_a_concurrent_read() -> None:
    """Another client sees a newer epoch meanwhile: the older answer is correct, as the read began before."""
    run = Run()
    before = run.history.image
    run.ask(SetSetting(name="a", value="3"))
    run.log = LogRead(records(run.history))
    run.add(
        WatchedEpoch(
            **run.moment(), watch=0, epoch=run.log.image.epoch, state_id=state_id(run.log, -1)
        )
    )
    asked = next(r for r in reversed(run.records) if isinstance(r, Question))
    for epoch in (before.epoch, run.log.image.epoch):
        run.add(
            StateRead(
                began=asked.began,
                ended=run.at + 1,
                through="metadata-log-1",
                level="barrier",
                answered=True,
                epoch=epoch,
                state_id=state_id(run.log, epoch),
            )
        )
    here = (run.log.image.epoch, state_hash(run.log.image))
    run.rest.positions.update(n1=here, n2=here)
    checked = check_all(run.records, run.log, run.acks, run.rest)
    assert checked.barrier_reads == 3


def _gap(run: Run) -> None:
    del run.records[-5]


def _twice(run: Run) -> None:
    run.records.insert(-1, run.records[-2])


def _other_state(run: Run) -> None:
    run.change(WatchedEpoch, 3, state_id="00" * 16)


def _lagging_watch(run: Run) -> None:
    told = [i for i, record in enumerate(run.records) if isinstance(record, WatchedEpoch)]
    del run.records[told[-1]]


def _wrong_epoch(run: Run) -> None:
    run.answer(0, epoch=run.first)


def _refusal(run: Run) -> Outcome:
    outcomes = (r.outcome for r in run.records if isinstance(r, Question))
    return next(outcome for outcome in outcomes if outcome is not None and not outcome.applied)


def _refused_yet_applied(run: Run) -> None:
    """Answer a command that became an epoch with the rejection of another command."""
    run.answer(0, applied=False, rejection=_refusal(run).rejection)


def _refused_for_no_reason(run: Run) -> None:
    envelope = Envelope(request_id="late", command=SetSetting(name="a", value="3"))
    assert decide(run.history.image, envelope, 0)
    outcome = msgspec.structs.replace(
        _refusal(run), request_id="late", epoch=run.history.image.epoch
    )
    run.add(Question(**run.moment(), envelope=envelope, through="http", outcome=outcome))


def _stale_read(run: Run) -> None:
    old = run.first
    run.change(StateRead, 0, epoch=old, state_id=state_id(run.log, old))


def _invented_read(run: Run) -> None:
    run.change(StateRead, 0, state_id="11" * 16)


def _invented_read_at_barrier(run: Run) -> None:
    run.change(StateRead, 1, state_id="11" * 16)


def _stale_read_at_barrier(run: Run) -> None:
    """Return a state one epoch older than that of the read before it."""
    old = shown(run, 0) - 1
    run.change(StateRead, 1, epoch=old, state_id=state_id(run.log, old))


def _stale_read_at_barrier_after_an_answer(run: Run) -> None:
    run.read("barrier")
    old = run.history.image.epoch - 1
    run.change(StateRead, 2, epoch=old, state_id=state_id(run.log, old))


def _silent_metadata_log(run: Run) -> None:
    run.change(StateRead, 1, answered=False, answer="TimeoutError()")


def _stale_write_taken(run: Run) -> None:
    run.change(Probe, 0, code="ok")


def _missing_acknowledgements(run: Run) -> None:
    run.acks = run.acks[:1]


def _acknowledged_too_late(run: Run) -> None:
    run.acks = [msgspec.structs.replace(ack, at_ms=2**60) for ack in run.acks]


def _other_hash(run: Run) -> None:
    run.rest.positions["n2"] = (run.log.image.epoch, "f" * 64)


def _process_behind(run: Run) -> None:
    run.rest.positions["n2"] = (run.log.image.epoch - 1, "f" * 64)


def _silent_key(run: Run) -> None:
    run.rest.silent.append("key1 through n2")


def _unfinished(run: Run) -> None:
    run.history.apply(Leave(node_id="n1"))
    run.log = LogRead(records(run.history))


PLANTED: list[tuple[Callable[[Run], None], str, str]] = [
    (_gap, "I9", "is the next at watch 0"),
    (_twice, "I9", "is the next at watch 0"),
    (_other_state, "I9", "has state id"),
    (_lagging_watch, "I9", "has come to epoch"),
    (_wrong_epoch, "I2", "as its caller was told"),
    (_refused_yet_applied, "I2", "the log decided it at epoch"),
    (_refused_for_no_reason, "I2", "a rejection lies after epoch"),
    (_stale_read, "I2", "shows that epoch"),
    (_stale_read_at_barrier, "I2", "a read at level barrier shows epoch"),
    (_stale_read_at_barrier_after_an_answer, "I2", "a read at level barrier shows epoch"),
    (_invented_read, "I1", "shows a state of the log"),
    (_invented_read_at_barrier, "I1", "shows a state of the log"),
    (_silent_metadata_log, "I10", "answers reads at level barrier"),
    (_stale_write_taken, "I6", "takes no write by a row older than"),
    (_missing_acknowledgements, "I5", "have not"),
    (_acknowledged_too_late, "I5", "have not"),
    (_other_hash, "I1", "has hash"),
    (_process_behind, "I10", "has come to epoch"),
    (_silent_key, "I10", "can be read through every member"),
    (_unfinished, "I10", "every request is finished"),
]


@pytest.mark.parametrize(
    ("plant", "invariant", "text"), PLANTED, ids=[plant.__name__[1:] for plant, _, _ in PLANTED]
)
def test_planted_contradiction_is_found(
    plant: Callable[[Run], None], invariant: str, text: str
) -> None:
    run = Run()
    plant(run)
    with pytest.raises(Violation, match=text) as caught:
        check_all(run.records, run.log, run.acks, run.rest)
    assert caught.value.invariant == invariant
