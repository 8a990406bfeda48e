"""Structs and Avro schemas agree: every value of the core survives encoding and decoding."""

from typing import Any, cast

import fastavro
import msgspec
import pytest
from fastavro.schema import load_schema

from stele.domain import commands, facts
from stele.domain.base import Fact
from stele.domain.column import NumberColumn
from stele.domain.commands import (
    Advance,
    AlterSchema,
    AlterTable,
    AnnounceNode,
    AnnounceService,
    ClaimCoordinator,
    Command,
    CreateKeyspace,
    CreateTable,
    EnableFeatures,
    Envelope,
    Exclude,
    Join,
    KeyspaceRfChange,
    Leave,
    Move,
    MoveTablets,
    Outcome,
    Rejection,
    Remove,
    RepairTablets,
    Replace,
    RestoreTablets,
    Rollback,
    SetSetting,
)
from stele.domain.facts import Epoch
from stele.domain.messages import Ack, Load, Order, Report, TabletSizes
from stele.domain.model.archive import (
    AnnouncedSnapshot,
    ArchiveTrimmed,
    LogReader,
    LogTruncated,
    ReaderChanged,
    ReaderForgotten,
    Replica,
    ReplicaChanged,
    ReplicaDiverged,
    ReplicaForgotten,
    SnapshotAnnounced,
    SnapshotAsked,
    SnapshotsForgotten,
    TrimAgreed,
    TrimProposed,
)
from stele.domain.model.cdc import CdcGenerationForgotten
from stele.domain.model.cluster import LogRecovered
from stele.domain.model.commits import Commits, CommitsRestricted
from stele.domain.model.features import FeaturesEnabled, SettingChanged
from stele.domain.model.operations import TabletMove, TabletRepair, TabletRestore
from stele.domain.model.overrides import Override, StateReplaced
from stele.domain.model.repairs import RepairsForgotten, RepairsResized, RepairTimes, TabletRepaired
from stele.domain.model.requests import (
    DecidedGeneration,
    DecidedRequests,
    Request,
    RequestChanged,
    RequestForgotten,
)
from stele.domain.model.ring import PackedRanges, PlacementChanged, PlacementDropped
from stele.domain.model.schema import (
    Balancing,
    BalancingSwitched,
    Keyspace,
    KeyspaceChanged,
    KeyspaceDropped,
    Table,
    TableChanged,
    TableDropped,
    TableOptions,
)
from stele.domain.model.services import Service, ServiceChanged, ServiceForgotten
from stele.domain.model.table_snapshots import (
    RestoredTablets,
    TableRestoreBegun,
    TableRestoreEnded,
    TableRestoreResized,
    TableSnapshot,
    TableSnapshotDeleted,
    TableSnapshotTaken,
    TabletRestored,
    WrittenPart,
)
from stele.domain.model.topology import Versions
from stele.domain.model.transitions import (
    BarrierRelaxed,
    TransitionMarked,
    TransitionPlanned,
    TransitionUnplanned,
    VersionsChanged,
)
from stele.domain.names import (
    BarrierLevel,
    CommitMode,
    OrderKind,
    OverrideKind,
    ReplicaState,
    ReportStatus,
    RequestKind,
    RequestStatus,
    TransitionState,
)
from stele.domain.request_memory import refusal
from stele.domain.ring.columns import NodeNumbers
from stele.domain.ring.ranges import MIN_TOKEN, Range, RangeReplicas
from stele.domain.ring.transition import TransitionPlan, TransitionRow
from stele.domain.snapshot import image_to_facts
from stele.domain.staging import Part, PartsCommitted
from stele.log import codec
from stele.log.chain import MAGIC
from stele.log.codec import DecodeError
from stele.log.schemas import HEADER_BYTES, header_of, load_schemas, schema_folder
from tests.domain.history import join, three_nodes
from tests.domain.ring import plain
from tests.domain.schema.examples import CHANGES, SCHEMA_FACTS

_OPTIONS = TableOptions(
    min_tablet_count=1,
    max_tablet_count=8,
    min_per_shard_tablet_count=2,
    expected_data_size_in_gb=3,
)
_RACKED = Keyspace(
    keyspace_id="k",
    name="n",
    replication={"dc1": 2},
    placement="",
    tablets=True,
    racks={"dc1": ("r1", "r2")},
)
_RESTRICTED = Request(
    request_id="r",
    kind=RequestKind.TABLET_REPAIR,
    status=RequestStatus.PENDING,
    racks={"dc1": ("r1", "r2")},
    replicas_to_move=7,
    repair_nodes=("a", "b"),
    repair_dcs=("dc1",),
)
_OFF = Balancing(off_since=7, until_ms=2**41, abort_at_ms=2**40, actor="ada", reason="why")

