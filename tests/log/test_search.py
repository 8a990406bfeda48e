"""Slices of a long history together find and count the same as one pass over all of it."""

import random
from typing import Any

import msgspec
import pytest

from stele.domain.commands import Envelope, Leave, Rejection, SetSetting
from stele.domain.epoch_search import FOR_EVER_MS, Question, as_searched, fits, ids_of
from stele.domain.epoch_stats import EpochCount, EpochStats, merged
from stele.domain.facts import Epoch
from stele.domain.model.requests import named
from stele.log import search as module
from stele.log.codec import DecodeError, encode_epoch
from stele.log.history import Bounds, EpochNotFoundError, History
from stele.log.search import MARGIN_MS, Audit, Needles, count, decode_audit, search
from tests.domain.history import History as Story
from tests.domain.history import join, three_nodes
from tests.log.memory import MemoryLog, MemoryPartition

SMALL = Bounds(mark_every=5, marks=8, images=4, recent_records=20, read_records=7)
"""A few hundred epochs go past all of them."""
ACTORS = ("ada", "bob", "eve")
WHY = Rejection("no", "It cannot be.", "Ask again.")


@pytest.fixture(autouse=True)
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make slices short, and let searches by time end at a few epochs."""
    for name, value in {"MOST_EPOCHS": 50, "FIRST_PACE": 4, "GREATEST_PACE": 16, "NEAR": 8}.items():
        monkeypatch.setattr(module, name, value)


@pytest.fixture(scope="module")
def story() -> Story:
    """Return some hundred epochs over an hour and a half, by writers whose clocks differ."""
    story, driver = three_nodes()
    story.apply(join(4, "r1"))
    driver.run()
    chance = random.Random(3)
    for n in range(300):
        story.at_ms += 20_000
        actor = chance.choice(ACTORS)
        asked = Envelope(
            request_id=named(f"r{n}"),
            command=SetSetting(f"s{n % 7}", str(n)) if n % 5 else Leave("n1"),
            actor=actor,
            reason=f"reason {n}",
        )
        if n % 5:
            story.submit(asked)
        else:
            story.refuse(asked, WHY)
    late = dict(zip(ACTORS, (0, 7_000, 30_000), strict=True))
    start = len(story.epochs) - 300
    for index, epoch in enumerate(story.epochs):
        by_log = log_ms(epoch)
        at_ms = by_log - (late.get(epoch.actor, 0) if index >= start else 0)
        story.epochs[index] = msgspec.structs.replace(epoch, at_ms=at_ms)
    return story


def log_ms(epoch: Epoch) -> int:
    return int.from_bytes(epoch.state_id[:6])


def history_of(story: Story, oldest: int = 0) -> History:
    """Return the history after epoch ``oldest``, with two losers after each third winner."""
    partition = MemoryPartition()
    for epoch in story.epochs[:oldest]:
        partition.append(encode_epoch(epoch))
    history = History(MemoryLog(partition), story.images[oldest], oldest, SMALL)
    for epoch, image in zip(story.epochs[oldest:], story.images[oldest + 1 :], strict=True):
        value = encode_epoch(epoch)
        history.add(partition.append(value).offset, value, image)
        for _ in range(2 if epoch.epoch % 3 == 0 else 0):
            partition.append(value)
    return history


async def all_found(history: History, question: Question, limit: int) -> list[Epoch]:
    found, before = list[Epoch](), history.newest + 1
    while before:
        part = await search(history, question, before, limit)
        assert len(part.epochs) <= limit
        assert part.looked_at <= 50 + 16
        assert part.next_before < before
        found, before = found + part.epochs, part.next_before
    return found


def questions(story: Story) -> list[Question]:
    middle = story.epochs[-150].at_ms
    asked: list[dict[str, Any]] = [
        {},
        {"actor": "ada"},
        {"command": "set_setting", "actor": "eve"},
        {"refused": True},
        {"refused": True, "actor": "bob"},
        {"command": "leave"},
        {"request": named("r17")},
        {"facts": frozenset({"NodeChanged"})},
        {"about": ids_of(story.image, "n4")},
        {"about": ids_of(story.image, "library")},
        {"text": ("REASON", "99")},
        {"text": ("cannot",)},
        {"actor": "nobody"},
        {"since_ms": middle},
        {"until_ms": middle},
        {"since_ms": middle - 300_000, "until_ms": middle, "actor": "eve"},
        {"since_ms": middle, "until_ms": middle - 1},
        {"until_ms": 5},
        {"since_ms": FOR_EVER_MS - 1},
    ]
    return [Question(**each) for each in asked]


@pytest.mark.parametrize("limit", [1, 3, 1000])
async def test_slices_find_the_same_as_a_full_scan(story: Story, limit: int) -> None:
    history = history_of(story)
    for question in questions(story):
        expected = [epoch for epoch in reversed(story.epochs) if fits(question, epoch)]
        assert await all_found(history, question, limit) == expected, question


async def test_newest_epochs_are_found_without_a_full_scan(story: Story) -> None:
    history = history_of(story)
    found = await search(history, Question(), history.newest + 1, 3)
    assert found.epochs == story.epochs[:-4:-1]
    assert found.looked_at == 4
    assert found.next_before == history.newest - 2


async def test_search_in_a_span_of_time_skips_other_epochs(story: Story) -> None:
    """A binary search by the log's clock finds the span. Older epochs are not read."""
    history = history_of(story)
    until = story.epochs[99].at_ms
    question = Question(since_ms=until - 60_000, until_ms=until)
    looked = 0
    before = history.newest + 1
    while before:
        found = await search(history, question, before, 1000)
        looked, before = looked + found.looked_at, found.next_before
    margin = 2 * MARGIN_MS // 20_000
    assert looked <= 60_000 // 20_000 + margin + 2 * 16 + 8


