"""The cluster file: errors name the path of the field, and its schema is generated from the types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from stele.cli.main import run
from stele.domain.json_documents import JsonDocumentError
from stele.domain.planner.cluster import read_cluster
from stele.domain.planner.offline import schema

REPOSITORY = Path(__file__).parents[3]
EXAMPLE = REPOSITORY / "docs/examples/three_racks.json"
SCHEMA = REPOSITORY / "docs/schemas/balancer.json"
Steps = tuple[str | int, ...]


def changed(steps: Steps, value: object) -> bytes:
    """Return the example with another value at one path."""
    found: Any = msgspec.json.decode(EXAMPLE.read_bytes())
    at = found
    for step in steps[:-1]:
        at = at[step]
    at[steps[-1]] = value
    return msgspec.json.encode(found)


TABLET: Steps = ("tables", 0, "tablets", 3)
OTHER = {"keyspace": "library", "name": "authors", "replication_factor": 1, "tablets": []}


@pytest.mark.parametrize(
    ("steps", "value", "path", "words"),
    [
        (("nodes", 1, "shards"), 0, "nodes[1].shards", ">= 1"),
        (("nodes", 2, "state"), "gone", "nodes[2].state", "gone"),
        (("nodes", 2, "colour"), "red", "nodes[2]", "colour"),
        (("nodes", 2, "id"), "n1", "nodes[2].id", "another node 'n1'"),
        (("tables", 0, "name"), None, "tables[0].name", "str"),
        ((*TABLET, "size_bytes"), -1, "tables[0].tablets[3].size_bytes", ">= 0"),
        ((*TABLET, "id"), 0, "tables[0].tablets[3].id", "another tablet 0"),
        ((*TABLET, "replicas"), [], "tables[0].tablets[3].replicas", "at least one"),
        ((*TABLET, "replicas", 1), ["n9", 0], "tables[0].tablets[3].replicas[1]", "no node 'n9'"),
        ((*TABLET, "replicas", 1), ["n2", 2], "tables[0].tablets[3].replicas[1]", "no shard 2"),
        ((*TABLET, "replicas", 1), ["n1", 0], "tables[0].tablets[3].replicas[1]", "already"),
        ((*TABLET, "replicas", 2), ["n2"], "tables[0].tablets[3].replicas[2]", "length 2"),
        ((*TABLET, "replicas", 2), ["n2", "0"], "tables[0].tablets[3].replicas[2][1]", "int"),
        (("tables", 0, "replication_factor"), 2, "tables[0].tablets[0].replicas", "factor is 2"),
        (("tables", 0, "colocated_with"), "a.b", "tables[0].colocated_with", "no table a.b"),
        (("tables",), [OTHER, OTHER], "tables[1].name", "another table library.authors"),
        (("options", "size_threshold"), 1, "options.size_threshold", "< 1"),
        (("options", "balance_by"), "luck", "options.balance_by", "luck"),
    ],
)
def test_invalid_value_is_reported_with_its_path(
    steps: Steps, value: object, path: str, words: str
) -> None:
    with pytest.raises(JsonDocumentError) as raised:
        read_cluster(changed(steps, value))
    assert raised.value.path == path
    assert words in str(raised.value)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'"\xff"', b"[" * 100_000])
def test_file_that_is_no_cluster_description_is_refused(raw: bytes) -> None:
    with pytest.raises(JsonDocumentError):
        read_cluster(raw)


def test_invalid_file_is_a_usage_error_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cluster.json"
    file.write_bytes(changed((*TABLET, "replicas", 1), ["n9", 0]))
    assert run(["plan", "--file", str(file)]) == 2
    assert "tables[0].tablets[3].replicas[1]: there is no node 'n9'" in capsys.readouterr().err
    assert run(["plan", "--file", str(tmp_path / "none.json")]) == 2
    assert run(["plan"]) == 2


def test_json_output_matches_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--file", str(EXAMPLE), "--json"]) == 0
    answer = msgspec.json.decode(capsys.readouterr().out)
    assert answer["moves"][0] == {
        "keyspace": "library",
        "table": "books",
        "tablet": 1,
        "from": ["n5", 1],
        "to": ["n2", 1],
        "kind": "migration",
        "reason": "n5 is draining",
    }
    known = msgspec.json.decode(schema())
    assert set(answer) == set(known["$defs"]["OfflinePlan"]["required"])


def test_unmovable_replicas_make_the_command_fail(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    file.write_bytes(changed(("nodes", 1, "state"), "draining"))
    assert run(["plan", "--file", str(file)]) == 1


def test_published_schema_is_generated_from_the_types() -> None:
    """``python -m tests.domain.planner.test_file`` writes it."""
    assert SCHEMA.read_bytes() == schema()


if __name__ == "__main__":
    SCHEMA.write_bytes(schema())
