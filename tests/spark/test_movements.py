"""Movements between nodes: reasons from the log, bytes from reports. Each report counts once."""

from __future__ import annotations

import random
import shutil
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from deltalake import DeltaTable

from stele.domain.image import EMPTY
from stele.domain.messages import Report, StreamedFrom
from stele.domain.names import OrderKind, ReportStatus
from stele.log.codec import encode_report
from stele.placements import reports as reports_module
from stele.placements import reports_table as movements_module
from stele.placements.derived_tables import Derived
from stele.placements.fold import FoldError
from stele.placements.queries import run
from stele.placements.reports_table import Movements, Reports
from stele.placements.store import TableStore
from stele.placements.streams import opened
from stele_harness.tables import read_table
from tests.spark.histories import images, random_log
from tests.spark.reported import AT_MS, decoded, held, moved, sessions, told

TOPIC = {"c": "the topic's id"}


def write_streams(store: TableStore, log: tuple[bytes, ...], upto: int = 10**9) -> None:
    """Write the streams of the sessions in a log, as the first query does."""
    derived = Derived(store)
    for before, image in pairwise(images(log)):
        rows = [*opened(before, image)]
        if rows and image.epoch <= upto:
            derived.write_streams({"c": rows}, {"c": image.epoch})


def written(folder: Path) -> dict[tuple[str, str, str], int]:
    return held(read_table(folder, "movements", "c"))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_movements_equal_a_replay_with_any_batch_boundaries(seed: int, tmp_path: Path) -> None:
    log, chance, store = random_log(seed), random.Random(seed), TableStore(tmp_path)
    values = told(log, seed)
    write_streams(store, log)
    table, writer, at = Reports(store), Movements(store), 0
    while at < len(values):
        end = min(len(values), at + chance.randrange(1, 20))
        again = max(0, at - chance.randrange(5))
        writer.write(table.append(decoded(values[again:end], again), TOPIC))
        if chance.random() < 0.3:
            table, writer = Reports(store), Movements(store)
        at = end
    expected = moved(log, values)
    assert len(expected) > 10
    assert written(tmp_path) == expected
    assert writer.behind() == set()
    assert table.heads["c"].next_offset == len(values)
    assert table.heads["c"].unreadable == sum(value == b"no report" for value in values)


def test_movement_has_its_reason_and_duration(tmp_path: Path) -> None:
    log, store = random_log(1), TableStore(tmp_path)
    values = told(log, 1)
    write_streams(store, log)
    Movements(store).write(Reports(store).append(decoded(values), TOPIC))
    rows = read_table(tmp_path, "movements", "c")
    known = sessions(log)
    for row in rows:
        image, receivers = known[row["session"]]
        transition = image.topology.of_session(row["session"])
        assert transition is not None
        assert row["to_node"] in receivers
        assert row["transition_kind"] == transition.kind
        assert tuple(row["request_ids"]) == transition.request_ids()
        assert row["opened_epoch"] == image.epoch
        assert row["range_count"] > 0
        assert row["movement_status"] == "success"
        assert (row["began_at"].timestamp(), row["duration_s"]) == (AT_MS / 1000, 3.0)
    kinds = {row["transition_kind"] for row in rows}
    assert {"join", "leave"} <= kinds


def test_movement_without_reported_sources_has_possible_sources(tmp_path: Path) -> None:
    log, store = random_log(1), TableStore(tmp_path)
    write_streams(store, log)
    values = told(log, 1, says_sources=False)
    Movements(store).write(Reports(store).append(decoded(values), TOPIC))
    rows = read_table(tmp_path, "movements", "c")
    by_source = moved(log, told(log, 1))
    for row in rows:
        possible = row["possible_sources"]
        assert possible
        assert row["from_node"] == (possible[0] if len(possible) == 1 else None)
        assert row["to_node"] not in possible
        mine = [
            n for (s, _, to), n in by_source.items() if (s, to) == (row["session"], row["to_node"])
        ]
        assert row["bytes_moved"] == sum(mine)
    assert any(row["from_node"] is None for row in rows)


def test_reports_that_arrive_before_their_session_are_matched_later(tmp_path: Path) -> None:
    log, store = random_log(1), TableStore(tmp_path)
    values = told(log, 1)
    table, writer = Reports(store), Movements(store)
    writer.write(table.append(decoded(values), TOPIC))
    assert written(tmp_path) == {}
    write_streams(store, log)
    writer.write({("c", session) for session in sessions(log)})
    assert written(tmp_path) == moved(log, values)


