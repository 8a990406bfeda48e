"""Tables in a folder or in a bucket of an object store, also with two jobs that write concurrently."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from stele.domain.evolve import evolve
from stele.domain.facts import Epoch
from stele.domain.recovery import NewLog, Why, recovered
from stele.domain.snapshot import state_hash
from stele.log.chain import Anchor
from stele.log.fold import Start
from stele.placements.derived_tables import Derived
from stele.placements.events_table import Events
from stele.placements.store import TableStore, in_clusters, sql_text
from stele.placements.tables import (
    CONFIGURATION,
    CURRENT,
    EVENTS,
    OPTIONAL,
    SCHEMAS,
    NumberedTable,
    TableLost,
    open_table,
)
from stele.placements.upkeep import JOIN_ONLY, VACUUM_S, Upkeep, upkeep
from stele_harness.stack.ports import free_port
from stele_harness.tables import current_placements, reached, read_table
from tests.polling import wait_until
from tests.spark.histories import images, random_log
from tests.spark.test_chain import arrow, rows_of
from tests.spark.test_read import rows

START_S = 150.0


@pytest.fixture(params=["folder", "s3"])
def address(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    if request.param == "folder":
        yield f"file://{tmp_path}/delta"
        return
    endpoint = f"http://127.0.0.1:{free_port()}"
    settings = {
        "AWS_ACCESS_KEY_ID": "stele",
        "AWS_SECRET_ACCESS_KEY": "of the tests",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    port = endpoint.rpartition(":")[2]
    # A separate process: delta-rs holds the interpreter's lock while it waits for an answer.
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", port],
        env={**os.environ, **settings},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: answers(f"{endpoint}/bucket"), "the bucket", START_S)
        yield "s3://bucket/some/prefix"
    finally:
        server.kill()
        server.wait(10)


def answers(url: str) -> bool:
    try:
        return httpx.put(url, timeout=5).is_success
    except httpx.HTTPError:
        return False


def test_two_processes_write_each_commit_once_and_see_each_other(
    address: str,
) -> None:
    store, log = TableStore(address), random_log(1)
    mine, other = Events(store), Events(store)
    first, all_of_it = rows_of({}, arrow(log[:30])), rows_of({}, arrow(log))
    assert other.commit(first, {})
    brought: dict[str, object] = {}
    assert not mine.commit(all_of_it, brought)  # type: ignore[arg-type]
    assert (mine.heads, mine._commits.number) == (other.heads, 1)
    assert set(brought) == {"c"}
    assert mine.commit(rows_of(mine.heads, arrow(log)), {})
    assert Events(store).heads == mine.heads
    last = images(log)[-1]
    found = reached(address, "c")
    assert found is not None
    assert (found.epoch, found.state_id) == (last.epoch, last.state_id.hex())
    assert [epoch.epoch for epoch in Events(store).epochs_of("c")] == [*range(1, last.epoch + 1)]


def test_commit_that_seemed_to_fail_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, log = Events(TableStore(tmp_path)), random_log(1)
    write = NumberedTable._write

    def fails_late(self: NumberedTable, made: object) -> None:
        write(self, made)
        raise OSError("no answer in time")

    monkeypatch.setattr(NumberedTable, "_write", fails_late)
    brought: dict[str, object] = {}
    assert not mine.commit(rows_of({}, arrow(log)), brought)  # type: ignore[arg-type]
    assert mine.heads["c"].next_offset == len(log)
    assert set(brought) == {"c"}
    assert rows_of(mine.heads, arrow(log)).num_rows == 0

    def fails(self: NumberedTable, made: object) -> None:
        raise OSError("the connection was lost")

    monkeypatch.setattr(NumberedTable, "_write", fails)
    with pytest.raises(OSError, match="connection"):
        mine.commit(rows_of({}, arrow(log)), {})


def test_upkeep_between_commits_does_not_repeat_a_batch(tmp_path: Path) -> None:
    store, log = TableStore(tmp_path), random_log(1)
    mine = Events(store)
    Derived(store)
    for cut in (10, 20, 30):
        assert mine.commit(rows_of(mine.heads, arrow(log[:cut])), {})
    upkeep(store)
    assert mine.commit(rows_of(mine.heads, arrow(log)), {})
    assert len(read_table(store.uri(""), EVENTS, "c")) == Events(store)._commits.table.count()


def test_upkeep_compacts_files_in_a_separate_process(
    address: str,
) -> None:
    store, log = TableStore(address), random_log(1)
    events = Events(store)
    Derived(store)
    for cut in (10, 20, 30):
        assert events.commit(rows_of(events.heads, arrow(log[:cut])), {})
    assert len(store.table(EVENTS).file_uris()) == 3
    beside = Upkeep(address)
    beside.start()
    wait_until(lambda: not beside.running(), "the upkeep", START_S)
    assert len(store.table(EVENTS).file_uris()) == 1
    assert Events(store).heads == events.heads
    nowhere = Upkeep(f"{address}/nowhere")
    nowhere.start()
    wait_until(lambda: not nowhere.running(), "the failure", START_S)


def test_upkeep_removes_old_unreferenced_files_and_keeps_young_ones(
    tmp_path: Path,
) -> None:
    store, folder = TableStore(tmp_path), tmp_path / "placements"
    derived = Derived(store)
    for name in sorted(SCHEMAS):
        open_table(store, name)
    for epoch in range(1, 4):
        derived.write_current({"a": rows(epoch)}, {"a": epoch})
    went = {*data_files(folder)}
    left = [folder / f"{age}.parquet" for age in ("old", "young")]
    for file in left:
        file.write_bytes(b"of a process that died before its commit")
    at_s = time.time() - 8 * 24 * 3600
    os.utime(left[0], (at_s, at_s))
    upkeep(store, removes=False)
    assert {*data_files(folder)} >= {*went, *left}
    upkeep(store)
    assert {*data_files(folder)} >= {*went, left[1]}  # readers may still use them
    assert not left[0].exists()


def test_upkeep_removes_files_that_left_the_delta_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With frequent commits, checkpoints precede the upkeep and omit files removed a week ago."""
    monkeypatch.setitem(CONFIGURATION, "delta.deletedFileRetentionDuration", "interval 0 seconds")
    monkeypatch.setitem(CONFIGURATION, "delta.checkpointInterval", "2")
    store = TableStore(tmp_path)
    derived = Derived(store)
    open_table(store, EVENTS)
    for name in OPTIONAL:
        open_table(store, name)
    for epoch in range(1, 8):
        derived.write_current({"a": rows(epoch)}, {"a": epoch})
    assert len(data_files(tmp_path / "placements")) >= 7
    upkeep(store)
    live = {Path(uri.removeprefix("file://")) for uri in store.table("placements").file_uris()}
    assert {*data_files(tmp_path / "placements")} == live
    assert len(current_placements(tmp_path, "a")["dc1:3"]) == 3


