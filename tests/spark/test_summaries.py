"""Summary tables: their rows equal the image, and rows that a table keeps are not lost."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from deltalake import DeltaTable
from immutables import Map

from stele.domain.commands import CreateKeyspace, Leave
from stele.domain.evolve import Delta, evolve
from stele.domain.image import EMPTY_FOR_FOLLOWERS, Image
from stele.domain.names import BALANCER, RequestKind, RequestStatus
from stele.placements.derived_tables import USER_METADATA, Derived
from stele.placements.store import TableStore
from stele.placements.summaries import SPREAD, SUMMARIES, Ended, Row, ended_requests, rows_of
from stele_harness.tables import read_table
from tests.domain.history import join, three_nodes
from tests.spark.checks import differences
from tests.spark.histories import images, random_log
from tests.spark.test_chain import winners

SQL_WORDS = {
    "at",
    "end",
    "start",
    "offset",
    "from",
    "to",
    "order",
    "group",
    "table",
    "key",
    "kind",
    "state",
}


def image_of_three() -> Image:
    return three_nodes()[0].image


def rows(name: str, image: Image, cluster: str = "c") -> list[Row]:
    return rows_of(SUMMARIES[name], cluster, image)


def test_nodes_keyspaces_and_cluster_rows_equal_the_image() -> None:
    image = image_of_three()
    nodes = {row["node_id"]: row for row in rows("nodes", image)}
    assert {name: (row["dc"], row["rack"], row["node_state"]) for name, row in nodes.items()} == {
        f"n{n}": ("dc1", f"r{n}", "normal") for n in (1, 2, 3)
    }
    (keyspace,) = rows("keyspaces", image)
    assert (keyspace["keyspace_name"], keyspace["replication"]) == ("library", '{"dc1":3}')
    (cluster,) = rows("clusters", image)
    assert (cluster["as_of_epoch"], cluster["state_id"]) == (image.epoch, image.state_id.hex())
    assert cluster["topology_version"] == image.topology.version > 1


def test_ring_shares_sum_to_the_replication_factor() -> None:
    shares: dict[tuple[str, str], float] = {}
    for row in rows("ownership", image_of_three()):
        key = row["placement"], row["replica_role"]
        shares[key] = shares.get(key, 0.0) + row["ring_share"]
    assert shares == {("dc1:3", "read"): pytest.approx(3), ("dc1:3", "write"): pytest.approx(3)}


def test_request_row_has_wait_and_run_times() -> None:
    history, driver = three_nodes()
    history.apply(join(4, "r3"))
    driver.run()
    history.apply(Leave("n3"))
    (pending,) = leaves(history.image)
    assert (pending["request_status"], pending["waited_s"], pending["ran_s"]) == (
        "pending",
        None,
        None,
    )
    driver.run()
    image = history.image
    (known,) = [r for r in image.requests.requests.values() if r.kind is RequestKind.LEAVE]
    times = {"submitted_at_ms": 1_000, "started_at_ms": 3_500, "finished_at_ms": 10_000}
    timed = msgspec.structs.replace(known, **times)
    requests = image.requests.requests.set(known.request_id, timed)
    image = msgspec.structs.replace(
        image, requests=msgspec.structs.replace(image.requests, requests=requests)
    )
    (done,) = leaves(image)
    assert (done["waited_s"], done["ran_s"]) == (2.5, 6.5)
    assert done["finished_epoch"] > done["submitted_epoch"] > 0
    assert done["finished_at"] == datetime(1970, 1, 1, 0, 0, 10, tzinfo=UTC)


@pytest.mark.parametrize("at_ms", [2**63 - 1, -(2**63)])
def test_extreme_request_times_are_clamped_to_valid_dates(at_ms: int, tmp_path: Path) -> None:
    image = image_of_three()
    (known, *_) = image.requests.requests.values()
    odd = msgspec.structs.replace(known, submitted_at_ms=at_ms, finished_at_ms=at_ms)
    requests = image.requests.requests.set(known.request_id, odd)
    image = msgspec.structs.replace(
        image, requests=msgspec.structs.replace(image.requests, requests=requests)
    )
    Derived(TableStore(tmp_path)).write_summaries({"c": image})
    row = written(tmp_path, "requests")[known.request_id]
    assert row["submitted_at"].year == (9999 if at_ms > 0 else 1970)


def leaves(image: Image) -> list[Row]:
    return [row for row in rows("requests", image) if row["request_kind"] == RequestKind.LEAVE]


@pytest.mark.parametrize("name", SUMMARIES)
def test_every_column_is_filled_and_no_name_is_an_sql_keyword(name: str) -> None:
    schema = SUMMARIES[name].schema
    assert SQL_WORDS.isdisjoint(schema.names)
    for image in (image_of_three(), images(random_log(1))[30]):
        assert all(list(row) == schema.names for row in rows(name, image))


def written(folder: Path, name: str, cluster: str = "c") -> Mapping[str, Row]:
    summary = SUMMARIES[name]
    key = summary.key or next(iter(summary.columns))
    return {row[key]: row for row in read_table(folder, name, cluster)}


def test_rows_are_replaced_only_by_newer_epochs(
    tmp_path: Path,
) -> None:
    history, driver = three_nodes()
    before = history.image
    tables = Derived(TableStore(tmp_path))
    tables.write_summaries({"c": before, "other": before})
    history.apply(CreateKeyspace("more", {"dc1": 2}))
    history.apply(join(4, "r3"))
    driver.run()
    history.apply(Leave("n3"))
    driver.run()
    tables.write_summaries({"c": history.image})
    tables.write_summaries({"c": before})
    assert written(tmp_path, "nodes")["n3"]["node_state"] == "left"
    assert written(tmp_path, "nodes", "other")["n3"]["node_state"] == "normal"
    assert len(read_table(tmp_path, "keyspaces", "c")) == 2
    newest, first, *_ = DeltaTable(str(tmp_path / "nodes")).history()
    assert msgspec.json.decode(newest[USER_METADATA]) == {"c": history.image.epoch}
    assert msgspec.json.decode(first[USER_METADATA]) == dict.fromkeys(("c", "other"), before.epoch)
    changes = DeltaTable(str(tmp_path / "nodes")).load_cdf(starting_version=2).read_all()
    assert changes.num_rows > 0


def test_balance_has_a_row_for_each_change_and_counts_empty_nodes(
    tmp_path: Path,
) -> None:
    history, _ = three_nodes()
    tables = Derived(TableStore(tmp_path))
    even = history.image
    tables.write_summaries({"c": even})
    tables.write_summaries({"c": even})
    history.apply(CreateKeyspace("more", {"dc1": 1}))
    tables.write_summaries({"c": history.image})
    found = read_table(tmp_path, "balance", "c")
    first = [row for row in found if row["as_of_epoch"] == even.epoch]
    assert {(r["placement"], r["replica_role"], r["node_count"]) for r in first} == {
        ("dc1:3", "read", 3),
        ("dc1:3", "write", 3),
    }
    assert all(r["least_share"] == r["most_share"] == pytest.approx(1) for r in first)
    assert all(r["fewest_ranges"] == r["most_ranges"] > 0 for r in first)
    (one,) = [r for r in found if r["placement"] == "dc1:1" and r["replica_role"] == "read"]
    assert one["as_of_epoch"] == history.image.epoch > even.epoch
    assert one["mean_share"] == pytest.approx(1 / 3)
    assert one["least_share"] <= one["mean_share"] <= one["most_share"]
    nobody = msgspec.structs.replace(history.image.ring, placements={})
    assert rows_of(SPREAD, "c", msgspec.structs.replace(history.image, ring=nobody)) == []


def test_forgotten_requests_stay_in_the_table(tmp_path: Path) -> None:
    image = image_of_three()
    tables = Derived(TableStore(tmp_path))
    tables.write_summaries({"c": image})
    known = written(tmp_path, "requests")
    assert len(known) >= 3
    forgotten = msgspec.structs.replace(image.requests, requests=type(image.requests.requests)())
    later = msgspec.structs.replace(image, epoch=image.epoch + 1, requests=forgotten)
    tables.write_summaries({"c": later})
    assert written(tmp_path, "requests") == known


def test_requests_that_end_between_two_writes_have_exact_rows(
    tmp_path: Path,
) -> None:
    """Moves of the balancer leave the state in the epoch in which they end. Only few images are written."""
    log, tables = random_log(1), Derived(TableStore(tmp_path))
    image, ended = EMPTY_FOR_FOLLOWERS, list[Ended]()
    epochs = winners(log)
    running = next(
        image.epoch
        for image in images(log)
        for request in image.requests.unfinished_by_id.values()
        if request.moves_replica and request.status is RequestStatus.RUNNING
    )
    for epoch in epochs:
        ended += ended_requests(Delta(image, epoch))
        image = evolve(image, epoch)
        if image.epoch in (running, len(epochs)):
            tables.write_summaries({"c": image}, {"c": ended})
            ended = []
    found = [row for row in differences(tmp_path, "c", log) if row.startswith("requests")]
    assert found == []
    statuses = {
        (row["actor"], row["request_status"]) for row in written(tmp_path, "requests").values()
    }
    assert {(BALANCER, "done"), (BALANCER, "cancelled")} <= statuses


def test_request_with_an_unseen_end_has_status_unknown(tmp_path: Path) -> None:
    history, _ = three_nodes()
    history.apply(join(4))
    tables = Derived(TableStore(tmp_path))
    tables.write_summaries({"c": history.image})
    known = written(tmp_path, "requests")
    none = msgspec.structs.replace(history.image.requests, requests=Map(), unfinished_by_id=Map())
    later = msgspec.structs.replace(history.image, epoch=history.image.epoch + 9, requests=none)
    tables.write_summaries({"c": later})
    found = written(tmp_path, "requests")
    changed = {key: row["request_status"] for key, row in found.items() if row != known[key]}
    assert found.keys() == known.keys()
    assert [*changed.values()] == ["unknown"]


def test_table_of_an_unchanged_section_is_not_rewritten(
    tmp_path: Path,
) -> None:
    history, _ = three_nodes()
    tables = Derived(TableStore(tmp_path))
    tables.write_summaries({"c": history.image})
    history.apply(CreateKeyspace("more", {"dc1": 2}))
    tables.write_summaries({"c": history.image})
    versions = {name: DeltaTable(str(tmp_path / name)).version() for name in SUMMARIES}
    assert (versions["nodes"], versions["requests"]) == (1, 1)
    assert (versions["keyspaces"], versions["ownership"], versions["clusters"]) == (2, 2, 2)
    assert len(read_table(tmp_path, "keyspaces", "c")) == 2
