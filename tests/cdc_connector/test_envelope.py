"""Change records in the envelope format of Debezium."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from stele.cdc_connector.envelope import record_of
from stele.runtime.answers.node import ChangeView

TIME_US = 1_700_000_000_123_456


def decoded(change: ChangeView, *, preimage: bool = True) -> tuple[Any, dict[str, Any]]:
    key, value = record_of(change, "stele", "library.books", 5, preimage=preimage)
    return json.loads(key), json.loads(value)


def base(content: bytes) -> str:
    return base64.b64encode(content).decode()


def test_record_has_the_rows_the_source_and_the_timestamps() -> None:
    key, value = decoded(ChangeView(TIME_US, b"ada", "put", b"new", b"old"))
    assert key == {"key": base(b"ada")}
    assert value["before"] == {"key": base(b"ada"), "value": base(b"old")}
    assert value["after"] == {"key": base(b"ada"), "value": base(b"new")}
    assert (value["op"], value["ts_ms"]) == ("u", 5)
    source = value["source"]
    assert (source["connector"], source["name"], source["snapshot"]) == ("stele", "stele", "false")
    assert (source["keyspace_name"], source["table_name"]) == ("library", "books")
    assert (source["ts_ms"], source["ts_us"]) == (TIME_US // 1000, TIME_US)


@pytest.mark.parametrize(
    ("change", "preimage", "op"),
    [
        (ChangeView(TIME_US, b"k", "put", b"v", None), True, "c"),
        (ChangeView(TIME_US, b"k", "put", b"v", None), False, "u"),
        (ChangeView(TIME_US, b"k", "put", b"v", b"u"), True, "u"),
        (ChangeView(TIME_US, b"k", "delete", None, b"u"), True, "d"),
        (ChangeView(TIME_US, b"k", "delete", None, None), False, "d"),
    ],
)
def test_operation_is_create_only_if_the_row_is_known_to_be_new(
    change: ChangeView, preimage: bool, op: str
) -> None:
    _, value = decoded(change, preimage=preimage)
    assert value["op"] == op
    assert (value["after"] is None) is (op == "d")
