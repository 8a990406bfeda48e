"""The memory of decided requests: exact candidates, bounded, and equal after equal folds."""

from collections.abc import Iterator
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stele.domain import request_memory
from stele.domain.commands import AnyCommand, CreateKeyspace, SetSetting, command_digest
from stele.domain.evolve import evolve
from stele.domain.facts import Epoch
from stele.domain.image import EMPTY, Image
from stele.domain.model.features import SettingChanged
from stele.domain.model.requests import (
    GENERATIONS,
    CommandRefused,
    asking_ms,
    named,
    parse,
    state_time_ms,
    time_ms,
    uuid7,
    uuid8,
)
from stele.domain.not_taken import MAX_AHEAD_MS, check_id, expired, horizon_of
from stele.domain.request_memory import RequestMemory
from stele.domain.snapshot import facts_to_image, image_to_facts, requests_hash
from stele.log.record_builder import next_state_id
from stele.runtime.request_ids import new_request_id
from tests.domain.epochs import code_of


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_memory, "GENERATION", 4)


def request(number: int) -> str:
    return uuid7(1000 + number, number)


def filled(decisions: int, limit: int = 128, step: int = 1) -> RequestMemory:
    """Return a memory in which request N was decided at epoch 1 + N * step."""
    found = RequestMemory()
    for number in range(decisions):
        found = found.with_decisions([request(number)], 1 + number * step, limit)
    return found


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**74 - 1))
def test_request_id_is_a_uuid_with_its_time(ms: int, entropy: int) -> None:
    seven, eight = uuid7(ms, entropy), uuid8(ms, entropy.to_bytes(10, "big"))
    for text, version in ((seven, 7), (eight, 8)):
        assert (UUID(text).version, str(UUID(text))) == (version, text)
        assert UUID(text).variant == "specified in RFC 4122"
        assert parse(text) == UUID(text).bytes
        assert time_ms(text) == ms


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**74 - 1))
def test_state_id_contains_its_time(ms: int, entropy: int) -> None:
    assert state_time_ms(next_state_id(bytes(16), ms, entropy)) == ms


def test_time_before_the_first_epoch_is_zero() -> None:
    assert state_time_ms(EMPTY.state_id) == 0


def test_equal_names_give_equal_ids() -> None:
    assert named("join n4", 7) == named("join n4", 7)
    assert len({named("a"), named("b"), named("a", 1)}) == 3
    assert time_ms(named("a", 12345)) == 12345


@pytest.mark.parametrize("text", ["", "x", named("a")[:-1], named("a").upper(), named("a") + "0"])
def test_other_texts_are_no_request_ids(text: str) -> None:
    assert parse(text) is None


def test_digest_distinguishes_commands_but_not_the_order_of_maps() -> None:
    one = CreateKeyspace("k", {"dc1": 1, "dc2": 2})
    assert command_digest(one) == command_digest(CreateKeyspace("k", {"dc2": 2, "dc1": 1}))
    assert len(command_digest(one)) == 16
    others: list[AnyCommand] = [
        CreateKeyspace("k", {"dc1": 1}),
        SetSetting("k", "1"),
        SetSetting("k", "2"),
    ]
    assert len({command_digest(command) for command in (one, *others)}) == 4


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("decisions", [0, 1, 3, 4, 5, 31, 33, 64, 65, 150])
def test_every_decision_is_found_after_all_merges(decisions: int) -> None:
    found = filled(decisions)
    assert [found.candidates(request(n)) for n in range(decisions)] == [
        (1 + n,) for n in range(decisions)
    ]
    assert found.candidates(request(decisions)) == ()
    assert len(found.generations) == decisions // 4
    assert len(found.runs) <= 2


@pytest.mark.usefixtures("small")
def test_oldest_generation_is_dropped_and_raises_the_horizon() -> None:
    found = filled(100, limit=3)
    assert len(found.generations) == 3
    assert found.horizon_ms == time_ms(request(87))
    assert [n for n in range(100) if found.candidates(request(n))] == [*range(88, 100)]
    assert sum(len(run.entries) for run in found.runs) <= 4 * (3 + 8)


