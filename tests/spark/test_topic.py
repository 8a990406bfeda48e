"""The compacted topic with several writers: the newest one fences all others."""

from __future__ import annotations

import io
import json
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import fastavro
import httpx
import pytest
from confluent_kafka import Producer

from stele.domain.ring.ranges import MIN_TOKEN, RangeReplicas
from stele.log.brokers import Brokers
from stele.log.ends import read_topic
from stele.log.schemas import load_schemas, schema_folder
from stele.placements.fold import CurrentRow, HeldRows
from stele.placements.topic import (
    PLACEMENTS,
    POLL_EVERY,
    Marker,
    TopicWriter,
    WriterFenced,
    framing_of,
)
from tests.spark.checks import settled

pytestmark = pytest.mark.broker

LOW = RangeReplicas(MIN_TOKEN, 7, ("n2",), ("n2",))
HIGH = RangeReplicas(7, MIN_TOKEN, ("n1",), ("n1",), 3, 2)
WHOLE = RangeReplicas(MIN_TOKEN, MIN_TOKEN, ("n1",), ("n1",))
TWO = {MIN_TOKEN: CurrentRow(LOW, 1), 7: CurrentRow(HIGH, 1)}
BOTH = {("p", MIN_TOKEN), ("p", 7)}


def marker(epoch: int) -> Marker:
    return Marker(epoch, epoch.to_bytes(16, "big").hex())


def ranges(kafka: str, cluster: str, epoch: int) -> tuple[int, dict[str, list[RangeReplicas]]]:
    view = settled(kafka, cluster, epoch)
    found: dict[str, list[RangeReplicas]] = {}
    for (name, _), told in sorted(view.rows.items()):
        found.setdefault(name, []).append(told.row)
    return view.marker.epoch, found


def test_removed_row_gets_a_tombstone_and_the_marker_is_the_epoch(kafka: str, topics: str) -> None:
    writer = TopicWriter(Brokers(kafka), topics, PLACEMENTS)
    assert writer.publish(marker(1), {"p": TWO}, BOTH)
    assert ranges(kafka, topics, 1) == (1, {"p": [LOW, HIGH]})
    assert writer.publish(marker(2), {"p": {MIN_TOKEN: CurrentRow(WHOLE, 2)}}, BOTH)
    assert ranges(kafka, topics, 2) == (2, {"p": [WHOLE]})
    assert not writer.publish(marker(2), {"p": TWO}, BOTH)
    assert not writer.publish(marker(1), {"p": TWO}, BOTH)
    assert ranges(kafka, topics, 2) == (2, {"p": [WHOLE]})


def test_older_writer_cannot_write_after_the_marker_of_a_newer_one(kafka: str, topics: str) -> None:
    slow = TopicWriter(Brokers(kafka), topics, PLACEMENTS)
    slow.publish(marker(1), {"p": TWO}, BOTH)
    with pytest.raises(WriterFenced), slow._transaction():
        slow._produce(f"{topics}/p/7", b"the row of a writer that stops in the middle")
        slow._producer.flush(10)
        fast = TopicWriter(Brokers(kafka), topics, PLACEMENTS)
        assert fast.publish(marker(5), {"p": {MIN_TOKEN: CurrentRow(WHOLE, 5)}}, BOTH)
    with pytest.raises(WriterFenced):
        TopicWriter(Brokers(kafka), topics, PLACEMENTS)
        fast.publish(marker(6), {"p": TWO}, BOTH)
    assert ranges(kafka, topics, 5) == (5, {"p": [WHOLE]})

    again = TopicWriter(Brokers(kafka), topics, PLACEMENTS)
    assert not again.publish(marker(4), {"p": TWO}, BOTH)
    assert not again.publish(marker(5), {"p": {MIN_TOKEN: CurrentRow(WHOLE, 5)}}, BOTH)
    assert ranges(kafka, topics, 5) == (5, {"p": [WHOLE]})


