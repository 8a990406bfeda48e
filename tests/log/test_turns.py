"""A writer that wins all epochs pauses after it has met another writer's losing record."""

from __future__ import annotations

from stele.domain.commands import Outcome
from stele.log.writer_turns import MOST_OWN, WriterTurns
from tests.log.memory import MemoryPartition
from tests.log.test_pipeline import Writer, applied_once, create, setting


def two() -> tuple[Writer, Writer]:
    """Return two writers: the first gives way, and the second has read its records."""
    partition = MemoryPartition()
    one, other = create(partition), Writer("second", partition)
    other.meet()
    one.pipeline.turns.may_pause = True
    return one, other


def loses(other: Writer, one: Writer) -> None:
    """Let a record of the other writer land behind a winner, and be read."""
    one.submit(setting("first"))
    one.land()
    other.submit(setting("other"))
    other.land()
    one.meet()


def test_winner_waits_after_a_foreign_loser_until_the_other_has_won() -> None:
    one, other = two()
    loses(other, one)
    one.submit(setting("second"))
    one.linearizable_read(one.answers.setdefault("read", list[Outcome]()))
    one.pipeline.flush()
    assert not one.sent and one.pipeline.held == 2
    other.meet()
    other.land()
    one.meet()
    assert "other" in one.pipeline.fold.image.features.settings
    one.pipeline.flush()
    assert one.sent and not one.pipeline.held
    one.settle()
    other.settle()
    assert len(applied_once(one.partition)) == 4
    assert one.answers["read"][0].epoch > one.answers[setting("first").request_id][0].epoch


def test_writer_continues_when_its_turn_is_not_taken() -> None:
    one, other = two()
    loses(other, one)
    one.submit(setting("second"))
    one.pipeline.flush()
    assert not one.sent
    one.pipeline.turns.resume()
    one.settle()
    assert "second" in one.pipeline.fold.image.features.settings


def test_losing_writer_and_own_losers_do_not_give_way() -> None:
    one, other = two()
    other.pipeline.turns.may_pause = True
    one.submit(setting("first"))
    other.submit(setting("other"))
    one.land()
    other.land()
    other.meet()
    assert not other.pipeline.turns.is_paused
    other.pipeline.resolve()
    other.land()
    other.land()
    other.meet()
    assert not other.pipeline.turns.is_paused, "a NOOP of its own came behind its own record"
    assert not one.pipeline.turns.is_paused
    one.meet()
    assert one.pipeline.turns.is_paused is False, "another has won last"


def test_records_that_never_come_back_are_forgotten() -> None:
    turns = WriterTurns()
    for number in range(MOST_OWN + 10):
        turns.appended(bytes(26) + number.to_bytes(16, "big"))
    assert len(turns._own) == MOST_OWN