@pytest.mark.usefixtures("small")
def test_unfilled_generation_does_not_count_for_the_limit() -> None:
    assert filled(3 * request_memory.GENERATION - 1, limit=2).candidates(request(0)) == (1,)
    full = filled(3 * request_memory.GENERATION, limit=2)
    assert full.candidates(request(0)) == ()
    assert full.horizon_ms == time_ms(request(request_memory.GENERATION - 1))
    assert filled(3 * request_memory.GENERATION - 1, limit=2).horizon_ms == -1, (
        "an id of any time is taken"
    )


@pytest.mark.usefixtures("small")
def test_lower_limit_drops_at_once_and_a_higher_one_restores_nothing() -> None:
    found = filled(40).limited(2)
    assert (found.horizon_ms, len(found.generations)) == (time_ms(request(31)), 2)
    assert found.limited(100) == found
    assert found.candidates(request(31)) == ()
    assert found.candidates(request(32)) == (33,)


@pytest.mark.usefixtures("small")
def test_distant_epochs_are_kept_in_separate_generations() -> None:
    far = 1 << 23
    found = filled(30, step=far)
    assert [found.candidates(request(n)) for n in range(30)] == [(1 + n * far,) for n in range(30)]
    again = read_back(found)
    assert again == found
    assert again.candidates(request(7)) == (1 + 7 * far,)


@pytest.mark.usefixtures("small")
def test_decisions_of_one_epoch_stay_in_one_generation() -> None:
    many = [request(n) for n in range(11)]
    found = RequestMemory().with_decisions(many, 5)
    assert [(g.base, g.last) for g in found.generations] == [(4, 5)]
    assert all(found.candidates(request_id) == (5,) for request_id in many)


def test_versions_that_share_a_table_are_independent() -> None:
    base = filled(2)
    left = base.with_decisions([named("left")], 10)
    right = base.with_decisions([named("right")], 10).with_decisions([named("left")], 11)
    assert [m.candidates(named("left")) for m in (base, left, right)] == [(), (10,), (11,)]
    assert [m.candidates(named("right")) for m in (base, left, right)] == [(), (), (10,)]
    assert base.young.size == 2
    assert base == filled(2)


def read_back(found: RequestMemory) -> RequestMemory:
    image = Image(epoch=1, decided=found)
    again = facts_to_image(image_to_facts(image), 1, image.state_id).decided
    assert again is not None
    return again


def epochs(ids: list[list[int]], limit: str) -> Iterator[Epoch]:
    """Yield an epoch for each list: its first id is applied, the others are refused."""
    state_id = EMPTY.state_id
    for epoch, numbers in enumerate(ids, 1):
        own = epoch.to_bytes(16, "big")
        refused = tuple(
            CommandRefused(
                request_id=request(number),
                digest=b"",
                command="leave",
                code="no",
                message="",
                hint="",
                details={},
                actor="",
                reason="",
                origin="",
            )
            for number in numbers[1:]
        )
        fact = (SettingChanged("request_memory", limit),) if epoch == 3 else ()
        yield Epoch(
            prev_state_id=state_id,
            state_id=own,
            epoch=epoch,
            request_id=request(numbers[0]) if numbers else "",
            command="noop",
            facts=(*fact, *refused),
        )
        state_id = own


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 400), max_size=6, unique=True), max_size=80),
    st.integers(0, 80),
    st.sampled_from(["", "1", "3", "nonsense"]),
)
def test_snapshot_plus_tail_equals_a_full_replay(ids: list[list[int]], at: int, limit: str) -> None:
    seen = set[int]()
    ids = [[n for n in numbers if n not in seen and not seen.add(n)] for numbers in ids]  # type: ignore[func-returns-value]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_memory, "GENERATION", 4)
        image = resumed = EMPTY
        for epoch in epochs(ids, limit):
            image, resumed = evolve(image, epoch), evolve(resumed, epoch)
            if epoch.epoch == at:
                resumed = facts_to_image(image_to_facts(resumed), image.epoch, image.state_id)
    assert resumed == image
    assert requests_hash(resumed) == requests_hash(image)
    decided, again = image.decided, resumed.decided
    assert decided is not None
    assert again is not None
    forgotten = 0
    for epoch_number, numbers in enumerate(ids, 1):
        for number in numbers:
            found = decided.candidates(request(number))
            assert found == again.candidates(request(number))
            if found != (epoch_number,):
                assert found == ()
                assert time_ms(request(number)) <= decided.horizon_ms
                forgotten += 1
    assert forgotten == 0 or limit in ("1", "3")


