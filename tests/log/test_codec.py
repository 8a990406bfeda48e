"""Structs and Avro schemas agree: every value of the core survives encoding and decoding."""

from __future__ import annotations

import enum
import types
from collections.abc import Mapping
from io import BytesIO
from typing import Annotated, Any, Union, get_args, get_origin

import fastavro
import msgspec
import pytest
from fastavro.schema import load_schema

from stele.domain import commands, facts
from stele.domain.base import Fact
from stele.domain.column import NumberColumn
from stele.domain.commands import (
    AlterSchema,
    Command,
    Envelope,
    Join,
    Outcome,
    Rejection,
    SetSetting,
)
from stele.domain.facts import Epoch
from stele.domain.messages import Ack, Load, Order, Report, TabletSizes
from stele.domain.model.features import SettingChanged
from stele.domain.model.ring import PackedRanges, PlacementChanged
from stele.domain.model.transitions import TransitionPlanned
from stele.domain.ring.columns import NodeNumbers
from stele.domain.ring.ranges import MIN_TOKEN, RangeReplicas
from stele.domain.snapshot import image_to_facts
from stele.domain.staging import Part
from stele.log import codec
from stele.log.chain import MAGIC
from stele.log.codec import DecodeError
from stele.log.schemas import HEADER_BYTES, header_of, load_schemas, schema_folder
from tests.domain.history import join, three_nodes
from tests.domain.ring import plain
from tests.domain.schema.examples import CHANGES, SCHEMA_FACTS

LOAD = Load(
    node_id="n",
    host_id="h",
    boot_id="b",
    sequence=1,
    epoch=2,
    at_ms=3,
    disk_total_bytes=20,
    disk_free_bytes=10,
    tables=(TabletSizes(data_id="t", tablet_count=4, tablets=(3,), sizes_bytes=(7,)),),
    log_id=bytes(16),
)


def rates(**of: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {
        "reads_per_s": of["reads"],
        "writes_per_s": of["writes"],
        "lower_half_per_s": of["lower"],
    }


def epoch_of(*found: facts.AnyFact) -> Epoch:
    return Epoch(
        prev_state_id=bytes(range(16)),
        state_id=bytes(range(1, 17)),
        epoch=7,
        request_id="r-1",
        command="noop",
        facts=found,
        actor="ada",
        reason="because",
        origin="test",
        at_ms=1_700_000_000_000,
        required_features=("tablets",),
    )


def sample(kind: Any) -> Any:
    """Return a value of a type, with no field at its default."""
    simple = {str: "text", bytes: b"bytes", int: 12, float: 1.5, bool: True}
    origin, args = get_origin(kind), get_args(kind)
    if kind in simple:
        return simple[kind]
    if origin in (Annotated, Union, types.UnionType):
        return sample(args[0])
    if origin is tuple:
        return (sample(args[0]),) * 2 if args[-1] is Ellipsis else tuple(map(sample, args))
    if origin in (dict, Mapping):
        return {sample(args[0]): sample(args[1])}
    if issubclass(kind, enum.Enum):
        return [*kind][-1]
    return kind(**{field.name: sample(field.type) for field in msgspec.structs.fields(kind)})


def test_every_kind_of_fact_survives_a_round_trip() -> None:
    history, driver = three_nodes()
    history.apply(join(4, "r1"))
    driver.run()
    every = [
        *(fact for epoch in history.epochs for fact in epoch.facts),
        *(fact for image in history.images for fact in image_to_facts(image)),
        *SCHEMA_FACTS,
        *(sample(kind) for kind in Fact.__subclasses__() if kind is not PlacementChanged),
        Part("id", 2, (SettingChanged("key", "x"), sample(TransitionPlanned))),
        SettingChanged("key", ""),
        SettingChanged("key", "x" * 65_536),
    ]
    assert {type(fact) for fact in every} == set(Fact.__subclasses__())
    for fact in every:
        epoch = epoch_of(fact)
        assert codec.decode_epoch(codec.encode_epoch(epoch)) == epoch


def test_malformed_column_of_a_winner_is_a_decode_error() -> None:
    rows = plain.packed([RangeReplicas(MIN_TOKEN, MIN_TOKEN, (), ())], NodeNumbers())
    starts = NumberColumn()
    starts.raw = b"\x08\x01\x02"
    removed = PackedRanges(starts, rows.ends)
    value = codec.encode_epoch(epoch_of(PlacementChanged("dc1:3", removed, rows)))
    with pytest.raises(DecodeError, match=r"3 bytes that begin with 08 are no column.*starts"):
        codec.decode_epoch(value)


def samples() -> list[commands.AnyCommand]:
    """Return at least one of each command, with no field at its default."""
    tokens = (-(2**63) + 1, 0, 2**63 - 1)
    return [
        *map(sample, Command.__subclasses__()),
        msgspec.structs.replace(sample(Join), initial_tokens=tokens),
        AlterSchema(CHANGES, 7),
    ]


@pytest.mark.parametrize("command", samples(), ids=commands.command_name)
def test_every_command_survives_a_round_trip(command: commands.AnyCommand) -> None:
    envelope = Envelope(request_id="r", command=command, actor="a", reason="w", origin="o")
    assert codec.decode_envelope(codec.encode_envelope(envelope)) == envelope


def test_outcomes_orders_reports_and_acks_survive_a_round_trip() -> None:
    rejection = Rejection("code", "message", "hint", {"term": "3"})
    for outcome in (
        Outcome(request_id="r", applied=True, epoch=4, state_id=bytes(16)),
        Outcome(request_id="r", applied=False, epoch=4, state_id=bytes(16), rejection=rejection),
    ):
        assert codec.decode_outcome(codec.encode_outcome(outcome)) == outcome
    order, report, ack = sample(Order), sample(Report), sample(Ack)
    assert codec.decode_order(codec.encode_order(order)) == order
    assert codec.decode_report(codec.encode_report(report)) == report
    assert codec.decode_ack(codec.encode_ack(ack)) == ack
    assert codec.decode_load(codec.encode_load(LOAD)) == LOAD


def test_load_carries_rates_and_idle_tablets_take_three_bytes() -> None:
    (table,) = LOAD.tables
    many = {"tablet_count": 1000, "tablets": tuple(range(1000)), "sizes_bytes": (7,) * 1000}
    table = msgspec.structs.replace(table, **many)
    plain = msgspec.structs.replace(LOAD, tables=(table,))
    idle = rates(reads=(0,) * 1000, writes=(0,) * 1000, lower=(0,) * 1000)
    hot = rates(reads=(9000, *(-1,) * 999), writes=(700, *(-1,) * 999), lower=(9700, *(-1,) * 999))
    loads = [
        msgspec.structs.replace(LOAD, tables=(msgspec.structs.replace(table, **each),))
        for each in (idle, hot)
    ]
    for load in loads:
        assert codec.decode_load(codec.encode_load(load)) == load
        assert len(codec.encode_load(load)) < len(codec.encode_load(plain)) + 3100


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"tablet_count": 0, "tablets": (), "sizes_bytes": ()}, "t has 0 tablets"),
        ({"tablets": (1, 3)}, "2 tablets of t have 1 sizes"),
        ({"tablets": (4,)}, "tablet 4 of 4"),
        ({"tablets": (-1,)}, "tablet -1 of 4"),
        ({"tablets": (2, 2), "sizes_bytes": (1, 1)}, "tablet 2 of 4 of t comes after 2"),
        ({"sizes_bytes": (-1,)}, "less than nothing"),
        ({"reads_per_s": (1,)}, r"1 tablets of t have \[0, 1\] rates"),
        (rates(reads=(1, 1), writes=(1, 1), lower=(1, 1)), r"have \[2\] rates"),
        (rates(reads=(-1,), writes=(-1,), lower=(0,)), "of -1 reads and -1 writes"),
        (rates(reads=(-2,), writes=(0,), lower=(0,)), "of -2 reads"),
        (rates(reads=(3,), writes=(4,), lower=(8,)), "of a tablet of t 8 are in a half"),
        (rates(reads=(3,), writes=(4,), lower=(-1,)), "of a tablet of t -1 are in a half"),
    ],
)
def test_load_with_impossible_numbers_is_refused(changes: dict[str, Any], why: str) -> None:
    table = msgspec.structs.replace(LOAD.tables[0], **changes)
    with pytest.raises(DecodeError, match=why):
        codec.decode_load(codec.encode_load(msgspec.structs.replace(LOAD, tables=(table,))))


