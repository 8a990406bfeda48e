"""Checks of a materialized cluster: tables and compacted topic equal a replay of its log, each row once."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import pyarrow as pa
from immutables import Map

from stele.domain.image import Image
from stele.domain.messages import PlacementRow
from stele.domain.model.requests import RequestChanged
from stele.domain.ring.ranges import RangeReplicas, placement_hash
from stele.log.brokers import Brokers
from stele.log.codec import Framing
from stele.placements.fold import Key
from stele.placements.schema_topic import SCHEMA_TOPIC
from stele.placements.store import placements_at
from stele.placements.summaries import SPREAD, SUMMARIES, Row, rows_of
from stele.placements.topic import PLAIN, Marker, TopicView, read_rows
from stele.runtime.answers.of_image import schema_answer
from stele.words.cql import statements
from stele_harness.tables import current_placements, reached, read_placements, read_table
from tests.spark.histories import images
from tests.spark.reported import sessions
from tests.spark.test_chain import winners


def image_hash(image: Image) -> str:
    return placement_hash({name: p.rows for name, p in image.ring.placements.items()})


def assert_materialized(kafka: str, delta: Path, cluster: str, log: Sequence[bytes]) -> None:
    """Check that tables and topic contain everything of the log exactly once."""
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
    assert_schema_topic(kafka, cluster, last)


def differences(delta: Path, cluster: str, log: Sequence[bytes]) -> list[str]:
    """Return the rows in which the tables differ from a replay of the log, with the name of the table.

    All tables that follow from the log are compared, except those of ``assert_materialized``. The summaries
    follow within seconds: wait until the list is empty. The epoch of a summary's row depends on when it was
    written, and is compared only in table ``balance``, whose rows are of their epoch.
    """
    expected = images(tuple(log))
    last, found = expected[-1], list[str]()
    for name, summary in SUMMARIES.items():
        rows = read_table(delta, name, cluster)
        replayed = _requests(log, last) if name == "requests" else rows_of(summary, cluster, last)
        replayed = pa.Table.from_pylist(replayed, schema=summary.schema).to_pylist()
        found += _differences(name, map(_without_epoch, rows), map(_without_epoch, replayed))
    held = read_table(delta, "balance", cluster)
    epochs = sorted({int(row["as_of_epoch"]) for row in held})
    replayed = [row for epoch in epochs for row in rows_of(SPREAD, cluster, expected[epoch])]
    found += _differences("balance", held, replayed)
    newest = (row for row in held if row["as_of_epoch"] == epochs[-1])
    spread = rows_of(SPREAD, cluster, last)
    found += _differences("balance", map(_without_epoch, newest), map(_without_epoch, spread))
    streams = [
        {"session": session, "to_node": node, "opened_epoch": image.epoch}
        for session, (image, receivers) in sessions(tuple(log)).items()
        for node in receivers
    ]
    held = read_table(delta, "streams", cluster)
    found += _differences("streams", _cells(held, *streams[0]), streams)
    history = [*_schema_changes(expected)]
    held = read_table(delta, "schema_history", cluster)
    return found + _differences("schema_history", _cells(held, *history[0]), history)


def _cells(rows: Iterable[Row], *columns: str) -> Iterable[Row]:
    return ({name: row[name] for name in columns} for row in rows)


def _schema_changes(expected: Sequence[Image]) -> Iterable[Row]:
    """Rows of ``schema_history``: the objects whose CQL differs between two states."""
    for before, image in pairwise(expected):
        if before.schema is image.schema:
            continue
        old, new = cql_of(before), cql_of(image)
        for name in sorted({*old, *new}):
            kind = "changed" if name in old and name in new else "created"
            if old.get(name) != new.get(name):
                yield {
                    "changed_epoch": image.epoch,
                    "object_name": name,
                    "change_kind": kind if name in new else "dropped",
                    "cql_text": new.get(name),
                }


def cql_of(image: Image) -> dict[str, str]:
    """Return the CQL of each object by its full name; that of a table includes its indexes."""
    found = dict[str, list[str]]()
    for name, text in statements(schema_answer(image)):
        found.setdefault(name, []).append(text)
    return {name: "\n".join(texts) for name, texts in found.items()}


def _requests(log: Sequence[bytes], last: Image) -> list[Row]:
    """Return rows of all requests of the log, each by its newest fact."""
    facts = (fact for epoch in winners(tuple(log)) for fact in epoch.facts)
    newest = {f.request.request_id: f.request for f in facts if isinstance(f, RequestChanged)}
    requests = msgspec.structs.replace(last.requests, requests=Map(newest))
    return rows_of(SUMMARIES["requests"], "", msgspec.structs.replace(last, requests=requests))


def _without_epoch(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in ("as_of_epoch", "cluster")}


def _differences(name: str, held: Iterable[Row], replayed: Iterable[Row]) -> list[str]:
    left, right = Counter(map(_text, held)), Counter(map(_text, replayed))
    return [
        *(f"{name} has {row}" for row in (left - right).elements()),
        *(f"{name} lacks {row}" for row in (right - left).elements()),
    ]


def _text(row: Row) -> str:
    return str(sorted(row.items()))


def assert_events(delta: Path, cluster: str, expected: Sequence[Image]) -> None:
    """Check that each epoch and each fact is there once, in a chain of state ids."""
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
    """Check that the newest value of each key is a row of the image, and that the marker has its epoch."""
    view = settled(kafka, cluster, last.epoch)
    assert view.marker == Marker(last.epoch, last.state_id.hex())
    assert placement_hash(by_placement(view.rows)) == image_hash(last)
    assert all(row.epoch <= last.epoch for row in view.rows.values())


def assert_schema_topic(kafka: str, cluster: str, last: Image) -> None:
    """Check that the topic has each object of the image, and a marker with an epoch of this schema."""
    for _ in range(100):
        view = read_rows(Brokers(kafka), cluster, SCHEMA_TOPIC)
        told = {row.object_name: row.cql for row in view.rows.values()}
        if told == cql_of(last):
            break
        time.sleep(0.05)
    assert told == cql_of(last)
    assert 0 < view.marker.epoch <= last.epoch
    assert len(view.rows) == len(told)


def settled(
    kafka: str, cluster: str, epoch: int, framing: Framing = PLAIN
) -> TopicView[Key, PlacementRow]:
    """Return the topic once its marker is at the epoch, or after a time limit. Readers see a transaction a
    moment after its commit.
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