def test_limit_is_a_setting_of_the_log() -> None:
    assert GENERATIONS.of({}) == GENERATIONS.of({"request_memory": "no"}) == 128
    assert GENERATIONS.of({"request_memory": "7"}) == 7
    assert not any(map(GENERATIONS.accepts, ("0", "-1", "1.5", "4097", "²")))


def test_entries_of_a_full_generation_take_eight_bytes_each() -> None:
    found = RequestMemory().with_decisions(
        [request(n) for n in range(request_memory.GENERATION)], 1
    )
    ((_, entries),) = found.sealed()
    assert (entries.dtype, entries.nbytes) == (np.dtype(np.uint64), 8 * request_memory.GENERATION)
    assert found.candidates(request(77)) == (1,)


@pytest.mark.parametrize("limit", [3, 30])
@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.usefixtures("small")
def test_sealed_generations_are_separate_although_stored_in_few_runs(limit: int, step: int) -> None:
    decisions = 4 * 25 + 2
    found = filled(decisions, limit, step)
    sealed = [*found.sealed()]
    assert tuple(generation for generation, _ in sealed) == found.generations
    assert len(sealed) == min(limit, 25)
    assert len(found.runs) < len(sealed) or limit == 3
    for at, (generation, entries) in enumerate(sealed, 25 - len(sealed)):
        requests = {number: 1 + number * step for number in range(4 * at, 4 * at + 4)}
        assert all(generation.base < epoch <= generation.last for epoch in requests.values())
        expected = sorted(
            request_memory.hash_of(request(number)) << request_memory.PLACE_BITS
            | epoch - generation.base
            for number, epoch in requests.items()
        )
        assert entries.tolist() == expected


def test_state_id_from_the_future_does_not_allow_future_request_ids() -> None:
    """Otherwise one of them would raise the horizon above the ids of all others."""
    now, year = 1_700_000_000_000, 365 * 86_400_000
    state_id = (now + year).to_bytes(6, "big") + bytes(10)
    assert code_of(check_id(uuid7(now + year, 1), state_id, now)) == "request_id_from_the_future"
    assert check_id(uuid7(now, 1), state_id, now) is None
    assert check_id(uuid7(now + MAX_AHEAD_MS, 1), state_id, now) is None


def test_request_ids_just_above_a_horizon_far_ahead_are_accepted() -> None:
    """Otherwise no request would be possible until that time."""
    now, years = 1_700_000_000_000, 1_800_000_000_000
    state_id = now.to_bytes(6, "big") + bytes(10)
    told = horizon_of(expired(years))
    assert check_id(uuid7(asking_ms(state_id, now, told), 1), state_id, now, years) is None
    assert (
        time_ms(new_request_id(state_id, told)) == time_ms(new_request_id(None, told)) == years + 1
    )
    beyond = check_id(uuid7(years + MAX_AHEAD_MS + 1, 1), state_id, now, years)
    assert beyond is not None and beyond.code == "request_id_from_the_future"
    assert horizon_of(beyond) == horizon_of(None) == -1
    assert asking_ms(state_id, now + 1) == now


def test_repeated_decision_changes_nothing() -> None:
    """Two versions that share a table must differ in its size."""
    before = RequestMemory().with_decisions([request(1)], 1)
    after = before.with_decisions([request(1)], 2)
    later = before.with_decisions([request(2)], 3)
    assert after.candidates(request(1)) == (1,)
    assert after.candidates(request(2)) == ()
    assert later.candidates(request(2)) == (3,)
