"""What a materialized cluster must be: tables and compacted topic equal the image, and nothing twice."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from stele.domain.image import Image
from stele.domain.messages import PlacementRow
from stele.domain.placement_hash import placement_hash
from stele.domain.ring.ranges import RangeReplicas
from stele.log.brokers import Brokers
from stele.log.framing import Framing
from stele.placements.read import current_placements, placements_at, reached, read_table
from stele.placements.topic import PLAIN, Marker, TopicView, read_placements
from tests.spark.histories import images


def image_hash(image: Image) -> str:
    return placement_hash({name: p.rows for name, p in image.ring.placements.items()})


def assert_materialized(kafka: str, delta: Path, cluster: str, log: Sequence[bytes]) -> None:
    """Everything of the log stands in the tables and in the topic, exactly once."""
    expected = images(tuple(log))
    last = expected[-1]
    assert_events(delta, cluster, expected)
    assert placement_hash(current_placements(delta, cluster)) == image_hash(last)
    for image in expected[1::9]:
        assert placement_hash(placements_at(delta, cluster, image.epoch)) == image_hash(image)
    keys = [
        (row["placement"], row["range_start"], row["from_epoch"])
        for table in ("placements", "placements_past")
        for row in read_table(delta, table, cluster)
    ]
    assert len(keys) == len(set(keys))
    assert_topic(kafka, cluster, last)


def assert_events(delta: Path, cluster: str, expected: Sequence[Image]) -> None:
    """Each epoch and each fact once, in a chain of state ids."""
    last = expected[-1]
    found = reached(delta, cluster)
    assert found is not None
    assert (found.epoch, found.state_id) == (last.epoch, last.state_id.hex())
    rows = read_table(delta, "events", cluster)
    epochs = sorted(
        (row for row in rows if row["row_kind"] == "epoch"), key=lambda row: int(row["epoch"])
    )
    assert [row["epoch"] for row in epochs] == list(range(1, last.epoch + 1))
    assert [row["state_id"] for row in epochs] == [image.state_id.hex() for image in expected[1:]]
    assert [row["prev_state_id"] for row in epochs] == [i.state_id.hex() for i in expected[:-1]]
    assert {row["log_id"] for row in epochs} == {last.log_id.hex()}
    facts = [(row["epoch"], row["fact_number"]) for row in rows if row["row_kind"] == "fact"]
    assert facts
    assert len(facts) == len(set(facts))


def assert_topic(kafka: str, cluster: str, last: Image) -> None:
    """The newest value of each key is a row of the image; the marker is the image's epoch."""
    view = settled(kafka, cluster, last.epoch)
    assert view.marker == Marker(last.epoch, last.state_id.hex())
    assert placement_hash(by_placement(view.rows)) == image_hash(last)
    assert all(row.epoch <= last.epoch for row in view.rows.values())


def settled(kafka: str, cluster: str, epoch: int, framing: Framing = PLAIN) -> TopicView:
    """The topic once its marker is at the epoch, or as it is after a while. The brokers show a transaction to
    readers a moment after they told its writer that it is committed.
    """
    for _ in range(100):
        view = read_placements(Brokers(kafka), cluster, framing)
        if view.marker.epoch == epoch:
            break
        time.sleep(0.05)
    return view


def by_placement(rows: Mapping[tuple[str, int], PlacementRow]) -> dict[str, list[RangeReplicas]]:
    found: dict[str, list[RangeReplicas]] = {}
    for (name, start), told in rows.items():
        assert (told.placement, told.range_start) == (name, start)
        found.setdefault(name, []).append(told.row)
    return found