def test_change_feed_has_the_changes_of_the_last_days(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TableStore(tmp_path)
    monkeypatch.setitem(CONFIGURATION, "delta.checkpointInterval", "2")
    open_table(store, CURRENT)
    derived = Derived(store)
    derived.write_current({"a": rows(1)}, {"a": 1})
    first = store.table(CURRENT).version()
    for epoch in range(2, 8):  # the Delta log is cut at an old enough checkpoint
        derived.write_current({"a": rows(epoch)}, {"a": epoch})
    at_s = time.time() - 6 * 24 * 3600
    for file in (tmp_path / CURRENT / "_delta_log").iterdir():
        os.utime(file, (at_s, at_s))
    for epoch in range(8, 14):
        derived.write_current({"a": rows(epoch)}, {"a": epoch})
    changes = store.table(CURRENT).load_cdf(starting_version=first)
    assert first in pa.table(changes.read_all())["_commit_version"].to_pylist()


def data_files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*.parquet") if "_delta_log" not in file.parts]


def test_job_vacuums_at_start_and_then_once_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[bool] = []
    monkeypatch.setattr(
        "stele.placements.upkeep.subprocess.Popen",
        lambda argv, **_: started.append(JOIN_ONLY not in argv),
    )
    times = iter([0.0, 0.0, 0.0, 600.0, VACUUM_S - 1, VACUUM_S, VACUUM_S, VACUUM_S + 600])
    beside = Upkeep(
        str(tmp_path), lambda: next(times)
    )  # one more read of the clock for each that vacuums
    for _ in range(5):
        beside.start()
    assert started == [True, False, False, True, False]


def test_derived_tables_are_stored_at_the_address(address: str) -> None:
    tables = Derived(TableStore(address))
    tables.write_past({"a": []}, {"a": 2})
    tables.write_current({"a": rows(2)}, {"a": 2})
    loaded = tables.load(["a"])
    assert (loaded.epochs, loaded.placements("a")) == ({"a": 2}, rows(2))
    assert len(current_placements(address, "a")["dc1:3"]) == 3


def test_names_in_sql_conditions_are_quoted() -> None:
    assert sql_text("it's") == "'it''s'"
    assert in_clusters(["b", "a'"]) == "cluster IN ('a''', 'b')"


def test_recreated_table_is_not_continued(tmp_path: Path) -> None:
    mine = Events(TableStore(tmp_path / "delta"))
    (tmp_path / "delta").rename(tmp_path / "away")
    with pytest.raises(TableLost, match="no Delta table at"):
        mine.refresh()
    other = open_table(TableStore(tmp_path / "delta"), EVENTS)
    write_deltalake(other, rows_of({}, arrow(random_log(1)[:3])), mode="append")
    with pytest.raises(TableLost, match="recreated"):
        mine.refresh()


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("http://a/b", "no place for tables"),
        ("s3://", "names no bucket"),
        ("file://host/a", "another machine"),
    ],
)
def test_invalid_table_address_shows_the_expected_form(address: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"{text}.*Write a path"):
        TableStore(address)


def test_log_that_continues_in_another_topic_is_known_to_all_processes(
    tmp_path: Path,
) -> None:
    store, log = TableStore(tmp_path), random_log(1)
    mine = Events(store)
    assert mine.commit(rows_of({}, arrow(log), certain={"c": len(log)}), {})
    other, image = Events(store), images(log)[-1]
    new = NewLog(log_id=b"\xff" * 16, state_id=b"\xff" * 16, topic_id="new", at_ms=0)
    first = recovered(image, new, Why(actor="me", reason="the topic was lost"))
    assert isinstance(first, Epoch)
    begun = evolve(image, first)
    assert mine.begin("c", Start(begun, 1, Anchor(0, bytes(16))))
    found = other.refresh()["c"].snapshot
    assert found is not None
    assert found.epoch == begun.epoch == image.epoch + 1
    assert mine.heads["c"].next_offset == 1 < len(log)
    assert mine.heads == other.heads == Events(store).heads
    made = Events(store).image_of("c")
    assert made is not None
    assert state_hash(made) == state_hash(begun)
