"""One id has one outcome: a refused command stays refused, whichever caller repeats it.

See docs/design.md, rule 4.
"""

import pytest

from stele.domain import request_memory
from stele.domain.commands import (
    AnyCommand,
    Cancel,
    ClaimCoordinator,
    DropKeyspace,
    Envelope,
    Join,
    Leave,
    Noop,
    Outcome,
    Rejection,
    SetSetting,
)
from stele.domain.image import EMPTY_FOR_FOLLOWERS, Image
from stele.domain.model.requests import CommandRefused, named, uuid7
from stele.domain.not_taken import horizon_of
from stele.domain.registry import DECISIONS
from stele.log import pipeline
from stele.log.codec import decode_epoch
from stele.log.fold import Fold
from stele.log.record_builder import Ids, next_state_id
from stele.runtime.request_ids import new_request_id
from tests.log import test_pipeline
from tests.log.driven_pipeline import Driven, tell
from tests.log.memory import MemoryPartition
from tests.log.test_pipeline import LARGE, Writer, by_name, code_of, create, setting, winners

MINUTE_MS = 60_000


def ask(writer: Writer, name: str, command: AnyCommand) -> list[Outcome]:
    """Return the answers to this id so far. The newest comes when the log is read."""
    writer.submit(Envelope(request_id=named(name), command=command))
    return writer.answers[named(name)]


def join(node_id: str) -> Join:
    return Join(
        node_id=node_id,
        cluster="blue",
        address="http://same",
        dc="dc1",
        rack="r1",
        host_id=f"host-{node_id}",
    )


def test_request_refused_by_one_writer_is_not_applied_by_another() -> None:
    """One writer is slow. Another one refuses the request, and then the reason goes away."""
    partition = MemoryPartition()
    slow, other = create(partition), Writer("other", partition)
    other.meet()
    at_slow = ask(slow, "join", join("n9"))
    ask(other, "rival", join("n8"))
    at_other = ask(other, "join", join("n9"))
    other.settle()
    assert code_of(at_other[0]) == "address_in_use"
    ask(other, "cancel", Cancel(named("rival")))
    other.settle()
    slow.settle()
    assert at_slow == at_other
    assert slow.pipeline.fold.image.node("n9") is None


def test_repeated_refused_command_writes_no_record() -> None:
    partition = MemoryPartition()
    writer = create(partition)
    first = ask(writer, "drop", DropKeyspace("later"))
    writer.settle()
    assert code_of(first[0]) == "unknown_keyspace"
    records = len(partition.records)
    again = ask(writer, "drop", DropKeyspace("later"))
    assert again == [first[0], first[0]]
    other = Writer("other", partition)
    other.meet()
    assert ask(other, "drop", DropKeyspace("later")) == [first[0]]
    assert len(partition.records) == records


def test_request_id_stands_for_one_command() -> None:
    partition = MemoryPartition()
    writer = create(partition)
    ask(writer, "deploy", SetSetting("a", "1"))
    answers = ask(writer, "deploy", SetSetting("b", "2"))
    writer.settle()
    ask(writer, "deploy", SetSetting("b", "2"))
    assert [(o.applied, o.taken, code_of(o)) for o in answers] == [
        (True, True, ""),
        (False, False, "request_id_reused"),
        (False, False, "request_id_reused"),
    ]
    assert dict(writer.pipeline.fold.image.features.settings) == {"a": "1"}


def test_refusals_of_one_turn_share_a_record_with_their_details() -> None:
    partition = MemoryPartition()
    writer = create(partition)
    for name in ("n1", "n2", "n3"):
        envelope = Envelope(
            request_id=named(name), command=Leave(name), actor="ada", reason="why", origin="cli"
        )
        writer.submit(envelope)
        writer.submit(envelope)
    writer.settle()
    epoch = winners(partition)[-1]
    assert len(partition.records) == 2
    assert (epoch.command, epoch.request_id) == ("noop", "")
    refused = [fact for fact in epoch.facts if isinstance(fact, CommandRefused)]
    assert [fact.request_id for fact in refused] == [named(n) for n in ("n1", "n2", "n3")]
    assert (refused[0].command, refused[0].code) == ("leave", "unknown_node")
    assert (refused[0].actor, refused[0].reason, refused[0].origin) == ("ada", "why", "cli")
    for name in ("n1", "n2", "n3"):
        assert [o.epoch for o in writer.answers[named(name)]] == [2, 2]