def test_two_processes_count_each_report_once(tmp_path: Path) -> None:
    log, store = random_log(2), TableStore(tmp_path)
    values = told(log, 2)
    write_streams(store, log)
    one, other, writers = Reports(store), Reports(store), (Movements(store), Movements(store))
    for at in range(0, len(values), 7):
        for table, writer in zip((one, other), writers, strict=True):
            writer.write(table.append(decoded(values[at : at + 7], at), TOPIC))
    assert written(tmp_path) == moved(log, values)
    numbers = [row["commit_number"] for row in read_table(tmp_path, "reports", "c")]
    assert max(numbers) == -(-len(values) // 7)


@pytest.mark.parametrize("lost", ["movements", "streams", "reports"])
def test_lost_table_is_rebuilt_from_other_tables_and_topics(lost: str, tmp_path: Path) -> None:
    log, store = random_log(3), TableStore(tmp_path)
    values = told(log, 3)
    write_streams(store, log)
    Movements(store).write(Reports(store).append(decoded(values), TOPIC))
    before = written(tmp_path)
    shutil.rmtree(tmp_path / lost)
    write_streams(store, log)
    table = Reports(store)
    writer = Movements(store)
    writer.write(writer.behind() | table.append(decoded(values), TOPIC))
    assert written(tmp_path) == before == moved(log, values)
    assert writer.behind() == set()


def test_modified_rows_are_detected_and_repaired(tmp_path: Path) -> None:
    log, store = random_log(3), TableStore(tmp_path)
    values = told(log, 3)
    write_streams(store, log)
    writer = Movements(store)
    writer.write(Reports(store).append(decoded(values), TOPIC))
    session = min(sessions(log))
    DeltaTable(str(tmp_path / "movements")).update(
        updates={"bytes_moved": "bytes_moved + 1"}, predicate=f"session = '{session}'"
    )
    assert writer.behind() == {("c", session)}
    writer.write(writer.behind())
    assert written(tmp_path) == moved(log, values)


def test_recreated_topic_is_read_from_its_beginning(tmp_path: Path) -> None:
    log, store = random_log(1), TableStore(tmp_path)
    values = told(log, 1)
    half = len(values) // 2
    write_streams(store, log)
    table, writer = Reports(store), Movements(store)
    writer.write(table.append(decoded(values[:half]), TOPIC))
    table.begin_again("c")
    writer.write(table.append(decoded(values[half:]), {"c": "another"}))
    assert written(tmp_path) == moved(log, values)
    again = Reports(store)
    assert again.heads["c"].topic_id == "another"
    assert again.heads["c"].next_offset == len(values) - half


def report(**fields: object) -> Report:
    shared: dict[str, object] = {
        "node_id": "n4",
        "term": 1,
        "index": 1,
        "kind": OrderKind.STREAM,
        "session": "",
        "request_id": "",
        "status": ReportStatus.RUNNING,
    }
    return msgspec.convert({**shared, **fields}, Report)


def test_hostile_reports_do_not_break_the_tables(tmp_path: Path) -> None:
    log, store = random_log(1), TableStore(tmp_path)
    session, (_, (node_id, *_)) = next(iter(sessions(log).items()))
    most = 2**63 - 1
    hostile = [
        report(session=session, node_id=node_id, bytes_done=most, keys_done=most, at_ms=most),
        report(session=session, node_id=node_id, bytes_done=-5, at_ms=-most),
        report(session=session, node_id=node_id, bytes_done=most, at_ms=most),
        report(session="'; DROP TABLE movements", node_id="' OR 1=1 --", bytes_done=7),
        report(session="x" * 100_000, node_id="y" * 100_000, error="z" * 100_000),
        report(
            session=session,
            node_id=node_id,
            sources=[StreamedFrom(node_id=f"n{n}" * 300, bytes_done=most) for n in range(200)],
        ),
        report(session=session, node_id="not one of those that receive", bytes_done=9),
    ]
    poison = encode_report(hostile[0])[:10] + bytes.fromhex("80dea0ad0b") + b"n4"
    values = (*map(encode_report, hostile), poison, b"", b"\xc3\x01", b"\xc3\x01" + bytes(40))
    write_streams(store, log)
    table, writer = Reports(store), Movements(store)
    writer.write(table.append(decoded(values), TOPIC))
    rows = read_table(tmp_path, "movements", "c")
    assert {row["to_node"] for row in rows} == {node_id}
    assert all(0 <= row["bytes_moved"] <= most for row in rows)
    assert table.heads["c"].unreadable == 4
    writer.write({("c", "'; DROP TABLE movements")})
    assert len(read_table(tmp_path, "movements", "c")) == len(rows)


def test_streams_repeated_by_a_snapshot_have_one_row(tmp_path: Path) -> None:
    log, store = random_log(1), TableStore(tmp_path)
    session, (image, _) = next(iter(sessions(log).items()))
    derived = Derived(store)
    write_streams(store, log, image.epoch)
    later = msgspec.structs.replace(image, epoch=image.epoch + 50)
    derived.write_streams({"c": [*opened(EMPTY, later)]}, {"c": later.epoch})
    rows = [row for row in read_table(tmp_path, "streams", "c") if row["session"] == session]
    assert len(rows) == len({row["to_node"] for row in rows}) > 0
    assert derived.load(["c"]).streams_epochs == {"c": later.epoch}


def test_invalid_plan_is_a_fold_error_with_its_epoch() -> None:
    session, (image, _) = next(iter(sessions(random_log(1)).items()))
    transition = image.topology.of_session(session)
    assert transition is not None
    nonsense = msgspec.structs.replace(transition, plans={"dc1:3": None})
    transitions = image.topology.transitions.set(transition.transition_id, nonsense)
    topology = msgspec.structs.replace(image.topology, transitions=transitions)
    with pytest.raises(FoldError, match=f"epoch {image.epoch}"):
        list(opened(EMPTY, msgspec.structs.replace(image, topology=topology)))


def test_query_over_movements_equals_the_replay(tmp_path: Path) -> None:
    log, store = random_log(1), TableStore(tmp_path)
    values = told(log, 1)
    write_streams(store, log)
    Derived(store).write_summaries({"c": images(log)[-1]})
    Movements(store).write(Reports(store).append(decoded(values), TOPIC))
    (row,) = run(str(tmp_path), "SELECT sum(bytes_moved) AS b FROM movements").to_pylist()
    assert row["b"] == sum(moved(log, values).values())


def test_tables_of_many_sessions_are_written_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(movements_module, "SESSIONS_AT_ONCE", 2)
    log, store = random_log(1), TableStore(tmp_path)
    values = told(log, 1)
    write_streams(store, log)
    Movements(store).write(Reports(store).append(decoded(values), TOPIC))
    assert written(tmp_path) == moved(log, values)
    assert reports_module.FRESH.next_offset == 0
