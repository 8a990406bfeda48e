"""``stele import``: from a file, and over CQL with the token map of the driver and a fake session."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from cassandra import InvalidRequest
from cassandra.connection import DefaultEndPoint
from cassandra.metadata import (
    ColumnMetadata,
    KeyspaceMetadata,
    Metadata,
    TableMetadataV3,
    UserType,
)
from cassandra.policies import SimpleConvictionPolicy
from cassandra.pool import Host

from stele.cli import dumps, legacy_driver
from stele.cli.errors import CliError
from stele.cli.legacy_driver import _host_and_port, _SystemTables
from stele.domain.legacy import LegacyCluster, encode_description, import_cluster
from stele.domain.snapshot import state_hash
from tests.cli.conftest import Stele
from tests.domain.legacy.samples import EXAMPLE, example, with_node

LOCAL_NODE = "127.0.7.1"
Rows = list[dict[str, Any]]


def test_description_file_is_imported_as_a_dump(stele: Stele, tmp_path: Path) -> None:
    output = tmp_path / "shop.json"
    ran = stele("import", "read", f"--file={EXAMPLE}", f"--output={output}")
    assert (ran.exit_code, ran.err) == (0, "")
    assert "cluster Shop Prod: 6 nodes in east, south, west, 24 tokens" in ran.out
    assert "keyspace orders: 24 ranges compared, no difference" in ran.out
    document = msgspec.json.decode(output.read_bytes())
    image = dumps.sound(output).state
    table = image.schema.table_named("orders.customers")
    assert table is not None
    columns = [column.name for column in image.schema.schemas[table.table_id].columns]
    assert columns == ["id", "home", "name"]
    assert document["hash"] == state_hash(image)
    assert document["cluster_id"] == image.cluster_id
    assert [path.name for path in tmp_path.iterdir()] == ["shop.json"]
    again = stele.exits(2, "import", "read", f"--file={EXAMPLE}", f"--output={output}")
    assert "is there already" in again.err


def test_all_problems_are_printed_and_no_file_is_written(stele: Stele, tmp_path: Path) -> None:
    output, file = tmp_path / "shop.json", tmp_path / "down.json"
    file.write_bytes(encode_description(with_node("127.0.7.5", status="DN", schema_version="")))
    ran = stele.exits(1, "import", "read", f"--file={file}", f"--output={output}")
    assert "node 127.0.7.5: it is down (DN)." in ran.out
    assert "2 problems; no file is written" in ran.out
    assert not output.exists()
    ran = stele.ok("import", "read", f"--file={file}", f"--output={output}", "--ignore=127.0.7.5")


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (
            "CREATE TABLE orders.a (id uuid PRIMARY KEY); CREATE TABLE orders.b (id a PRIMARY KEY)",
            "schema: Change 2 of 2 (create_table orders.b): ",
        ),
        (
            "CREATE KEYSPACE orders\n WITH replication = {'class': 'SimpleStrategy'};\n"
            "CREATE TRIGGER audit ON orders.items USING 'Audit'",
            "schema of orders: line 3, column 8: found 'TRIGGER'",
        ),
        (
            "/*\nWarning: Table orders.wide omitted because it has constructs not compatible\n*/",
            "schema of orders: Table orders.wide omitted",
        ),
        (
            "CREATE TABLE audit.log (id uuid PRIMARY KEY)",
            "schema of orders: it has 'audit.log', which belongs to another keyspace",
        ),
        (
            "CREATE TABLE orders.items (id uuid PRIMARY KEY) WITH tombstone_gc = {'mode': 'repair'}",
            "schema of orders.items: Tables have no parameter 'tombstone_gc'",
        ),
    ],
)
def test_unsupported_schema_is_reported_and_no_file_is_written(
    stele: Stele, tmp_path: Path, schema: str, reason: str
) -> None:
    output, file = tmp_path / "shop.json", tmp_path / "cluster.json"
    file.write_bytes(encode_description(with_schema("orders", f"{schema};")))
    arguments = ("import", "read", f"--file={file}", f"--output={output}")
    ran = stele.exits(1, *arguments)
    assert reason in ran.out
    assert "1 problem; no file is written" in ran.out
    assert not output.exists()
    assert stele(*arguments, "--without=orders").exit_code == 0


def with_schema(name: str, schema: str) -> LegacyCluster:
    legacy = example()
    keyspaces = (
        msgspec.structs.replace(each, schema=schema) if each.name == name else each
        for each in legacy.keyspaces
    )
    return msgspec.structs.replace(legacy, keyspaces=tuple(keyspaces))


def test_invalid_file_is_refused_with_the_field_and_a_hint(stele: Stele, tmp_path: Path) -> None:
    file, output = tmp_path / "cluster.json", f"--output={tmp_path}/out"
    file.write_bytes(EXAMPLE.read_bytes().replace(b'"status":"UN"', b'"status":"up"', 1))
    ran = stele.exits(2, "import", "read", f"--file={file}", output)
    assert f"{file}: nodes[0].status: Expected" in ran.err
    assert "docs/schemas/legacy_cluster.json defines the file" in ran.err
    ran = stele.exits(2, "import", "read", f"--file={tmp_path}/none.json", output)
    assert "none.json cannot be read: No such file or directory." in ran.err


def test_conflicting_options_are_refused(stele: Stele, tmp_path: Path) -> None:
    output = f"--output={tmp_path}/out"
    for options in ([], ["--contact=127.0.0.1:1", f"--file={EXAMPLE}"]):
        ran = stele.exits(2, "import", "read", *options, output)
        assert "Either --contact or --file is needed." in ran.err
    ran = stele.exits(2, "import", "describe", "127.0.0.1:1", "--username=stele", output)
    assert "--username and --password-file are given together" in ran.err


@pytest.mark.parametrize(
    "command", [["read", "--contact=127.0.0.1:1"], ["describe", "127.0.0.1:1"]]
)
def test_unreachable_cql_node_is_reported(stele: Stele, tmp_path: Path, command: list[str]) -> None:
    ran = stele.exits(3, "import", *command, "--timeout=2", f"--output={tmp_path}/out")
    assert "Cannot connect to 127.0.0.1:1 over CQL" in ran.err


@pytest.mark.parametrize(
    ("contact", "place"),
    [
        ("node", ("node", 9042)),
        ("node:9142", ("node", 9142)),
        ("fd00::1", ("fd00::1", 9042)),
        ("[fd00::1]", ("fd00::1", 9042)),
        ("[fd00::1]:9142", ("fd00::1", 9142)),
    ],
)
def test_contact_is_a_host_with_an_optional_port(contact: str, place: tuple[str, int]) -> None:
    assert _host_and_port(contact) == place


class _Session:
    """Answers from tables, and rejects queries of other tables as a server does."""

    def __init__(self, tables: dict[str, Rows]) -> None:
        self.tables = tables

    def execute(self, query: str, host: object) -> Rows:
        name = query.split(" FROM ")[1]
        if name not in self.tables:
            raise InvalidRequest(f"table {name} does not exist")
        return self.tables[name]


def peer_rows() -> Rows:
    """Return the rows of all nodes, as in system.peers_v2."""
    return [
        {
            "peer": node.address,
            "host_id": node.host_id,
            "data_center": node.dc,
            "rack": node.rack,
            "release_version": node.release,
            "schema_version": node.schema_version,
            "tokens": [*map(str, node.tokens)],
        }
        for node in example().nodes
    ]


def reader(*, up: bool = True, **tables: Rows) -> _SystemTables:
    """Return a reader at the node 127.0.7.1. ``tables`` adds tables, with ``__`` for the dot in names."""
    rows = peer_rows()
    local = next(row for row in rows if row["peer"] == LOCAL_NODE)
    peers = [row for row in rows if row is not local]
    local = {"broadcast_address": local.pop("peer"), **local, "cluster_name": "Shop Prod"}
    local["partitioner"] = "org.apache.cassandra.dht.Murmur3Partitioner"
    package = "org.apache.cassandra.locator."
    every = {
        "system.local": [local],
        "system.peers_v2": peers,
        "system_schema.keyspaces": [
            {
                "keyspace_name": each.name,
                "replication": {"class": package + each.strategy, **each.options},
            }
            for each in example().keyspaces
        ],
        **{name.replace("__", "."): found for name, found in tables.items()},
    }
    metadata, ring = Metadata(), {}
    for node in example().nodes:
        host = Host(DefaultEndPoint(node.address), SimpleConvictionPolicy, host_id=node.host_id)
        host.set_location_info(node.dc, node.rack)
        host.is_up = up or node.address != LOCAL_NODE
        metadata.add_or_return_host(host)
        ring[host] = [*map(str, node.tokens)]
    for each in example().keyspaces:
        metadata.keyspaces[each.name] = KeyspaceMetadata(
            each.name, True, each.strategy, {**each.options}
        )
    metadata.rebuild_token_map("org.apache.cassandra.dht.Murmur3Partitioner", ring)
    cluster = SimpleNamespace(metadata=metadata, get_control_connection_host=lambda: None)
    return _SystemTables(cast(Any, cluster), cast(Any, _Session(every)))


def gossip(state: str = "NORMAL,1") -> Rows:
    return [
        {"host_id": node.host_id, "status": None, "status_with_port": state}
        for node in example().nodes
    ]


def test_descriptions_from_cql_and_nodetool_import_the_same_state() -> None:
    described = reader(system_views__gossip_info=gossip()).description()
    assert described.nodes[0].address == LOCAL_NODE
    replicas = sorted_replicas(described)
    assert replicas == sorted_replicas(example())
    theirs, ours = import_cluster(described), import_cluster(example())
    assert (theirs.problems, theirs.differences) == ((), ())
    assert theirs.image is not None
    assert ours.image is not None
    assert state_hash(theirs.image) == state_hash(ours.image)


def sorted_replicas(legacy: LegacyCluster) -> dict[tuple[str, int], list[str]]:
    return {
        (keyspace.name, range_.end): sorted(range_.replicas)
        for keyspace in legacy.keyspaces
        for range_ in keyspace.ranges
    }


def test_node_that_is_not_known_as_up_and_normal_prevents_the_import(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(legacy_driver, "UP_WITHIN_S", 0.0)

    def reasons(some: _SystemTables) -> str:
        return "\n".join(map(str, import_cluster(some.description()).problems))

    assert "not known (U?)" in reasons(reader()), "a release without the table"
    assert "not known (?N)" in reasons(reader(up=False, system_views__gossip_info=gossip()))
    leaving = gossip("LEAVING,1")
    assert "it is leaving (UL)" in reasons(reader(system_views__gossip_info=leaving))
    scylla = [{"host_id": n.host_id, "status": "NORMAL"} for n in example().nodes]
    assert reasons(reader(system__cluster_status=scylla)) == ""
    new = [*gossip(), {"host_id": "cecede93", "status": "BOOT,1", "status_with_port": None}]
    assert "node cecede93: it is joining (?J)" in reasons(reader(system_views__gossip_info=new))


def test_incomplete_peers_row_is_an_error_with_the_node() -> None:
    left = {"peer": "127.0.7.9", "host_id": "cecede93", "data_center": "east", "rack": None}
    peers = [row for row in peer_rows() if row["peer"] != LOCAL_NODE]
    with pytest.raises(CliError, match=r"The row of 127\.0\.7\.9 in the peers table has no rack"):
        reader(system__peers_v2=[*peers, left]).description()


def test_schema_over_cql_is_that_of_the_driver_without_the_keyspace(
    stele: Stele, tmp_path: Path
) -> None:
    some = reader(system_views__gossip_info=gossip())
    orders = some._cluster.metadata.keyspaces["orders"]
    orders.user_types["person"] = UserType("orders", "person", ["name"], ["text"])
    table = TableMetadataV3("orders", "items", options={"comment": "it's", "cdc": False})
    key, singer = ColumnMetadata(table, "id", "uuid"), ColumnMetadata(table, "by", "frozen<person>")
    table.columns = {"id": key, "by": singer}
    table.partition_key = [key]
    orders.tables["items"] = table
    described = some.description()
    (schema,) = (each.schema for each in described.keyspaces if each.name == "orders")
    assert "CREATE KEYSPACE" not in schema
    file, output = tmp_path / "cluster.json", tmp_path / "shop.json"
    file.write_bytes(encode_description(described))
    ran = stele.ok("import", "read", f"--file={file}", f"--output={output}")
    assert "2 objects of its schema" in ran.out
    image = dumps.sound(output).state
    assert image.schema.type_named("orders.person")
    assert image.schema.table_named("orders.items")


def test_keyspace_with_tablets_is_recognized_over_cql() -> None:
    tablets: Rows = [
        {"keyspace_name": "orders", "initial_tablets": 0},
        {"keyspace_name": "audit", "initial_tablets": None},
    ]
    some = reader(system_views__gossip_info=gossip(), system_schema__scylla_keyspaces=tablets)
    (only,) = import_cluster(some.description()).problems
    assert (only.where, "tablets" in only.what) == ("keyspace orders", True)


def test_unwritable_dump_is_an_error(tmp_path: Path) -> None:
    image = import_cluster(example()).image
    assert image is not None
    with pytest.raises(CliError, match="cannot be written"):
        dumps.write(tmp_path / "no" / "such" / "folder", image)
