"""Writers race over one log: each command once, dense epochs, true answers, whatever the log does."""

import random
from collections import Counter, deque
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stele.domain import request_memory
from stele.domain.commands import (
    AnyCommand,
    ClaimCoordinator,
    Envelope,
    FoundCluster,
    Join,
    Leave,
    Noop,
    Outcome,
    SetSetting,
    command_digest,
)
from stele.domain.decide import decide
from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.model.requests import named
from stele.domain.registry import DECISIONS
from stele.domain.request_memory import decisions_of
from stele.log import pipeline
from stele.log.codec import decode_epoch
from stele.log.fold import Fold
from stele.log.pipeline import Decisions
from stele.log.record_builder import Deciding, Ids, next_state_id
from tests.log.driven_pipeline import Driven, Past, tell
from tests.log.memory import MemoryPartition

NOW_MS = 1000


class Writer:
    """A pipeline whose appends wait in ``sent`` until the test lands, drops or doubles them.

    Decisions that are made apart wait in ``works``.
    """

    def __init__(
        self, name: str, partition: MemoryPartition, seed: int = 0, *, is_apart: bool = False
    ) -> None:
        chance = random.Random(f"{name}-{seed}")
        self.partition = partition
        self.sent: deque[bytes] = deque()
        self.read = 0
        self.answers: dict[str, list[Outcome]] = {}
        self.asked: list[Envelope] = []
        ids = Ids(
            next_state_id=lambda previous: next_state_id(previous, NOW_MS, chance.getrandbits(74)),
            now_ms=lambda: NOW_MS,
        )
        self.works: deque[Deciding] = deque()
        self.pipeline = Driven(Fold(), self.sent.append, ids, past(partition))
        if is_apart:
            self.pipeline.works = self.works

    def work(self) -> None:
        """Make the oldest pending large decision."""
        if self.works:
            deciding = self.works.popleft()
            self.pipeline.decided(deciding, deciding.decide())

    def submit(self, envelope: Envelope, digest: bytes = b"") -> None:
        self.asked.append(envelope)
        answers = self.answers.setdefault(envelope.request_id, [])
        tell(self.pipeline.submit(envelope, digest=digest), answers.append)

    def linearizable_read(self, seen: list[Outcome]) -> None:
        tell(self.pipeline.linearizable_read(), seen.append)

    def land(self, times: int = 1) -> None:
        """Append the oldest sent record, so that later reads do not share its barrier."""
        self.pipeline.flush()
        if self.sent:
            value = self.sent.popleft()
            for _ in range(times):
                self.partition.append(value)

    def drop(self) -> None:
        if self.sent:
            self.sent.popleft()

    def meet(self, limit: int = 1_000_000) -> None:
        """Read further records."""
        for record in self.partition.records[self.read : self.read + limit]:
            self.pipeline.on_record(record.offset, record.value)
            self.read += 1

    def settle(self) -> None:
        """Land, read and resolve until nothing is in flight."""
        for _ in range(100):
            while self.works:
                self.work()
            self.pipeline.flush()
            while self.sent:
                self.land()
            self.meet()
            self.pipeline.flush()
            if not self.pipeline.in_flight and not self.sent and not self.works:
                return
            if not self.sent and not self.works:
                self.pipeline.resolve()
        raise AssertionError(f"{self.pipeline.in_flight} records never came to an outcome")


def create(partition: MemoryPartition, *, is_apart: bool = False) -> Writer:
    """Return a writer on a log that holds a cluster."""
    writer = Writer("first", partition, is_apart=is_apart)
    writer.submit(Envelope(request_id=named("create"), command=FoundCluster("blue/1")))
    writer.settle()
    return writer


def setting(name: str, value: str = "v") -> Envelope:
    return Envelope(request_id=named(name), command=SetSetting(name, value))


LARGE = "large"


def by_name(_: Image, command: AnyCommand) -> bool:
    """Replaces ``is_large``."""
    return isinstance(command, SetSetting) and command.name.startswith(LARGE)


def past(partition: MemoryPartition) -> Past:
    def found(epoch: int) -> Decisions:
        return decisions_of(winners(partition)[epoch - 1])

    return found


def code_of(outcome: Outcome) -> str:
    return "" if outcome.rejection is None else outcome.rejection.code


def winners(partition: MemoryPartition) -> list[Epoch]:
    fold, found = Fold(), list[Epoch]()
    for record in partition.records:
        epoch = fold.offer(record.offset, record.value)
        if epoch is not None:
            found.append(epoch)
    return found