async def test_search_ends_at_the_oldest_kept_epoch(story: Story) -> None:
    history = history_of(story, 200)
    found = await all_found(history, Question(), 1000)
    assert found == story.epochs[:199:-1]

    async def gone(first: int, limit: int) -> Any:
        if first < 290:
            raise EpochNotFoundError(first, 290, history.newest)
        async for winner in History.winners(history, first, limit):
            yield winner

    history.winners = gone  # type: ignore[method-assign]
    for question in (Question(), Question(until_ms=story.epochs[299].at_ms)):
        expected = [e for e in reversed(story.epochs[289:]) if fits(question, e)]
        assert await all_found(history, question, 1000) == expected


async def test_needles_never_skip_a_matching_record(story: Story) -> None:
    passed = 0
    for question in questions(story):
        needles = Needles(question.exact(), map(as_searched, question.text))
        for epoch in story.epochs:
            if needles.may_be_in(encode_epoch(epoch)):
                continue
            passed += 1
            assert not fits(question, epoch)
    assert passed > 8 * len(story.epochs), "most are passed over"


async def test_audit_fields_are_decoded_without_the_facts(story: Story) -> None:
    for epoch in story.epochs[::7]:
        expected = Audit(*(getattr(epoch, name) for name in Audit._fields))
        assert decode_audit(encode_epoch(epoch)) == expected
    value = encode_epoch(story.epochs[-1])
    for broken in (value[:95], b"\xc3\x01" + bytes(8) + value[10:], b""):
        with pytest.raises(DecodeError):
            decode_audit(broken)


async def all_counted(history: History, first: int, last: int) -> EpochStats:
    found = EpochStats()
    while first <= last:
        part = await count(history, first, last)
        assert part.total.epochs <= 50
        found, first = merged(found, part), part.last + 1
    return found


async def test_slices_count_all_epochs(story: Story) -> None:
    history = history_of(story)
    found = await all_counted(history, 1, history.newest)
    values = [encode_epoch(epoch) for epoch in story.epochs]
    assert found.total == EpochCount(len(values), sum(map(len, values)))
    assert (found.first, found.last) == (1, history.newest)
    assert (found.first_offset, found.last_offset) == (0, found.beside + history.newest - 1)
    assert found.beside == 2 * ((history.newest - 1) // 3)
    of_bob = [len(v) for v, e in zip(values, story.epochs, strict=True) if e.actor == "bob"]
    assert found.actors["bob"] == EpochCount(len(of_bob), sum(of_bob))
    assert found.largest[0].size_bytes == max(map(len, values))
    assert (found.first_at_ms, found.last_at_ms) == (
        story.epochs[0].at_ms,
        story.epochs[-1].at_ms,
    )
    part = await all_counted(history, 100, 120)
    assert (part.first, part.last, part.total.epochs, part.beside) == (100, 120, 21, 2 * 7)


async def test_count_begins_at_the_oldest_kept_epoch(story: Story) -> None:
    """Whether there were records before the first kept one is unknown."""
    found = await all_counted(history_of(story, 99), 100, 104)
    assert (found.first, found.beside) == (100, 2)
    assert await count(history_of(story), 400_000, 500_000) == EpochStats()
    with pytest.raises(EpochNotFoundError):
        await count(history_of(story, 99), 99, 104)