def test_writer_is_fenced_in_the_middle_of_its_rows(kafka: str, topics: str) -> None:
    slow = TopicWriter(Brokers(kafka), topics, PLACEMENTS)
    TopicWriter(Brokers(kafka), topics, PLACEMENTS)
    starts = range(3 * POLL_EVERY)
    rows = {
        start: CurrentRow(RangeReplicas(start, start + 1, ("n1",), ("n1",)), 1) for start in starts
    }
    with pytest.raises(
        WriterFenced
    ):  # by the first thousand rows, which are flushed before the others
        slow.publish(marker(1), {"p": rows}, {("p", start) for start in starts})


def test_alternating_writers_leave_the_newest_rows(kafka: str, topics: str) -> None:
    rows: HeldRows = {}
    for epoch in range(1, 9):
        writer = TopicWriter(Brokers(kafka), topics, PLACEMENTS)  # a fenced writer opens again
        low = CurrentRow(RangeReplicas(MIN_TOKEN, 7, (f"n{epoch}",), (f"n{epoch}",)), epoch)
        rows = {MIN_TOKEN: low, 7: CurrentRow(HIGH, 1)}
        assert writer.publish(marker(epoch), {"p": rows}, {("p", MIN_TOKEN)})
        assert not writer.publish(marker(epoch - 1), {"p": TWO}, BOTH)
    assert ranges(kafka, topics, 8) == (8, {"p": [rows[MIN_TOKEN].row, HIGH]})


def test_first_publication_repairs_a_topic_that_lost_rows(kafka: str, topics: str) -> None:
    writer = TopicWriter(Brokers(kafka), topics, PLACEMENTS)
    writer.publish(marker(3), {"q": TWO}, set())
    again = TopicWriter(Brokers(kafka), topics, PLACEMENTS)
    assert again.publish(marker(3), {"p": TWO}, set())
    assert ranges(kafka, topics, 3) == (3, {"p": [LOW, HIGH]})


def test_first_publication_replaces_json_rows_of_an_earlier_build(kafka: str, topics: str) -> None:
    old = Producer({"bootstrap.servers": kafka})
    for key in (f"p/{MIN_TOKEN}", "gone/3"):
        old.produce(f"stele.{topics}.placements", b'{"epoch": 1}', f"{topics}/{key}", partition=0)
    old.produce(f"stele.{topics}.placements", b'{"epoch": 9}', f"{topics}/epoch", partition=0)
    assert old.flush(20) == 0
    writer = TopicWriter(Brokers(kafka), topics, PLACEMENTS)
    assert writer.publish(marker(3), {"p": TWO}, set())
    view = settled(kafka, topics, 3)
    assert (set(view.rows), view.unread) == (BOTH, frozenset())
    assert {row.cluster for row in view.rows.values()} == {topics}


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"x",
        b"epoch",
        b"{c}/p/now",
        b"{c}/p/07",
        b"{c}/7",
        b"other/p/7",
        b"\xff\xfe/p/7",
        b"{c}/p/\xd9\xa7",
    ],
)
def test_records_with_foreign_keys_are_ignored(kafka: str, topics: str, key: bytes) -> None:
    writer = TopicWriter(Brokers(kafka), topics, PLACEMENTS)
    assert writer.publish(marker(1), {"p": TWO}, BOTH)
    other = Producer({"bootstrap.servers": kafka})
    for value in (b"anything", None):
        named = key.replace(b"{c}", topics.encode())
        other.produce(f"stele.{topics}.placements", value, named, partition=0)
    assert other.flush(20) == 0
    again = TopicWriter(Brokers(kafka), topics, PLACEMENTS)
    assert again.view is not None
    assert (set(again.view.rows), again.view.unread) == (BOTH, frozenset())
    assert again.publish(marker(2), {"p": {MIN_TOKEN: CurrentRow(WHOLE, 2)}}, BOTH)
    assert ranges(kafka, topics, 2) == (2, {"p": [WHOLE]})