def applied_once(partition: MemoryPartition) -> dict[str, int]:
    """Return the epoch of each request that changed something. Fails when one did twice."""
    found = [epoch for epoch in winners(partition) if epoch.request_id]
    twice = [r for r, n in Counter(epoch.request_id for epoch in found).items() if n > 1]
    assert not twice
    return {epoch.request_id: epoch.epoch for epoch in found}


def test_the_answer_comes_only_when_the_record_is_read_back() -> None:
    partition = MemoryPartition()
    writer = create(partition)
    writer.submit(setting("a"))
    writer.land()
    assert writer.answers[named("a")] == []
    writer.meet()
    assert [(o.applied, o.epoch) for o in writer.answers[named("a")]] == [(True, 2)]


def test_many_commits_are_in_flight_at_once_and_all_win() -> None:
    partition = MemoryPartition()
    writer = create(partition)
    for n in range(100):
        writer.submit(setting(f"s{n}"))
    assert writer.pipeline.in_flight == 100
    writer.settle()
    assert [writer.answers[named(f"s{n}")][0].epoch for n in range(100)] == list(range(2, 102))
    assert writer.pipeline.bytes_in_flight == 0


def test_chain_that_lost_is_decided_again_in_order() -> None:
    partition = MemoryPartition()
    one, two = create(partition), Writer("second", partition)
    two.meet()
    for n in range(3):
        one.submit(setting(f"one{n}"))
    two.submit(setting("two"))
    two.land()
    one.settle()
    two.settle()
    names = ("create", "two", "one0", "one1", "one2")
    assert applied_once(partition) == {named(name): n for n, name in enumerate(names, 1)}
    assert one.pipeline.redecided == 3
    assert one.pipeline.fold.losers == 3


def test_reader_repeats_the_decisions_of_the_log() -> None:
    """The epoch has the time of its decision, although the clock has advanced since."""
    sent, ticks = list[bytes](), count(1000)
    ids = Ids(
        next_state_id=lambda previous: next_state_id(previous, next(ticks), 1),
        now_ms=lambda: next(ticks),
    )
    pipeline = Driven(Fold(), sent.append, ids)
    reader = Fold()
    join = Join(
        node_id="n1", cluster="blue", address="http://n1", dc="dc1", rack="r1", host_id="h1"
    )
    asked: tuple[AnyCommand, ...] = (
        FoundCluster("blue/1", bytes(range(16)).hex()),
        ClaimCoordinator("c", 1),
        join,
    )
    for offset, command in enumerate(asked):
        envelope = Envelope(request_id=named(f"r{offset}"), command=command)
        before = reader.image
        pipeline.submit(envelope)
        pipeline.on_record(offset, sent[-1])
        epoch = reader.offer(offset, sent[-1])
        assert epoch is not None
        assert decide(before, envelope, epoch.at_ms) == epoch.facts


def test_the_same_request_id_in_flight_shares_one_record() -> None:
    partition = MemoryPartition()
    writer = create(partition)
    writer.submit(setting("a"))
    writer.submit(setting("a"))
    assert writer.pipeline.in_flight == 1
    writer.settle()
    assert [o.epoch for o in writer.answers[named("a")]] == [2, 2]


def test_a_lost_append_is_resolved_by_a_noop() -> None:
    partition = MemoryPartition()
    writer = create(partition)
    writer.submit(setting("a"))
    writer.drop()
    writer.meet()
    assert writer.answers[named("a")] == []
    writer.pipeline.resolve()
    writer.settle()
    assert [(o.applied, o.epoch) for o in writer.answers[named("a")]] == [(True, 3)]


def test_a_refusal_rests_on_the_newest_state() -> None:
    """Another writer wins first, so the refusal is decided again."""
    partition = MemoryPartition()
    one, two = create(partition), Writer("second", partition)
    two.meet()
    ask = Envelope(request_id=named("leave"), command=Leave("n1"))
    one.submit(ask)
    assert one.answers[named("leave")] == []
    two.submit(setting("two"))
    two.land()
    one.settle()
    outcome = one.answers[named("leave")][0]
    assert code_of(outcome) == "unknown_node"
    assert outcome.epoch > 2
    assert named("leave") not in applied_once(partition)


