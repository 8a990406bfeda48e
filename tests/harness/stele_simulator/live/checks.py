"""Compare a recorded history with the log of the run. Raise a Violation where they differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from stele.domain.facts import Epoch
from stele.domain.image import EMPTY, Image
from stele.domain.messages import Ack
from stele.domain.names import UNFINISHED
from stele.domain.ring.partitioner import token_of
from stele.domain.snapshot import state_hash
from stele.log.fold import Fold
from stele.log.port import Record
from stele_simulator.gates import Gates
from stele_simulator.live.availability import AnswersDue, check_availability
from stele_simulator.live.clients import KEYSPACE
from stele_simulator.live.command_history import CommandHistory
from stele_simulator.live.convergence import Rest
from stele_simulator.live.history import (
    AnyRecord,
    Copy,
    DataOp,
    Probe,
    Question,
    StateRead,
    Truncation,
    WatchedEpoch,
)
from stele_simulator.live.replica_copies import check_copies
from stele_simulator.live.truncations import registers
from stele_simulator.live.watchers import PROBE_KEY
from stele_simulator.log_checks import LogChecks
from stele_simulator.ranges_in_use import row_of
from stele_simulator.registers import check_registers
from stele_simulator.violation import require

DONE_CODES = frozenset({"ok", "superseded"})


class LogRead:
    """The log from its first record to its last: every epoch and the image that it made."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.epochs: list[Epoch] = []
        self.images: list[Image] = [EMPTY]
        fold = Fold()
        for offset, value in records:
            epoch = fold.offer(offset, value)
            if epoch is not None:
                self.epochs.append(epoch)
                self.images.append(fold.image)
        self.losers = fold.losers

    @property
    def image(self) -> Image:
        return self.images[-1]


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of successful checks."""

    epochs: int
    losers: int
    gates: int
    commands: int
    rejected: int
    barriers: int
    """Reads at level linearizable."""
    barrier_reads: int
    data_operations: int
    truncations: int
    copies: int
    """Keys whose newest value was counted on its replicas."""
    watched: int
    probes: int
    owed: AnswersDue


def check_all(
    records: Sequence[AnyRecord], log: LogRead, acks: Iterable[Ack], rest: Rest
) -> Checked:
    """Every check on a run that has come to its end. Raises Violation."""
    check_rest(log, rest)
    check_log(log)
    gates = check_gates(log, acks)
    commands = check_commands(records, log)
    parts = registers(
        [r for r in records if isinstance(r, DataOp)],
        [r for r in records if isinstance(r, Truncation)],
    )
    operations = sum(check_registers(part) for part in parts)
    copies = check_copies(parts[-1], (r for r in records if isinstance(r, Copy)))
    return Checked(
        epochs=len(log.epochs),
        losers=log.losers,
        gates=gates,
        commands=commands.told,
        rejected=commands.rejected,
        barriers=commands.barriers,
        barrier_reads=commands.barrier_reads,
        data_operations=operations,
        truncations=len(parts) - 1,
        copies=copies,
        watched=check_watches(records, log, rest.epoch),
        probes=check_probes(records, log),
        owed=check_availability(records),
    )


def check_log(log: LogRead) -> None:
    """I3, I4, I6, I7, I11 and locks over all epochs."""
    checks, by_version = LogChecks(), dict[int, Image]()
    for before, after in zip(log.images, log.images[1:], strict=False):
        checks.check(before, after, by_version)
        by_version[after.topology.version] = after


def check_gates(log: LogRead, acks: Iterable[Ack]) -> int:
    """I5: what nodes had said before each fence and step was enough for it. The number of gates."""
    said = sorted(acks, key=lambda ack: ack.at_ms)
    gates, at = Gates(), 0
    for before, epoch, after in zip(log.images, log.epochs, log.images[1:], strict=False):
        while at < len(said) and said[at].at_ms <= epoch.at_ms:
            ack, at = said[at], at + 1
            gates.passes(ack.node_id, ack.epoch, ack.oldest_version_in_use)
        if after.topology is not before.topology:
            gates.check(before, after)
        gates.note(after)
    return gates.checks


def check_commands(records: Sequence[AnyRecord], log: LogRead) -> CommandHistory:
    """I2: answers, and reads at level linearizable or barrier, fit into the order of epochs."""
    questions = [r for r in records if isinstance(r, Question)]
    history = CommandHistory(log, (question.envelope for question in questions))
    for before, epoch in zip(log.images, log.epochs, strict=False):
        history.won(before, epoch)
    seen = [
        r
        for r in records
        if isinstance(r, (Question, WatchedEpoch)) or (isinstance(r, StateRead) and r.answered)
    ]
    moments = [(r.began, 0, r) for r in seen] + [(r.ended, 1, r) for r in seen]
    floors = dict[int, int]()
    for _, is_end, record in sorted(moments, key=lambda each: each[:2]):
        if isinstance(record, WatchedEpoch):
            history.floor = max(history.floor, record.epoch)
        elif isinstance(record, Question):
            if not is_end:
                history.asks(record.envelope)
            elif record.outcome is not None:
                history.answered(record.envelope, record.outcome)
        elif not is_end:
            floors[id(record)] = history.floor
        else:
            _check_state(record, log)
            if record.level == "linearizable":
                history.barrier_answered(floors[id(record)], record.epoch)
            else:
                history.barrier_read_answered(floors[id(record)], record.epoch)
    return history


def _check_state(read: StateRead, log: LogRead) -> None:
    known = 0 < read.epoch < len(log.images)
    require(
        known and log.images[read.epoch].state_id.hex() == read.state_id,
        "I1",
        f"{read.through} shows a state of the log",
        f"it showed epoch {read.epoch} with state id {read.state_id}",
    )


def check_watches(records: Iterable[AnyRecord], log: LogRead, last_epoch: int) -> int:
    """I9: each watch got every epoch once, in order, at least up to ``last_epoch``."""
    last = defaultdict[int, int](int)
    count = 0
    for told in (r for r in records if isinstance(r, WatchedEpoch)):
        count += 1
        require(
            told.epoch == last[told.watch] + 1,
            "I9",
            f"epoch {last[told.watch] + 1} is the next at watch {told.watch}",
            f"epoch {told.epoch} came",
        )
        last[told.watch] = told.epoch
        found = told.epoch < len(log.images) and log.images[told.epoch].state_id.hex()
        require(
            found == told.state_id,
            "I9",
            f"epoch {told.epoch} has state id {found}",
            f"watch {told.watch} was told {told.state_id}",
        )
    for watch, epoch in last.items():
        require(
            epoch >= last_epoch,
            "I9",
            f"watch {watch} has come to epoch {last_epoch}",
            f"it stands at {epoch}",
        )
    return count


def check_probes(records: Iterable[AnyRecord], log: LogRead) -> int:
    """I6: no replica took a write by a row that had changed behind the fence that it knew."""
    count, by_version = 0, {image.topology.version: image for image in log.images}
    for probe in (r for r in records if isinstance(r, Probe)):
        fence = log.images[probe.epoch].topology.fence_version
        changed = _changed_in(by_version, probe, fence)
        if changed is None:
            continue
        count += 1
        require(
            probe.code not in DONE_CODES,
            "I6",
            f"{probe.node} at epoch {probe.epoch} takes no write by a row older than {changed},"
            f" its fence is {fence}",
            f"it took one of version {probe.version}",
        )
    return count


def _changed_in(by_version: dict[int, Image], probe: Probe, fence: int) -> int | None:
    """The newest version up to the fence that changed the probed key's row after the probe's version."""
    token = token_of(PROBE_KEY.encode())
    for version in range(fence, probe.version, -1):
        keyspace = by_version[version].schema.named(KEYSPACE)
        if keyspace is None:
            continue
        one = row_of(by_version[version - 1], keyspace.data_id, token)
        if one is not None and one != row_of(by_version[version], keyspace.data_id, token):
            return version
    return None


def check_rest(log: LogRead, rest: Rest) -> None:
    """I10 and I1: nothing is unfinished, and every process is where the log is, in the same state."""
    image = log.image
    open_ = [t.transition_id for t in image.topology.open()]
    require(not open_, "I10", "no transition is open", f"{open_} are")
    unfinished = [r.request_id for r in image.requests.requests.values() if r.status in UNFINISHED]
    require(not unfinished, "I10", "every request is finished", f"{unfinished} are not")
    require(
        not rest.silent,
        "I10",
        "every key can be read through every member",
        f"no answer for {', '.join(rest.silent[:5])} ({len(rest.silent)} in all)",
    )
    for name, (epoch, found) in rest.positions.items():
        require(
            rest.epoch <= epoch < len(log.images),
            "I10",
            f"{name} has come to epoch {rest.epoch}",
            f"it stands at {epoch} ({found})",
        )
        wanted = state_hash(log.images[epoch])
        require(
            found == wanted,
            "I1",
            f"the state of epoch {epoch} has hash {wanted}",
            f"{name} holds {found}",
        )