def test_refusal_is_recorded_before_later_accepted_commands() -> None:
    """Any reader can repeat the decisions of the log, including refusals."""
    partition = MemoryPartition()
    writer = create(partition)
    refused = ask(writer, "no", Leave("n1"))
    applied = ask(writer, "yes", SetSetting("a", "1"))
    also_refused = ask(writer, "no2", Leave("n2"))
    writer.settle()
    assert [o[0].epoch for o in (refused, applied, also_refused)] == [2, 3, 4]
    assert writer.pipeline.fold.losers == 0
    assert writer.pipeline.fold.image == image_of(partition)


def image_of(partition: MemoryPartition) -> Image:
    fold = Fold()
    for record in partition.records:
        fold.offer(record.offset, record.value)
    return fold.image


def test_many_refusals_are_split_into_records_of_bounded_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stele.log.pipeline.MAX_REFUSALS_BYTES", 20_000)
    partition = MemoryPartition()
    writer = create(partition)
    for n in range(100):
        ask(writer, f"r{n}", Leave(f"n{n}"))
    writer.settle()
    assert 2 < len(partition.records) < 20
    assert all(len(record.value) < 20_000 for record in partition.records)
    assert all(len(writer.answers[named(f"r{n}")]) == 1 for n in range(100))


def test_long_texts_of_a_refusal_are_cut() -> None:
    partition = MemoryPartition()
    writer = create(partition)
    writer.submit(Envelope(request_id=named("r"), command=Leave("n1"), actor="x" * 100_000))
    writer.settle()
    outcome = writer.answers[named("r")][0]
    assert code_of(outcome) == "text_too_long"
    assert len(partition.records[-1].value) < 10_000


def test_internal_error_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    partition = MemoryPartition()
    writer = create(partition)
    writer.pipeline.bugs = []
    with monkeypatch.context() as patch:
        patch.setitem(DECISIONS, Noop, broken)
        first = ask(writer, "bad", Noop())
        assert first == []
        writer.settle()
    assert code_of(first[0]) == "internal"
    assert ask(writer, "bad", Noop())[1] == first[0]


def test_refusal_that_lost_is_decided_again() -> None:
    """The winner makes the refused command acceptable."""
    partition = MemoryPartition()
    one, two = create(partition), Writer("second", partition)
    two.meet()
    answers = ask(one, "second term", ClaimCoordinator("c", 2))
    ask(two, "first term", ClaimCoordinator("c", 1))
    two.settle()
    one.settle()
    assert [(o.applied, o.epoch) for o in answers] == [(True, 3)]


@pytest.mark.parametrize(
    "request_id",
    [
        "",
        "deploy-42",
        named("x").upper(),
        f"{{{named('x')}}}",
        "0d0ac0de-7c3e-4a53-8f0e-53a0e41f4c55",
    ],
)
def test_request_id_must_be_a_uuid_of_version_7(request_id: str) -> None:
    writer = create(MemoryPartition())
    writer.submit(Envelope(request_id=request_id, command=Leave("n1")))
    outcome = writer.answers[request_id][0]
    assert (outcome.taken, outcome.applied, code_of(outcome)) == (False, False, "bad_request_id")
    assert writer.pipeline.in_flight == 0


def test_request_id_from_the_future_is_not_taken() -> None:
    """The log's time is 1000 ms."""
    writer = create(MemoryPartition())
    late, future = uuid7(1000 + 10 * MINUTE_MS, 5), uuid7(1001 + 10 * MINUTE_MS, 5)
    for request_id in (late, future):
        writer.submit(Envelope(request_id=request_id, command=SetSetting("a", "1")))
    writer.settle()
    assert writer.answers[late][0].applied
    assert code_of(writer.answers[future][0]) == "request_id_from_the_future"
    assert not writer.answers[future][0].taken