def test_more_free_than_total_disk_space_is_refused() -> None:
    with pytest.raises(DecodeError, match="21 of 20 bytes are free"):
        codec.decode_load(codec.encode_load(msgspec.structs.replace(LOAD, disk_free_bytes=21)))


def test_a_plain_avro_library_reads_and_writes_the_same_bytes() -> None:
    """The view of other languages: fastavro with only the schema file."""
    schema = load_schema(schema_folder() / "command.avsc")
    name = "stele.set_setting"
    record = {"request_id": "r", "command": (name, {"name": "a", "value": "b"})}
    out = BytesIO()
    out.write(header_of(schema))
    fastavro.schemaless_writer(out, schema, record)
    envelope = codec.decode_envelope(out.getvalue())
    assert envelope == Envelope(request_id="r", command=SetSetting("a", "b"))


def test_fingerprints_are_crc_64_avro() -> None:
    """Known values of Avro's specification and its test data."""
    known = {
        '"null"': 0x63DD24E7CC258F8A,
        '"int"': 0x7275D51A3F395C8F,
        '"string"': 0x8F014872634503C7,
    }
    for schema, fingerprint in known.items():
        header = header_of(msgspec.json.decode(schema))
        assert header == MAGIC + fingerprint.to_bytes(8, "little")


def test_every_schema_has_its_own_fingerprint() -> None:
    schemas = load_schemas()
    assert len(set(schemas.headers.values())) == len(schemas.newest)
    assert all(len(header) == HEADER_BYTES for header in schemas.headers.values())


@pytest.mark.parametrize("cut", [0, 1, 5, HEADER_BYTES, HEADER_BYTES + 3, -1])
def test_truncated_record_is_a_decode_error(cut: int) -> None:
    value = codec.encode_epoch(epoch_of(SettingChanged("a", "b")))
    with pytest.raises(DecodeError):
        codec.decode_epoch(value[:cut])


def test_bytes_after_the_record_are_a_decode_error() -> None:
    value = codec.encode_epoch(epoch_of())
    with pytest.raises(DecodeError, match="1 bytes too many"):
        codec.decode_epoch(value + b"x")


def test_a_record_of_another_type_is_refused() -> None:
    value = codec.encode_epoch(epoch_of())
    with pytest.raises(DecodeError) as caught:
        codec.decode_envelope(value)
    assert caught.value.unknown_schema
