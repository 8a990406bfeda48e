"""The JSON file that describes a legacy cluster: its form, its errors and its schema."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stele.domain.json_documents import JsonDocumentError, json_schema
from stele.domain.legacy import LegacyCluster, decode_description, encode_description
from tests.domain.legacy.samples import EXAMPLE, REPOSITORY, example

SCHEMA = REPOSITORY / "docs/schemas/legacy_cluster.json"
Steps = tuple[str | int, ...]


def changed(steps: Steps, value: object) -> bytes:
    """Return the example with another value at one path."""
    document: Any = msgspec.json.decode(EXAMPLE.read_bytes())
    place = document
    for step in steps[:-1]:
        place = place[step]
    place[steps[-1]] = value
    return msgspec.json.encode(document)


@pytest.mark.parametrize(
    ("steps", "value", "path", "words"),
    [
        (("format",), "stele-legacy-2", "format", "stele-legacy-1"),
        (("nodes",), [], "nodes", "length >= 1"),
        (("nodes", 2, "host_id"), "n1", "nodes[2].host_id", "regex"),
        (("nodes", 2, "status"), "UP", "nodes[2].status", "[UD?][NLJM?]"),
        (("nodes", 2, "rack"), None, "nodes[2].rack", "Expected `str`, got `null`"),
        (("nodes", 2, "shelf"), "a", "nodes[2]", "unknown field `shelf`"),
        (("nodes", 2, "tokens", 3), 2**63, "nodes[2].tokens[3]", "<= 9223372036854775807"),
        (("nodes", 2, "tokens", 3), "7", "nodes[2].tokens[3]", "Expected `int`, got `str`"),
        (("keyspaces", 1, "options", "south"), 1, "keyspaces[1].options.south", "got `int`"),
        (("keyspaces", 1, "ranges", 4), {}, "keyspaces[1].ranges[4]", "required field `start`"),
        (
            ("keyspaces", 1, "ranges", 4, "replicas", 2),
            "10.0.0.9",
            "keyspaces[1].ranges[4].replicas",
            "expected addresses of `nodes`, found '10.0.0.9'",
        ),
        (("keyspaces", 1, "name"), "audit", "keyspaces[1].name", "second 'audit'"),
    ],
)
def test_error_names_the_field_and_the_expected_value(
    steps: Steps, value: object, path: str, words: str
) -> None:
    with pytest.raises(JsonDocumentError) as raised:
        decode_description(changed(steps, value))
    assert raised.value.path == path
    assert words in str(raised.value)


def test_file_that_is_not_json_is_refused() -> None:
    with pytest.raises(JsonDocumentError, match="not valid JSON"):
        decode_description(EXAMPLE.read_bytes()[:-10])


def test_equal_clusters_have_equal_files_in_any_input_order() -> None:
    legacy = example()
    reverse = msgspec.structs.replace(
        legacy,
        nodes=legacy.nodes[::-1],
        keyspaces=tuple(
            msgspec.structs.replace(each, ranges=each.ranges[::-1])
            for each in legacy.keyspaces[::-1]
        ),
    )
    assert encode_description(legacy) == encode_description(reverse) == EXAMPLE.read_bytes()


def test_schema_file_is_generated_from_the_types() -> None:
    """``python -m tests.domain.legacy.test_description`` writes it."""
    assert SCHEMA.read_bytes() == json_schema(LegacyCluster)


if __name__ == "__main__":
    SCHEMA.write_bytes(json_schema(LegacyCluster))
