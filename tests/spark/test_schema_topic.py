"""The compacted topic of the schema: the schema of the image, with tombstones for dropped objects."""

from __future__ import annotations

from itertools import pairwise

import pytest

from stele.domain.image import Image
from stele.domain.messages import SchemaObject
from stele.log.brokers import Brokers
from stele.log.ends import read_topic
from stele.log.schemas import load_schemas
from stele.placements.schema_history import ObjectKey
from stele.placements.schema_topic import SCHEMA_TOPIC
from stele.placements.topic import Marker, TopicWriter, framing_of, has_schema_id, read_rows
from stele.runtime.answers.of_image import schema_answer
from tests.polling import wait_until
from tests.spark.checks import cql_of
from tests.spark.histories import images, random_log

LOG = random_log(1)


def marker(image: Image) -> Marker:
    return Marker(image.epoch, image.state_id.hex())


def schema_states() -> list[Image]:
    """Return the states after each change of the schema."""
    found = images(LOG)
    return [b for a, b in pairwise(found) if a.schema is not b.schema]


def _rows_now() -> dict[ObjectKey, SchemaObject | None]:
    last = images(LOG)[-1]
    return SCHEMA_TOPIC.rows("c", marker(last), last.schema, None)


def test_each_object_has_one_row_with_its_columns_and_cql() -> None:
    last, rows = images(LOG)[-1], _rows_now()
    assert {row.object_name: row.cql for row in rows.values() if row} == cql_of(last)
    by_name = {row.object_name: row for row in rows.values() if row}
    orders, view = by_name["shop.orders"], by_name["shop.by_total"]
    assert [(c.name, c.type, c.kind, c.order) for c in orders.columns][:2] == [
        ("customer", "uuid", "partition_key", ""),
        ("at", "timestamp", "clustering", "desc"),
    ]
    assert view.base_table_id == orders.object_id
    fields = [(c.name, c.kind) for c in by_name["shop.address"].columns]
    assert fields == [("street", "field"), ("city", "field"), ("zip", "field")]
    for key, row in rows.items():
        assert row is not None
        assert SCHEMA_TOPIC.decode(SCHEMA_TOPIC.encode(row)) == row
        assert SCHEMA_TOPIC.key_of("c", SCHEMA_TOPIC.text_of("c", key)) == key
    gone = ObjectKey("table", "none")
    assert SCHEMA_TOPIC.rows("c", marker(last), last.schema, {gone}) == {gone: None}
    assert len(schema_answer(last).tables) == 3


@pytest.mark.parametrize("key", ["c/epoch", "c/view/x", "c/table/", "d/table/x", "table/x", "x"])
def test_other_keys_are_not_objects(key: str) -> None:
    assert SCHEMA_TOPIC.key_of("c", key) is None


def test_ids_of_the_schema_are_optional() -> None:
    names = ("PlacementRow", "PlacementsMarker", "SchemaObject")
    ids = [f"{n}={load_schemas().headers[name][2:].hex()}" for n, name in enumerate(names, 1)]
    row = SCHEMA_TOPIC.encode(next(iter(filter(None, _rows_now().values()))))
    assert has_schema_id(",".join(ids))
    assert framing_of(",".join(ids)).framed(row)[:5] == bytes([0, 0, 0, 0, 3])
    framing_of(",".join(ids[:2]))
    assert not has_schema_id(",".join(ids[:2]))


@pytest.mark.broker
def test_topic_has_the_schema_of_its_marker_and_tombstones_for_drops(
    kafka: str, topics: str
) -> None:
    brokers, writer = Brokers(kafka), None
    for before, image in zip([None, *schema_states()], schema_states(), strict=False):
        if before is None or writer is None or image.epoch % 3 == 0:
            writer = TopicWriter(brokers, topics, SCHEMA_TOPIC)  # as after a restart
        kept = {} if before is None else SCHEMA_TOPIC.rows("c", marker(before), before.schema, None)
        now = SCHEMA_TOPIC.rows("c", marker(image), image.schema, None)
        writer.publish(marker(image), image.schema, {*kept, *now})
    last = schema_states()[-1]

    def is_there() -> bool:
        return read_rows(brokers, topics, SCHEMA_TOPIC).marker == marker(last)

    wait_until(is_there, "the marker of the last epoch")
    view = read_rows(brokers, topics, SCHEMA_TOPIC)
    assert {row.object_name: row.cql for row in view.rows.values()} == cql_of(last)
    assert not view.unread
    newest = dict(read_topic(brokers, f"stele.{topics}.schema"))
    dropped = {k for k, value in newest.items() if value is None}
    assert {key.split("/")[1] for key in dropped} >= {"table", "function", "aggregate", "keyspace"}