def test_cleared_topic_accepts_a_lower_epoch(kafka: str, topics: str) -> None:
    TopicWriter(Brokers(kafka), topics, PLACEMENTS).publish(marker(9), {"p": TWO, "q": TWO}, set())
    assert TopicWriter(Brokers(kafka), topics, PLACEMENTS).clear() == 4
    assert ranges(kafka, topics, 0) == (0, {})
    writer = TopicWriter(Brokers(kafka), topics, PLACEMENTS)
    assert writer.clear() == 0
    assert writer.publish(marker(2), {"p": {MIN_TOKEN: CurrentRow(WHOLE, 2)}}, set())
    assert ranges(kafka, topics, 2) == (2, {"p": [WHOLE]})


class Registry:
    """A schema registry that returns schemas by id."""

    def __init__(self) -> None:
        files = (schema_folder() / name for name in ("placementrow.avsc", "placementsmarker.avsc"))
        self.schemas = dict(zip((70_001, 12), (file.read_text() for file in files), strict=True))
        headers = (load_schemas().headers[name] for name in ("PlacementRow", "PlacementsMarker"))
        pairs = zip(self.schemas, headers, strict=True)
        self.ids = ",".join(f"{number}={header[2:].hex()}" for number, header in pairs)

    @contextmanager
    def serving(self) -> Iterator[str]:
        schemas = self.schemas

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                number = urlsplit(self.path).path.removeprefix("/schemas/ids/")
                known = number.isdigit() and int(number) in schemas
                answer = {"schema": schemas[int(number)]} if known else {"error_code": 404}
                body = json.dumps(answer).encode()
                self.send_response(200 if known else 404)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}"
            finally:
                server.shutdown()
                thread.join()


def framed_records(kafka: str, cluster: str) -> dict[str, bytes]:
    """Return the newest framed value of each key."""
    records = read_topic(Brokers(kafka), f"stele.{cluster}.placements")
    return {key: value for key, value in records if value is not None and value[0] == 0}


def read_with(url: str, value: bytes) -> dict[str, Any]:
    """Decode the value by the schema id in the record, as a stock deserializer does, without code of Stele."""
    magic, number = struct.unpack(">bI", value[:5])
    assert magic == 0
    schema = httpx.get(f"{url}/schemas/ids/{number}", timeout=240).json()["schema"]
    body = io.BytesIO(value[5:])
    record = fastavro.schemaless_reader(body, fastavro.parse_schema(json.loads(schema)), None)
    assert isinstance(record, dict)
    assert not body.read()
    return record


def test_reader_with_a_schema_registry_decodes_rows_and_marker(kafka: str, topics: str) -> None:
    registry = Registry()
    framing = framing_of(registry.ids)
    TopicWriter(Brokers(kafka), topics, PLACEMENTS).publish(marker(1), {"p": TWO}, BOTH)
    assert TopicWriter(Brokers(kafka), topics, PLACEMENTS, framing).publish(
        marker(1), {"p": TWO}, BOTH
    )
    view = settled(kafka, topics, 1, framing)
    assert (view.marker, {row.row for row in view.rows.values()}) == (marker(1), {LOW, HIGH})
    with registry.serving() as url:
        found = {k: read_with(url, v) for k, v in framed_records(kafka, topics).items()}
    told = found.pop(f"{topics}/epoch")
    assert (told["cluster"], told["epoch"]) == (topics, 1)
    assert {key: (row["range_start"], row["read_replicas"]) for key, row in found.items()} == {
        f"{topics}/p/7": (7, ["n1"]),
        f"{topics}/p/{MIN_TOKEN}": (MIN_TOKEN, ["n2"]),
    }

    again = TopicWriter(
        Brokers(kafka), topics, PLACEMENTS
    )  # back to single-object encoding: all rows are sent again
    assert again.publish(marker(1), {"p": TWO}, BOTH)
    assert ranges(kafka, topics, 1) == (1, {"p": [LOW, HIGH]})


def test_framing_needs_a_schema_id_for_each_written_schema() -> None:
    row = load_schemas().headers["PlacementRow"][2:].hex()
    with pytest.raises(ValueError, match="no id is known of PlacementsMarker"):
        framing_of(f"7={row}")
    with pytest.raises(ValueError, match=row):
        framing_of("7=0123456789abcdef")
