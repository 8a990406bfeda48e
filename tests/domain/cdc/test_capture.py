"""Capture of a table: its options, the streams of tablets, and the times that writes may have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.domain.commands import AlterSchema, AlterTable, CreateKeyspace, CreateTable
from stele.domain.model import schema as c
from stele.domain.model.cdc_streams import place_of, stream_at
from stele.domain.model.schema import TableOptions, change_log_of, owner_of
from stele.domain.model.schema_objects import ColumnKind
from stele.domain.ring.ranges import contains
from stele.domain.rules.cdc import (
    CdcOptions,
    _found_tablet,
    _of_tablet,
    cdc_of,
    check_time,
    confidence_ms,
    find_stream,
    is_captured,
    stream_sets,
)
from stele.domain.tablets.maps import MAX_TABLETS, ranges
from tests.coordinator.world import World, three_nodes
from tests.domain.epochs import code_of

TABLE, TYPED = "music.songs", "music.typed"
WINDOW_MS = confidence_ms(5.0)


def world_of(*, tablets: bool = True) -> World:
    world = three_nodes()
    made = CreateKeyspace("music", {"dc1": 3}, tablets=tablets, initial_tablets=4 * tablets)
    assert world.apply(made) is None
    assert world.apply(CreateTable(TABLE, TableOptions(cdc="true"))) is None
    return world


def data_id(world: World, name: str = TABLE) -> str:
    data = world.image.schema.serving(name)
    assert data is not None
    return data.data_id


@pytest.mark.parametrize(
    ("literal", "options"),
    [
        ("true", CdcOptions(enabled=True)),
        ("{}", CdcOptions(enabled=True)),
        ("{'enabled': false}", CdcOptions()),
        ("{'preimage': full, 'ttl': 60}", CdcOptions(enabled=True, preimage=True, ttl_s=60)),
        ("{'enabled': 'true', 'preimage': 'false', 'ttl': '0'}", CdcOptions(True, False, 0)),
    ],
)
def test_option_of_an_untyped_table_sets_its_capture(literal: str, options: CdcOptions) -> None:
    world = world_of(tablets=False)
    assert world.apply(AlterTable(TABLE, TableOptions(cdc=literal))) is None
    assert cdc_of(world.image.schema, data_id(world)) == options
    assert cdc_of(world.image.schema, change_log_of(data_id(world))) == options


def test_table_without_the_option_has_no_change_log() -> None:
    world = world_of()
    assert is_captured(world.image.schema, data_id(world))
    assert world.apply(AlterTable(TABLE, reset=("cdc",))) is None
    assert cdc_of(world.image.schema, data_id(world)) is None


@pytest.mark.parametrize(
    "literal", ["yes", "{'on': true}", "{'ttl': '-1'}", "{'ttl': soon}", "{'preimage': some}"]
)
def test_invalid_cdc_option_is_refused(literal: str) -> None:
    world = world_of()
    assert code_of(world.apply(AlterTable(TABLE, TableOptions(cdc=literal)))) == "bad_parameter"


def test_table_with_columns_uses_the_parameter_instead_of_the_option() -> None:
    world = world_of()
    world.history.enable("schema_objects")
    key = c.ColumnDefinition(name="id", type="int", kind=ColumnKind.PARTITION_KEY)
    made = c.TableCreation(name=TYPED, columns=(key,), parameters={"cdc": "{'ttl': 70}"})
    assert world.apply(AlterSchema((made,))) is None
    assert cdc_of(world.image.schema, data_id(world, TYPED)) == CdcOptions(enabled=True, ttl_s=70)
    assert code_of(world.apply(AlterTable(TYPED, TableOptions(cdc="true")))) == "bad_table_options"
    other = c.TableCreation(name="music.other", columns=(key,), options=TableOptions(cdc="true"))
    assert code_of(world.apply(AlterSchema((other,)))) == "bad_table_options"


def test_change_log_belongs_to_the_data_id() -> None:
    assert owner_of(change_log_of("t@7")) == owner_of("t@7") == "t"
    schema = world_of().image.schema
    assert schema.of_data(change_log_of("none")) is None


@given(st.integers(0, 20), st.data())
def test_stream_id_of_a_tablet_identifies_its_range(power: int, data: st.DataObject) -> None:
    count = 1 << power
    assert count <= MAX_TABLETS
    tablet = data.draw(st.integers(0, count - 1))
    stream = _of_tablet("t", count, tablet)
    end = int.from_bytes(stream.stream_id[:8], "big", signed=True)
    assert _found_tablet("t", stream.stream_id, end) == stream
    assert _found_tablet("other", stream.stream_id, end) is None


@given(st.binary(min_size=16, max_size=16))
def test_random_ids_are_no_streams(stream_id: bytes) -> None:
    end = int.from_bytes(stream_id[:8], "big", signed=True)
    assert _found_tablet("t", stream_id, end) is None


def test_streams_of_a_table_with_tablets_are_its_tablets() -> None:
    world = world_of()
    (streams,) = stream_sets(world.image, data_id(world))
    assert tuple(r for s in streams.streams for r in s.ranges) == ranges(4)
    assert {find_stream(world.image, data_id(world), s.stream_id) for s in streams.streams} == {
        *streams.streams
    }


def test_streams_of_a_table_without_tablets_are_the_generation() -> None:
    world = world_of(tablets=False)
    *_, newest = stream_sets(world.image, data_id(world))
    generation = world.image.cdc.newest()
    assert generation is not None
    assert (newest.since_ms, newest.until_ms) == (generation.since_ms, 0)
    for token in (-(2**63) + 1, -5, 0, 7, 2**63 - 1):
        holding = [s for s in newest.streams if any(contains(r, token) for r in s.ranges)]
        place = place_of(generation.streams, token)
        assert [s.stream_id for s in holding] == [stream_at(generation.streams, place)]
        assert find_stream(world.image, data_id(world), holding[0].stream_id) == holding[0]


@pytest.mark.parametrize(
    ("behind_ms", "code"),
    [
        (WINDOW_MS, "cdc_write_too_old"),
        (WINDOW_MS - 1, ""),
        (0, ""),
        (-5000, ""),
        (-5001, "cdc_write_from_the_future"),
    ],
)
@pytest.mark.parametrize("tablets", [False, True])
def test_write_with_a_time_outside_the_window_is_rejected(
    behind_ms: int, code: str, tablets: bool
) -> None:
    world = world_of(tablets=tablets)
    newest = world.image.cdc.newest()
    assert newest is not None
    now_ms = newest.since_ms + 1_000_000
    found = check_time(world.image, data_id(world), 0, now_ms - behind_ms, now_ms, WINDOW_MS)
    assert (found.code if found else "") == code


def test_before_the_first_generation_only_tablets_can_be_captured() -> None:
    for tablets, code in ((False, "cdc_no_generation"), (True, "")):
        world = world_of(tablets=tablets)
        found = check_time(world.image, data_id(world), 0, 1000, 1000, WINDOW_MS)
        assert (found.code if found else "") == code