def test_decided_request_id_from_the_future_keeps_its_outcome() -> None:
    """The clocks of the deciding writer and of its caller are ahead."""
    partition = MemoryPartition()
    ahead, right = create(partition), Writer("second", partition)
    asked_ms = 1001 + 10 * MINUTE_MS
    ids = ahead.pipeline._ids
    later = Ids(ids.next_state_id, lambda: asked_ms)
    ahead.pipeline._ids = ahead.pipeline._builder._ids = later
    envelope = Envelope(request_id=uuid7(asked_ms, 5), command=SetSetting("a", "1"))
    ahead.submit(envelope)
    ahead.settle()
    right.settle()
    right.submit(envelope)
    right.settle()
    first, again = ahead.answers[envelope.request_id][0], right.answers[envelope.request_id][0]
    assert first.applied and again == first


def test_decided_request_is_answered_despite_a_new_problem() -> None:
    """For example a command that names the log before a recovery. One id has one outcome."""
    writer = create(MemoryPartition())
    problem = Rejection("other_log", "It is meant for another log.")
    decided, fresh = setting("a"), setting("b")
    writer.submit(decided)
    writer.land()
    answers = list[Outcome]()
    tell(writer.pipeline.submit(decided, problem), answers.append)
    writer.meet()
    tell(writer.pipeline.submit(decided, problem), answers.append)
    writer.settle()
    assert answers == [writer.answers[decided.request_id][0]] * 2
    tell(writer.pipeline.submit(fresh, problem), answers.append)
    assert (answers[-1].taken, answers[-1].rejection) == (False, problem)
    assert writer.pipeline.in_flight == 0


def test_expired_request_id_is_never_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_memory, "GENERATION", 4)
    partition = MemoryPartition()
    writer = create(partition)
    writer.submit(Envelope(request_id=uuid7(1, 1), command=SetSetting("request_memory", "2")))
    first = Envelope(request_id=uuid7(2, 1), command=SetSetting("x", "mine"))
    writer.submit(first)
    writer.settle()
    known = None
    for n in range(40):
        envelope = Envelope(request_id=uuid7(10 + n, 1), command=SetSetting("x", str(n)))
        known = known or envelope
        writer.submit(envelope)
        writer.settle()
    records = len(partition.records)
    for envelope in (first, Envelope(request_id=uuid7(9, 1), command=SetSetting("y", "never"))):
        writer.submit(envelope)
        outcome = writer.answers[envelope.request_id][-1]
        assert (outcome.taken, code_of(outcome)) == (False, "request_id_expired")
    assert len(partition.records) == records
    fresh = Envelope(request_id=uuid7(100, 1), command=SetSetting("y", "now"))
    writer.submit(fresh)
    writer.settle()
    assert writer.answers[fresh.request_id][0].applied


def test_request_ids_behind_a_far_horizon_are_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A writer with a wrong clock took ids that are years ahead, and they were forgotten."""
    monkeypatch.setattr(request_memory, "GENERATION", 4)
    partition, years = MemoryPartition(), 1_800_000_000_000
    monkeypatch.setattr(test_pipeline, "NOW_MS", years)
    writer = create(partition)
    writer.submit(Envelope(request_id=uuid7(years, 1), command=SetSetting("request_memory", "1")))
    writer.settle()
    for n in range(12):
        writer.submit(Envelope(request_id=uuid7(years + n, 2), command=SetSetting("x", str(n))))
        writer.settle()
    monkeypatch.setattr(test_pipeline, "NOW_MS", 1000)
    other = Writer("other", partition)
    other.settle()
    by_clock = Envelope(request_id=uuid7(1000, 3), command=SetSetting("y", "never"))
    other.submit(by_clock)
    (refused,) = other.answers[by_clock.request_id]
    assert code_of(refused) == "request_id_expired"
    again = new_request_id(None, horizon_of(refused.rejection))
    other.submit(Envelope(request_id=again, command=SetSetting("y", "heard")))
    other.settle()
    assert other.answers[again][0].applied


def forgetful(monkeypatch: pytest.MonkeyPatch) -> Writer:
    """Return the writer of a log that remembers only the newest decisions."""
    monkeypatch.setattr(request_memory, "GENERATION", 2)
    writer = create(MemoryPartition())
    writer.submit(Envelope(request_id=uuid7(1, 1), command=SetSetting("request_memory", "1")))
    writer.settle()
    return writer


def ask_at(writer: Writer, time_ms: int) -> None:
    """Ask for a change under an id of that time."""
    writer.submit(Envelope(request_id=uuid7(time_ms, 1), command=SetSetting("x", str(time_ms))))


def test_id_forgotten_by_a_pending_record_expires_when_that_wins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer = forgetful(monkeypatch)
    for n in range(4):
        ask_at(writer, 10 + n)
    assert writer.pipeline.tip.decided.horizon_ms == 11  # type: ignore[union-attr]
    old = uuid7(11, 2)
    writer.submit(Envelope(request_id=old, command=SetSetting("y", "never")))
    assert writer.answers[old] == []
    writer.settle()
    assert [code_of(o) for o in writer.answers[old]] == ["request_id_expired"]


@pytest.mark.parametrize("name", ["y", LARGE])
def test_id_forgotten_by_a_pending_barrier_expires_behind_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusals that it records are decisions, and another writer judges ids by the state after them."""
    monkeypatch.setattr(pipeline, "is_large", by_name)
    writer = forgetful(monkeypatch)
    for n in range(3):
        ask_at(writer, 10 + n)
        writer.settle()
    old, newer = uuid7(11, 2), uuid7(12, 2)
    writer.submit(Envelope(request_id=uuid7(13, 1), command=DropKeyspace("nowhere")))
    for request_id in (old, newer):
        writer.submit(Envelope(request_id=request_id, command=SetSetting(name, "v")))
    writer.settle()
    assert [code_of(o) for o in writer.answers[old]] == ["request_id_expired"]
    assert [code_of(o) for o in writer.answers[newer]] == [""]
    assert all(old != epoch.request_id for epoch in winners(writer.partition))