def test_readers_of_one_turn_share_a_barrier() -> None:
    partition = MemoryPartition()
    writer = create(partition)
    seen = list[Outcome]()
    for _ in range(50):
        writer.linearizable_read(seen)
    writer.pipeline.flush()
    assert writer.pipeline.in_flight == 1
    writer.linearizable_read(seen)
    writer.pipeline.flush()
    assert writer.pipeline.in_flight == 2
    writer.settle()
    assert len(seen) == 51


def test_fact_too_large_for_a_record_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stele.log.record_builder.PART_BYTES", 500)
    monkeypatch.setattr("stele.log.record_builder.MAX_RECORD_BYTES", 1000)
    partition = MemoryPartition()
    writer = create(partition)
    writer.submit(setting("big", "x" * 2000))
    assert writer.answers[named("big")] == []
    writer.submit(setting("small"))
    writer.settle()
    assert code_of(writer.answers[named("big")][0]) == "record_too_large"
    assert writer.answers[named("small")][0].applied


def test_a_command_that_breaks_the_core_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    partition = MemoryPartition()
    writer = create(partition)
    found = writer.pipeline.bugs = list[Envelope]()
    monkeypatch.setitem(DECISIONS, Noop, broken)
    bad = Envelope(request_id=named("bad"), command=Noop())
    writer.submit(setting("before"))
    writer.submit(bad)
    writer.submit(setting("after"))
    writer.settle()
    assert found == [bad]
    assert code_of(writer.answers[named("bad")][0]) == "internal"
    assert writer.answers[named("before")][0].applied
    assert writer.answers[named("after")][0].applied


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("submit", "refuse", "retry", "reuse", "land", "twice", "drop", "meet"),
                *("resolve", "read", "large", "work"),
            ]
        ),
        st.integers(0, 1),
        st.integers(0, 5),
    ),
    max_size=60,
)


def act(writer: Writer, what: str, who: int, number: int) -> None:
    match what:
        case "submit":
            writer.submit(setting(f"w{who}-{number}"))
        case "refuse":
            writer.submit(Envelope(request_id=named(f"no-{number}"), command=Leave("nobody")))
        case "retry":
            writer.submit(setting(f"w{1 - who}-{number}"))
        case "reuse":
            writer.submit(Envelope(request_id=named(f"w{who}-{number}"), command=Leave("nobody")))
        case "land":
            writer.land()
        case "twice":
            writer.land(times=2)
        case "drop":
            writer.drop()
        case "meet":
            writer.meet(number)
        case "resolve":
            writer.pipeline.resolve()
        case "large":
            writer.submit(setting(f"{LARGE}{who}-{number}"))
        case "work":
            writer.work()


