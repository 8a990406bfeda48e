"""A frozen log at its writers: commands in flight, commands that lose, and commands that are not recorded."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stele.domain.commands import AnyCommand, Envelope, Leave, RestrictCommits, SetSetting
from stele.domain.facts import Epoch
from stele.domain.model.requests import CommandRefused, named
from stele.domain.names import CommitMode
from stele.domain.request_memory import decisions_of
from stele.log.fold import Fold
from tests.log.driven_pipeline import tell
from tests.log.memory import MemoryPartition
from tests.log.test_pipeline import Writer, act, code_of, create, setting, winners

FREEZE = RestrictCommits(mode=CommitMode.FROZEN)
THAW = RestrictCommits(mode=CommitMode.OPEN)


def restrict(name: str, command: RestrictCommits = FREEZE, actor: str = "ada") -> Envelope:
    return Envelope(request_id=named(name), command=command, actor=actor, reason="why")


def of(actor: str, name: str, command: AnyCommand | None = None) -> Envelope:
    return Envelope(request_id=named(name), command=command or SetSetting(name, "v"), actor=actor)


def answers_to(writer: Writer, name: str) -> list[tuple[str, bool]]:
    """Return the code of each answer, and whether the command was taken."""
    return [(code_of(outcome), outcome.taken) for outcome in writer.answers[named(name)]]


@pytest.fixture
def partition() -> MemoryPartition:
    return MemoryPartition()


@pytest.fixture
def writer(partition: MemoryPartition) -> Writer:
    return create(partition)


def second(partition: MemoryPartition) -> Writer:
    other = Writer("second", partition)
    other.meet()
    return other


def test_frozen_log_records_nothing_of_refused_commands(
    partition: MemoryPartition, writer: Writer
) -> None:
    writer.submit(restrict("freeze"))
    writer.settle()
    records, memory = len(partition.records), writer.pipeline.fold.image.decided
    for number in range(5):
        writer.submit(setting(f"s{number}"))
    assert answers_to(writer, "s0") == [("frozen", False)]  # at once, because the freeze is certain
    writer.settle()
    assert (len(partition.records), writer.pipeline.fold.image.decided) == (records, memory)
    writer.submit(restrict("thaw", THAW))
    writer.submit(setting("s0"))
    writer.settle()
    assert answers_to(writer, "s0") == [("frozen", False), ("", True)]


def test_decisions_before_a_freeze_are_answered_unchanged(writer: Writer) -> None:
    writer.submit(setting("early"))
    writer.submit(of("bob", "no", Leave("nobody")))
    writer.settle()
    writer.submit(restrict("freeze"))
    writer.settle()
    writer.submit(setting("early"))
    writer.submit(of("bob", "no", Leave("nobody")))
    writer.submit(restrict("freeze"))
    writer.settle()
    for name in ("early", "no", "freeze"):
        first, *rest = writer.answers[named(name)]
        assert rest in ([], [first]), name
    assert answers_to(writer, "no") == [("unknown_node", True)] * 2


def test_reads_continue_on_a_frozen_log(partition: MemoryPartition, writer: Writer) -> None:
    writer.submit(restrict("freeze"))
    writer.settle()
    seen: list[int] = []
    tell(writer.pipeline.linearizable_read(), lambda outcome: seen.append(outcome.epoch))
    writer.settle()
    assert seen == [3] and winners(partition)[-1].command == "noop"


def test_commands_behind_an_unconfirmed_freeze_wait_until_it_wins(writer: Writer) -> None:
    writer.submit(setting("before"))
    writer.submit(restrict("freeze"))
    writer.submit(setting("after"))
    writer.land()
    writer.land()
    writer.meet()
    assert answers_to(writer, "freeze") == [("", True)]
    assert answers_to(writer, "after") == []
    writer.settle()
    assert answers_to(writer, "before") == [("", True)]
    assert answers_to(writer, "after") == [("frozen", False)]


def test_freeze_that_lost_answers_no_command_too_early(
    partition: MemoryPartition, writer: Writer
) -> None:
    """It is decided again, and wins. Only then do later commands get their answer."""
    other = second(partition)
    writer.submit(restrict("freeze"))
    writer.submit(setting("after"))
    other.submit(restrict("thaw", THAW))
    other.submit(setting("theirs"))
    other.settle()
    assert answers_to(writer, "after") == []
    writer.settle()
    assert answers_to(writer, "freeze") == [("", True)]
    assert answers_to(writer, "after") == [("frozen", False)]
    found = writer.answers[named("after")][0]
    assert winners(partition)[found.epoch - 1].epoch >= writer.answers[named("freeze")][0].epoch


def test_commands_that_lose_to_a_freeze_are_refused_as_frozen(
    partition: MemoryPartition, writer: Writer
) -> None:
    other = second(partition)
    writer.submit(setting("lost"))
    writer.submit(of("bob", "refused", Leave("nobody")))
    other.submit(restrict("freeze"))
    other.land()
    writer.settle()
    assert answers_to(writer, "lost") == [("frozen", False)]
    assert answers_to(writer, "refused") == [("frozen", False)]
    assert all(epoch.command in ("found", "restrict_commits") for epoch in winners(partition))


def test_commands_that_lose_to_a_thaw_are_decided(
    partition: MemoryPartition, writer: Writer
) -> None:
    writer.submit(restrict("freeze"))
    writer.settle()
    other = second(partition)
    writer.submit(restrict("freeze again"))
    writer.submit(restrict("mine", RestrictCommits(mode=CommitMode.SINGLE_USER, actor="bob")))
    writer.submit(of("bob", "of-bob"))
    other.submit(restrict("thaw", THAW))
    other.land()
    writer.settle()
    assert answers_to(writer, "of-bob") == [("", True)]
    assert answers_to(writer, "mine") == [("", True)]


def test_commands_behind_an_unconfirmed_thaw_are_decided(writer: Writer) -> None:
    writer.submit(restrict("freeze"))
    writer.settle()
    writer.submit(restrict("thaw", THAW))
    writer.submit(setting("after"))
    writer.settle()
    assert answers_to(writer, "after") == [("", True)]


def test_single_user_mode_admits_only_one_actor(writer: Writer) -> None:
    single = RestrictCommits(mode=CommitMode.SINGLE_USER, actor="bob")
    writer.submit(restrict("single", single))
    writer.settle()
    writer.submit(of("bob", "his"))
    writer.submit(of("bob", "refused", Leave("nobody")))
    writer.submit(of("ada", "hers"))
    writer.settle()
    assert answers_to(writer, "his") == [("", True)]
    assert answers_to(writer, "refused") == [("unknown_node", True)]
    assert answers_to(writer, "hers") == [("single_user", False)]
    writer.submit(restrict("thaw", THAW, actor="carol"))
    writer.submit(of("ada", "hers"))
    writer.settle()
    assert answers_to(writer, "hers")[-1] == ("", True)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("submit", "refuse", "retry", "land", "twice", "drop", "meet", "resolve"),
                *("freeze", "thaw", "single"),
            ]
        ),
        st.integers(0, 1),
        st.integers(0, 5),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_frozen_log_decides_nothing_in_any_order_of_events(
    steps: list[tuple[str, int, int]],
) -> None:
    partition = MemoryPartition()
    writers = [create(partition), second(partition)]
    modes = {
        "freeze": FREEZE,
        "thaw": THAW,
        "single": RestrictCommits(mode=CommitMode.SINGLE_USER, actor="ada"),
    }
    for at, (what, who, number) in enumerate(steps):
        if what in modes:
            writers[who].submit(restrict(f"{what}-{at}", modes[what]))
        else:
            act(writers[who], what, who, number)
    for writer in (*writers, *writers):
        writer.settle()
    _check(partition, writers)
    third = second(partition)
    third.submit(restrict("at the end", THAW))
    asked = {e.request_id: e for writer in writers for e in writer.asked}
    for envelope in asked.values():
        third.submit(envelope)
    third.settle()
    decided = [i for epoch in winners(partition) for i in decisions_of(epoch)]
    assert len({*decided}) == len(decided)
    assert {*asked} <= {*decided}  # nothing was lost by the freeze


def _check(partition: MemoryPartition, writers: list[Writer]) -> None:
    fold, images = Fold(), {}
    for record in partition.records:
        before = fold.image
        epoch = fold.offer(record.offset, record.value)
        if epoch is not None:
            assert before.commits.mode is CommitMode.OPEN or not _decided(epoch), epoch
            images[epoch.epoch] = fold.image
    for writer in writers:
        assert len(writer.asked) == sum(map(len, writer.answers.values()))
        for answer in (a for answers in writer.answers.values() for a in answers):
            if not answer.taken:
                assert images[answer.epoch].commits.mode == code_of(answer)


def _decided(epoch: Epoch) -> list[str]:
    """Return the decisions except those that restrict the log. Only the restricting actor is named ada here."""
    refused = [f.command for f in epoch.facts if isinstance(f, CommandRefused)]
    return [name for name in (epoch.command, *refused) if name not in ("noop", "restrict_commits")]