_PART = WrittenPart(node_id="n", manifest="f" * 64, rows=3, size_bytes=2**40)
_SNAPSHOT = TableSnapshot(
    snapshot_id="s",
    name="monday",
    table="k.t",
    table_id="t",
    data_id="t@7",
    tablets=4,
    options=_OPTIONS,
    replication={"dc1": 3},
    epoch=9,
    taken_ms=2**40,
    expires_ms=2**41,
    parts=(_PART,),
)

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


_REPLICA = Replica(
    replica_id="c-1",
    dc="dc1",
    rack="r1",
    address="http://c-1",
    state=ReplicaState.MEMBER,
    since_epoch=7,
    folder_id="f",
)
_ANNOUNCED = AnnouncedSnapshot(
    epoch=7,
    state_id="0" * 32,
    hash="1" * 64,
    size_bytes=8,
    first_epoch=1,
    anchor_offset=9,
    log_id="0" * 32,
    announced_ms=2**40,
)
_RECONFIGURES = Request(
    request_id="r",
    kind=RequestKind.RECONFIGURE_CATCH_UP,
    status=RequestStatus.RUNNING,
    archive_replication="dc1=2,dc2=1",
    members=("c-1", "c-2"),
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


_SINGLE_USER = Commits(
    mode=CommitMode.SINGLE_USER, actor="ada", by="bob", reason="why", since_epoch=5, since_ms=2**40
)


_OVERRIDE = Override(
    epoch=9,
    kind=OverrideKind.LOAD,
    of_epoch=7,
    of_cluster_id="demo/1",
    of_log_id="aa" * 16,
    hash_before="bb" * 32,
    hash_after="cc" * 32,
    above_version=12,
    accept_loss=True,
)


def test_every_kind_of_fact_survives_a_round_trip() -> None:
    history, driver = three_nodes()
    history.apply(join(4, "r1"))
    driver.run()
    plan = TransitionPlan((TransitionRow(-5, 5, ("n1",), ("n2",)),), locks=(Range(-5, 5),))
    every = [
        *(fact for epoch in history.epochs for fact in epoch.facts),
        *(fact for image in history.images for fact in image_to_facts(image)),
        LogRecovered("aa" * 16, 7, "bb" * 16, "cc" * 16, "topic", 9, 12),
        CommitsRestricted(_SINGLE_USER),
        StateReplaced(_OVERRIDE),
        KeyspaceDropped("library"),
        TableChanged(Table(table_id="t", keyspace_id="k", name="n", options=_OPTIONS)),
        TableChanged(Table(table_id="t", keyspace_id="k", name="n", balancing=_OFF)),
        BalancingSwitched("t", _OFF),
        TableDropped("t"),
        *SCHEMA_FACTS,
        PlacementDropped("dc1:3"),
        FeaturesEnabled(("a", "b")),
        ServiceChanged(Service(service_id="c/1", supported_features=("x",), release_version="1")),
        ServiceForgotten("c/1"),
        RequestForgotten("r", 7, 2**40),
        TransitionPlanned("t", "dc1:3", plan),
        TransitionUnplanned("t", "dc1:3"),
        TransitionMarked("t", "why", ("r",)),
        BarrierRelaxed(7, BarrierLevel.ONE, ("a", "b"), unsafe=True),
        SettingChanged("key", "x", unsafe=True),
        VersionsChanged(Versions(version=8, relaxed_to="ONE", let_through="QUORUM")),
        Part("id", 2, (SettingChanged("key", "x"), TransitionPlanned("t", "dc1:3", plan))),
        PartsCommitted("id", 3),
        CdcGenerationForgotten("g"),
        TabletRepaired("t", 3, 4, 50),
        RepairsResized("t", 8),
        RepairsForgotten("t"),
        TabletRepaired("t", 3, 4, 50, restricted=True),
        RepairsForgotten("t", restricted=True),
        RepairTimes("t", 0, 4, bytes(32), restricted=True),
        KeyspaceChanged(_RACKED),
        RequestChanged(_RESTRICTED),
        RepairTimes("t", 0, 4, bytes(32)),
        TableSnapshotTaken(_SNAPSHOT),
        TableSnapshotDeleted("s"),
        TableRestoreBegun("r", "t", "s", 4),
        TabletRestored("r", 3, 4, 50),
        TableRestoreResized("r", 8),
        TableRestoreEnded("r"),
        RestoredTablets("r", 0, bytes(32)),
        ReplicaChanged(_REPLICA),
        ReplicaForgotten("c-1", unsafe=True),
        SnapshotAnnounced("c-1", _ANNOUNCED),
        SnapshotsForgotten("c-1", (7, 9)),
        SnapshotAsked(7),
        LogTruncated(
            epoch=7,
            offset=9,
            log_id="0" * 32,
            hash="1" * 64,
            members=("c-1", "c-2"),
            lost_readers=("spark",),
        ),
        ReaderChanged(LogReader(reader_id="spark", epoch=7, moved_ms=2**40)),
        ReaderForgotten("spark"),
        ReplicaDiverged(replica_id="c-1", epoch=7, folder_id="f", times=2),
        TrimProposed(replica_id="c-1", epoch=7, state_id="0" * 32, at_ms=2**40),
        TrimAgreed(replica_id="c-1", epoch=7, hash="1" * 64, store="s3://bucket"),
        ArchiveTrimmed(
            epoch=7,
            state_id="0" * 32,
            hash="1" * 64,
            members=("c-1", "c-2"),
            stores=("s3://bucket",),
            lost_readers=("spark",),
        ),
        RequestChanged(_RECONFIGURES),
        refusal(
            Envelope(request_id="r", command=Leave("n1"), actor="ada"),
            b"0" * 16,
            Rejection("no", "No.", "Ask again.", {"why": "so"}),
        ),
        DecidedGeneration(1, 2, 3, bytes(range(8))),
        DecidedRequests(1, 2, {"r": 3}),
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
    """Return one of each command, with no field at its default."""
    special = {
        Join: Join(
            node_id="n",
            cluster="c",
            address="http://n",
            dc="d",
            rack="r",
            num_tokens=3,
            initial_tokens=(-(2**63) + 1, 0, 2**63 - 1),
            supported_features=("x",),
            release_version="1.2",
            partitioner="p",
            host_id="h",
        ),
        AnnounceNode: AnnounceNode(
            node_id="n", address="a", supported_features=("x",), release_version="1", host_id="h"
        ),
        AnnounceService: AnnounceService(
            service_id="coordinator/c-1", supported_features=("x",), release_version="1"
        ),
        Replace: Replace(
            node_id="n",
            replaced_id="m",
            cluster="c",
            address="http://n",
            dc="d",
            rack="r",
            ignore_nodes=("o",),
            force=True,
            supported_features=("x",),
            release_version="1.2",
            partitioner="p",
            host_id="h",
        ),
        Remove: Remove(node_id="n", ignore_nodes=("o",), force=True),
        Exclude: Exclude(("n", "m")),
        CreateKeyspace: CreateKeyspace("k", {"dc1": 3, "dc2": 1}, tablets=True, initial_tablets=8),
        CreateTable: CreateTable("k.t", _OPTIONS),
        AlterTable: AlterTable("k.t", _OPTIONS),
        AlterSchema: AlterSchema(CHANGES, 7),
        MoveTablets: MoveTablets((TabletMove(table="k.t", tablet=3, from_node="a", to_node="b"),)),
        RepairTablets: RepairTablets((TabletRepair(table="k.t", tablet=3, of=4),)),
        RestoreTablets: RestoreTablets((TabletRestore(table="k.t", tablet=3, of=4),)),
        KeyspaceRfChange: KeyspaceRfChange("k", {"dc1": 1}),
        EnableFeatures: EnableFeatures(("a", "b")),
        ClaimCoordinator: ClaimCoordinator("me", 2**40),
        Advance: Advance(
            term=3,
            version=4,
            moves=(Move("t", TransitionState.WRITE_BOTH_READ_OLD, "s", wrote=(_PART,)),),
            open=(("a", "b"), ("c",)),
            fence=True,
        ),
        Rollback: Rollback(3, "t", "why", ("a",)),
    }
    plain: dict[object, Any] = {
        str: "text",
        bytes: b"bytes",
        int: 12,
        bool: True,
        tuple[str, ...]: ("a", "b"),
        tuple[int, ...]: (-5, 2**60),
        RequestStatus: RequestStatus.PENDING,
        BarrierLevel: BarrierLevel.QUORUM,
        CommitMode: CommitMode.SINGLE_USER,
    }
    made = [
        special.get(kind)
        or kind(**{field.name: plain[field.type] for field in msgspec.structs.fields(kind)})
        for kind in Command.__subclasses__()
    ]
    return cast("list[commands.AnyCommand]", made)


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
    order = Order(node_id="n", term=1, index=2, kind=OrderKind.STREAM, epoch=3, session="s")
    assert codec.decode_order(codec.encode_order(order)) == order
    report = Report(
        node_id="n",
        term=1,
        index=2,
        kind=OrderKind.CLEANUP,
        session="s",
        request_id="r",
        status=ReportStatus.FAILED,
        error="disk full",
    )
    assert codec.decode_report(codec.encode_report(report)) == report
    ack = Ack(
        node_id="n",
        boot_id="b",
        sequence=1,
        epoch=2,
        version=3,
        fence_version=3,
        oldest_version_in_use=2,
        sessions_in_use=("s",),
        host_id="h",
    )
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
    from io import BytesIO

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