@settings(max_examples=300, deadline=None)
@given(STEPS, st.booleans())
def test_each_request_has_one_outcome_in_any_order_of_events(
    steps: list[tuple[str, int, int]], crowded: bool
) -> None:
    """``crowded``: generations of three decisions and hashes of two bits produce many candidates."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "is_large", by_name)
        if crowded:
            patch.setattr(request_memory, "GENERATION", 3)
            patch.setattr(
                request_memory, "hash_of", lambda request_id: (ord(request_id[-1]) & 3) << 38
            )
        play(steps)


def play(steps: list[tuple[str, int, int]]) -> None:
    partition = MemoryPartition()
    writers = [create(partition, is_apart=True), Writer("second", partition, is_apart=True)]
    writers[1].meet()  # a writer decides nothing before it knows of the cluster
    barriers = list[tuple[int, list[Outcome]]]()
    for what, who, number in steps:
        writer = writers[who]
        if what == "read":
            seen = list[Outcome]()
            barriers.append((len(winners(partition)), seen))
            writer.linearizable_read(seen)
        else:
            act(writer, what, who, number)
    for writer in (*writers, *writers):
        writer.settle()
    for committed, seen in barriers:
        assert len(seen) == 1
        assert seen[0].epoch > committed
    takes_over = Writer("third", partition)
    takes_over.meet()
    for envelope in [e for writer in writers for e in writer.asked]:
        takes_over.submit(envelope)
    before = len(partition.records)
    takes_over.settle()
    assert len(partition.records) == before
    check(partition, [*writers, takes_over])


def check(partition: MemoryPartition, writers: list[Writer]) -> None:
    """Check dense epochs, equal images, one outcome for each id, and one answer for each submission."""
    epochs = winners(partition)
    assert [epoch.epoch for epoch in epochs] == list(range(1, len(epochs) + 1))
    decided = [(i, d) for epoch in epochs for i, d in decisions_of(epoch).items()]
    outcomes = dict(decided)
    assert len(outcomes) == len(decided)
    for writer in writers:
        writer.meet()
        assert writer.pipeline.fold.image == writers[0].pipeline.fold.image
        assert len(writer.asked) == sum(map(len, writer.answers.values()))
        for request_id, answers in writer.answers.items():
            for answer in answers:
                if answer.taken:
                    assert answer == outcomes[request_id].outcome
                else:
                    assert code_of(answer) == "request_id_reused"
    assert {e.request_id for w in writers for e in w.asked} == outcomes.keys()


def test_unfounded_log_decides_nothing() -> None:
    writer = Writer("first", MemoryPartition())
    writer.submit(setting("early"))
    early = writer.answers[named("early")][0]
    assert (code_of(early), early.taken) == ("not_founded", False)
    assert writer.pipeline.in_flight == 0
    writer.pipeline.resolve()
    assert not writer.sent


def test_losing_founder_adopts_the_cluster_of_the_winner() -> None:
    partition = MemoryPartition()
    one, two = Writer("first", partition), Writer("second", partition)
    for name, writer in (("one", one), ("two", two)):
        found = Envelope(request_id=named(name), command=FoundCluster(f"blue/{name}"))
        writer.submit(found)
        writer.submit(setting(f"{name}-next"))
    one.settle()
    two.settle()
    one.settle()
    assert one.pipeline.fold.image == two.pipeline.fold.image
    assert two.pipeline.fold.image.cluster_id == "blue/one"
    assert two.answers[named("two")][0].applied
    assert two.pipeline.fold.chain.strays > 0
    assert {o.log_id for w in (one, two) for a in w.answers.values() for o in a} == {
        one.pipeline.fold.image.log_id
    }


def test_command_refused_by_an_unfounded_log_is_decided_after_founding() -> None:
    writer = Writer("first", MemoryPartition())
    writer.submit(setting("a"))
    writer.submit(Envelope(request_id=named("create"), command=FoundCluster("blue/1")))
    writer.settle()
    writer.submit(setting("a"))
    writer.settle()
    refused, done = writer.answers[named("a")]
    assert (refused.taken, done.applied, done.epoch) == (False, True, 2)


def test_founding_retried_at_another_writer_gets_the_same_answer() -> None:
    """Each writer fills in what its caller left out. Only the caller's own command is compared."""
    partition = MemoryPartition()
    one, two = Writer("first", partition), Writer("second", partition)
    digest = command_digest(FoundCluster())
    for name, writer in (("one", one), ("two", two)):
        writer.submit(founding(f"blue/{name}"), digest)
    two.land()
    for writer in (two, one):
        writer.settle()
    one.submit(founding(""))
    answers = [*one.answers[named("found")], *two.answers[named("found")]]
    assert len(answers) == 3
    assert {(a.applied, a.epoch, a.log_id) for a in answers} == {
        (True, 1, one.pipeline.fold.image.log_id)
    }


def founding(cluster_id: str) -> Envelope:
    return Envelope(request_id=named("found"), command=FoundCluster(cluster_id))


def test_barrier_record_has_no_request_id_and_carries_a_witness() -> None:
    partition = MemoryPartition()
    writer = create(partition)
    writer.submit(setting("a"))
    writer.submit(Envelope(request_id=named("refused"), command=Leave("n1")))
    writer.settle()
    barrier = decode_epoch(partition.records[-1].value)
    read = decode_epoch(partition.records[0].value)
    assert (barrier.request_id, barrier.command_digest) == ("", bytes(16))
    assert (barrier.epoch, barrier.witness_epoch) == (3, 1)
    assert barrier.witness_state_id == read.state_id


def test_lost_founding_record_is_sent_again() -> None:
    writer = Writer("first", MemoryPartition())
    writer.submit(Envelope(request_id=named("create"), command=FoundCluster("blue/1")))
    writer.drop()
    writer.settle()
    assert writer.answers[named("create")][0].epoch == 1


def test_records_carry_actor_reason_and_origin() -> None:
    partition = MemoryPartition()
    writer = create(partition)
    writer.submit(
        Envelope(
            request_id=named("r"),
            command=SetSetting("a", "b"),
            actor="ada",
            reason="why",
            origin="cli",
        )
    )
    writer.settle()
    epoch = decode_epoch(partition.records[-1].value)
    assert (epoch.actor, epoch.reason, epoch.origin) == ("ada", "why", "cli")
