"""``stele import read``: from files, and over CQL, with the real driver's map and a session that is none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from cassandra import InvalidRequest
from cassandra.connection import DefaultEndPoint
from cassandra.metadata import KeyspaceMetadata, Metadata
from cassandra.policies import SimpleConvictionPolicy
from cassandra.pool import Host

from stele.cli import dumps, legacy_driver
from stele.cli.errors import CliError
from stele.cli.legacy_driver import _place, _Reader
from stele.domain.legacy.importing import imported
from stele.domain.legacy.texts.status import parse_status
from stele.domain.snapshot import state_hash
from tests.cli.conftest import Stele
from tests.domain.legacy.samples import ALIKE, FOLDER, KEYSPACES, joined, sample


def files(kind: str = "") -> list[str]:
    described = (f"{k}={FOLDER}/describering/{ALIKE.get(k, k)}.txt" for k in KEYSPACES)
    suffix = f"-{kind}" if kind else ""
    found = [f"--{name}={FOLDER}/{name}{suffix}.txt" for name in ("status", "ring")]
    found.append(f"--describecluster={FOLDER}/describecluster{suffix}.txt")
    return [*found, *(f"--describering={each}" for each in described)]


def test_files_become_a_dump_that_holds_the_state(stele: Stele, tmp_path: Path) -> None:
    output = tmp_path / "shop.json"
    ran = stele("import", "read", *files(), f"--output={output}")
    assert (ran.exit_code, ran.err) == (0, "")
    assert "cluster Shop Prod: 6 nodes in east, south, west, 24 tokens" in ran.out
    assert "keyspace orders: 24 ranges of describering compared, no difference" in ran.out
    document = msgspec.json.decode(output.read_bytes())
    image = dumps.sound(output).image
    assert image is not None
    assert document["hash"] == state_hash(image)
    assert document["cluster_id"] == image.cluster_id
    assert [path.name for path in tmp_path.iterdir()] == ["shop.json"]
    again = stele("import", "read", *files(), f"--output={output}")
    assert again.exit_code == 2
    assert "is there already" in again.err


def test_what_stands_against_it_is_told_and_nothing_is_written(
    stele: Stele, tmp_path: Path
) -> None:
    output = tmp_path / "shop.json"
    ran = stele("import", "read", *files("down"), f"--output={output}")
    assert ran.exit_code == 1
    assert "node 127.0.7.5: it is down (DN)." in ran.out
    assert "2 things stand against the import; nothing is written" in ran.out
    assert not output.exists()
    named = stele("import", "read", *files("down"), f"--output={output}", "--ignore=127.0.7.5")
    assert named.exit_code == 0


def test_a_file_that_is_not_understood_is_named_with_its_line(stele: Stele, tmp_path: Path) -> None:
    ring = tmp_path / "ring"
    ring.write_text(sample("ring.txt").replace("Up ", "Upp"))
    ran = stele("import", "read", *files(), f"--ring={ring}", f"--output={tmp_path}/out")
    assert ran.exit_code != 0
    other = [each for each in files() if not each.startswith("--ring")]
    ran = stele("import", "read", *other, f"--ring={ring}", f"--output={tmp_path}/out")
    assert ran.exit_code == 1
    assert f"{ring}, line 6: " in ran.err
    ran = stele("import", "read", *other, f"--output={tmp_path}/out")
    assert ran.exit_code == 2
    assert "--describecluster are all needed" in ran.err
    ran = stele(
        "import", "read", *other, "--describering=x", f"--ring={FOLDER}/ring.txt", "--output=x"
    )
    assert "names no keyspace" in ran.err


def test_a_node_that_does_not_answer_is_given_up(stele: Stele, tmp_path: Path) -> None:
    to = f"--output={tmp_path}/out"
    ran = stele("import", "read", "--contact=127.0.0.1:1", "--timeout=2", to)
    assert ran.exit_code == 3
    assert "No node answers CQL at 127.0.0.1:1" in ran.err
    ran = stele("import", "read", "--contact=127.0.0.1:1", f"--ring={FOLDER}/ring.txt", to)
    assert ran.exit_code == 2


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
def test_a_contact_is_a_host_and_perhaps_a_port(contact: str, place: tuple[str, int]) -> None:
    assert _place(contact) == place


class _Session:
    """Answers from tables, and refuses the others as a server does that has no such table."""

    def __init__(self, tables: dict[str, list[dict[str, Any]]]) -> None:
        self.tables = tables

    def execute(self, query: str, host: object) -> list[dict[str, Any]]:
        name = query.split(" FROM ")[1]
        if name not in self.tables:
            raise InvalidRequest(f"table {name} does not exist")
        return self.tables[name]


def rows(name: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in sample(name).splitlines()]


def reader(*, up: bool = True, status: str = "", **tables: list[dict[str, Any]]) -> _Reader:
    """Of the sample's node 3 with the driver's own map of the ring; ``tables`` by name with _ for the dot."""
    peers = rows("peers_v2.json")
    mine = joined().legacy.nodes
    lacking = next(n for n in mine if n.host_id not in {peer["host_id"] for peer in peers})
    local = {
        "broadcast_address": lacking.address,
        "host_id": lacking.host_id,
        "data_center": lacking.dc,
        "rack": lacking.rack,
        "release_version": "5.0.2",
        "schema_version": peers[0]["schema_version"],
        "tokens": [*map(str, lacking.tokens)],
        "cluster_name": "Shop Prod",
        "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
    }
    every = {
        "system.local": [local],
        "system.peers_v2": peers,
        "system_schema.keyspaces": rows("keyspaces.json"),
        **{name.replace("__", "."): found for name, found in tables.items()},
    }
    metadata, ring = Metadata(), {}
    for node in mine:
        host = Host(DefaultEndPoint(node.address), SimpleConvictionPolicy, host_id=node.host_id)
        host.set_location_info(node.dc, node.rack)
        host.is_up = up or node is not lacking
        metadata.add_or_return_host(host)
        ring[host] = [*map(str, node.tokens)]
    for row in every["system_schema.keyspaces"]:
        options = {**row["replication"]}
        kind = options.pop("class")
        metadata.keyspaces[row["keyspace_name"]] = KeyspaceMetadata(
            row["keyspace_name"], True, kind, options
        )
    metadata.rebuild_token_map("org.apache.cassandra.dht.Murmur3Partitioner", ring)
    cluster = SimpleNamespace(metadata=metadata, get_control_connection_host=lambda: None)
    said = parse_status(status) if status else None
    return _Reader(cast(Any, cluster), cast(Any, _Session(every)), said)


def gossip(state: str = "NORMAL,1") -> list[dict[str, Any]]:
    return [
        {"host_id": node.host_id, "status": None, "status_with_port": state}
        for node in joined().legacy.nodes
    ]


def test_a_node_over_cql_tells_the_same_as_nodetool() -> None:
    found = imported(reader(system_views__gossip_info=gossip()).legacy())
    assert (found.problems, found.differences) == ((), ())
    assert found.compared["orders"] == 24
    theirs, ours = found.image, imported(joined().legacy).image
    assert theirs is not None
    assert ours is not None
    assert state_hash(theirs) == state_hash(ours)


def test_who_is_not_known_to_be_up_and_normal_refuses_the_import(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(legacy_driver, "UP_WITHIN_S", 0.0)

    def why(some: _Reader) -> str:
        return "\n".join(map(str, imported(some.legacy()).problems))

    assert "not known (U?)" in why(reader()), "a release without the table"
    assert "not known (?N)" in why(reader(up=False, system_views__gossip_info=gossip()))
    leaving = gossip("LEAVING,1")
    assert "it is leaving (UL)" in why(reader(system_views__gossip_info=leaving))
    scylla = [{"host_id": n.host_id, "status": "NORMAL"} for n in joined().legacy.nodes]
    assert why(reader(system__cluster_status=scylla)) == ""
    assert why(reader(up=False, status=sample("status.txt"))) == ""
    assert "it is down (DN)" in why(reader(status=sample("status-down.txt")))
    joining = why(reader(status=sample("status-joining.txt")))
    assert "it is joining (UJ)" in joining
    new = [*gossip(), {"host_id": "cecede93", "status": "BOOT,1", "status_with_port": None}]
    assert "node cecede93: it is joining (?J)" in why(reader(system_views__gossip_info=new))


def test_keyspaces_with_tablets_are_known_over_cql() -> None:
    tablets: list[dict[str, Any]] = [
        {"keyspace_name": "orders", "initial_tablets": 0},
        {"keyspace_name": "audit", "initial_tablets": None},
    ]
    some = reader(system_views__gossip_info=gossip(), system_schema__scylla_keyspaces=tablets)
    found = imported(some.legacy())
    (only,) = found.problems
    assert (only.where, "tablets" in only.what) == ("keyspace orders", True)


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    image = imported(joined().legacy).image
    assert image is not None
    with pytest.raises(CliError, match="cannot be written"):
        dumps.write(tmp_path / "no" / "such" / "folder", image)
