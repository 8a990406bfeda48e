"""What a materialized cluster must be: tables and compacted topic equal the image, and nothing twice."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from confluent_kafka import Consumer, TopicPartition

from stele.domain.image import Image
from stele.domain.placement_hash import placement_hash
from stele.domain.ring.ranges import RangeReplicas
from stele.log.flows import flow_topic
from stele.placements.read import current_placements, placements_at, reached, read_table
from tests.spark.histories import images

CALL_S = 10.0


def image_hash(image: Image) -> str:
    return placement_hash({name: p.rows for name, p in image.ring.placements.items()})


def assert_materialized(kafka: str, delta: Path, cluster: str, log: Sequence[bytes]) -> None:
    """Everything of the log stands in the tables and in the topic, exactly once."""
    expected = images(tuple(log))
    last = expected[-1]
    found = reached(delta, cluster)
    assert found is not None
    assert (found.epoch, found.state_id) == (last.epoch, last.state_id.hex())
    epochs = read_table(delta / "epochs", cluster)
    assert sorted(row["epoch"] for row in epochs) == list(range(1, last.epoch + 1))
    assert placement_hash(current_placements(delta, cluster)) == image_hash(last)
    for image in expected[1::5]:
        assert placement_hash(placements_at(delta, cluster, image.epoch)) == image_hash(image)
    keys = [
        (row["placement"], row["start"], row["from_epoch"])
        for row in read_table(delta / "placements_history", cluster)
    ]
    assert len(keys) == len(set(keys))
    assert_topic(kafka, cluster, last)


def assert_topic(kafka: str, cluster: str, last: Image) -> None:
    """The newest value of each key is a row of the image; the marker is the last record."""
    records = read_topic(kafka, cluster)
    marker_key = f"{cluster}/epoch"
    assert records[-1][0] == marker_key
    newest = dict(records)
    marker = msgspec.json.decode(newest.pop(marker_key) or b"")
    assert marker == {"epoch": last.epoch, "state_id": last.state_id.hex()}
    found: dict[str, list[RangeReplicas]] = {}
    for key, value in newest.items():
        if value is not None:
            name = key.removeprefix(f"{cluster}/").rpartition("/")[0]
            row = msgspec.convert(msgspec.json.decode(value), RangeReplicas)
            assert key == f"{cluster}/{name}/{row.start}"
            found.setdefault(name, []).append(row)
    assert placement_hash(found) == image_hash(last)


def read_topic(kafka: str, cluster: str) -> list[tuple[str, bytes | None]]:
    """Key and value of every record of topic ``placements``; None for a tombstone."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "unused"})
    where = TopicPartition(flow_topic(cluster, "placements"), 0, 0)
    try:
        _, end = consumer.get_watermark_offsets(where, timeout=CALL_S)
        consumer.assign([where])
        found: list[tuple[str, bytes | None]] = []
        next_offset = 0
        while next_offset < end:
            message = consumer.poll(CALL_S)
            assert message is not None, f"record {next_offset} of {end} did not come"
            found.append(((message.key() or b"").decode(), message.value()))
            next_offset = (message.offset() or 0) + 1
        return found
    finally:
        consumer.close()