def test_unreadable_past_decides_nothing() -> None:
    writer = create(MemoryPartition())
    ask(writer, "a", SetSetting("a", "1"))
    ask(writer, "b", SetSetting("b", "1"))
    writer.settle()
    writer.pipeline.past = None
    answers = ask(writer, "a", SetSetting("a", "1"))
    assert (len(answers), writer.pipeline.recalling) == (1, 1)
    assert writer.pipeline.asked == [2]
    writer.pipeline.recalled(2, None)
    assert (answers[1].taken, code_of(answers[1])) == (False, "busy")
    assert writer.pipeline.recalling == 0


def test_candidate_of_the_same_hash_is_not_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two copies wait for the past, and the outcome of one is the answer of both."""
    monkeypatch.setattr(request_memory, "GENERATION", 2)
    monkeypatch.setattr(request_memory, "hash_of", lambda request_id: 7)
    writer = create(MemoryPartition())
    for name in ("a", "b", "c"):
        ask(writer, name, SetSetting(name, "1"))
        writer.settle()
    past, writer.pipeline.past = writer.pipeline.past, None
    answers = ask(writer, "new", SetSetting("new", "1"))
    ask(writer, "new", SetSetting("new", "1"))
    assert past is not None
    while asked := writer.pipeline.asked:
        epoch = asked.pop()
        writer.pipeline.recalled(epoch, past(epoch))
    writer.settle()
    assert [(o.applied, o.epoch) for o in answers] == [(True, 5), (True, 5)]


def test_barriers_are_not_remembered() -> None:
    partition = MemoryPartition()
    writer = create(partition)
    writer.pipeline.linearizable_read()
    writer.settle()
    assert decode_epoch(partition.records[-1].value).request_id == ""
    decided = writer.pipeline.fold.image.decided
    assert decided is not None
    assert decided.young.size == 1


def test_a_pipeline_without_a_memory_decides_nothing() -> None:
    ids = Ids(next_state_id=lambda previous: next_state_id(previous, 1, 1), now_ms=lambda: 1)
    pipeline = Driven(Fold(EMPTY_FOR_FOLLOWERS), lambda value: None, ids)
    with pytest.raises(AssertionError, match="keeps the memory"):
        pipeline.submit(setting("a"))


def test_command_behind_a_barrier_copies_no_request_memory() -> None:
    """Its versions share one table, which can grow only on the newest."""
    writer = create(MemoryPartition())
    for number in range(3):
        writer.submit(Envelope(request_id=uuid7(1, number), command=SetSetting("x", "y")))
        writer.settle()
    decided = writer.pipeline.tip.decided
    assert decided is not None
    writer.pipeline.linearizable_read()
    writer.submit(Envelope(request_id=uuid7(1, 9), command=SetSetting("x", "z")))
    after = writer.pipeline.tip.decided
    assert after is not None and after.young.size > decided.young.size
    assert after.young.table is decided.young.table
