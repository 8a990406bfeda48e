"""``stele catch-up`` and ``stele log``: output about the archive, and the commands that they send."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stele.domain.model.archive import ArchiveFact
from stele.runtime.answers.metadata_log import CatchUpAnswer
from stele.runtime.request_ids import new_request_id
from stele.words.facts import ARCHIVE
from tests.cli.conftest import Server, Stele, at, cluster, request
from tests.cli.test_changes import ACCEPTED, sent
from tests.cli.test_reads import IDLE

LOG = "00" * 16


def announced(epoch: int, content: str = "a") -> dict[str, Any]:
    return {
        "epoch": epoch,
        "state_id": LOG,
        "hash": 64 * content,
        "size_bytes": 2_500_000,
        "first_epoch": 1,
        "anchor_offset": 3 * epoch,
        "log_id": LOG,
        "announced_ms": 1_000,
    }


def replica(number: int, state: str = "member", *snapshots: dict[str, Any]) -> dict[str, Any]:
    return {
        "replica_id": f"c-{number}",
        "dc": "dc1",
        "rack": f"r{number}",
        "address": f"http://10.0.0.{number}:8086",
        "state": state,
        "since_epoch": 5,
        "snapshots": snapshots,
    }


def agreed(epoch: int, *members: str) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "offset": 3 * epoch,
        "hash": 64 * "a",
        "members": members,
        "since_ms": 1_000,
    }


def archive(server: Server, **more: Any) -> None:
    three = [replica(1, "member", announced(90), announced(100)), replica(2, "member")]
    answer = {
        **at(110),
        "archive_replication": "3",
        "replicas": [*three, {**replica(3, "candidate", announced(100, "b")), "diverged": [100]}],
        "readers": [{"reader_id": "spark", "epoch": 95, "moved_ms": 1_000}],
        "agreed": [agreed(100, "c-1", "c-2"), agreed(90, "c-1", "c-2")],
        "archive": {"asked_epoch": 0, "truncated": None},
        "truncation": {
            "epoch": 90,
            "offset": 270,
            "lost_readers": ["old"],
            "why_not_more": "reader spark is at epoch 95",
        },
        **more,
    }
    msgspec.convert(answer, CatchUpAnswer)
    server.answer("GET", "/v1/catch_up", answer)


HEARD = {
    "c-1": {"silent_for_s": 1.25, "is_down": False, "epoch": 108},
    "c-2": {"silent_for_s": 700.0, "is_down": True, "epoch": 80},
    "c-3": {"silent_for_s": None, "is_down": True, "epoch": 0},
}
WAIT = {
    "request_ids": [],
    "waiting_for": "a catch-up replica that is free and up, in place of c-2, which is dead",
    "blockers": [],
    "kind": "archive",
}


def row(shown: str, name: str) -> list[str]:
    """Return the row that begins with the cell, in the last table that has one."""
    return [line.split() for line in shown.splitlines() if line.startswith(name)][-1]


def test_show_lists_replicas_with_archived_epochs_and_liveness(
    server: Server, stele: Stele
) -> None:
    archive(server)
    server.answer("GET", "/v1/progress", {**IDLE, "replicas": HEARD, "waits": [WAIT]})
    ran = stele.ok("catch-up", "show")
    assert "members    2; archive_replication is 3" in ran.out
    assert "of epoch 100, which c-1 c-2 have" in ran.out
    assert "has all epochs" in ran.out
    assert "up to epoch 90: reader spark is at epoch 95" in ran.out
    assert "c-3 has diverged: its snapshot of epoch 100 is not the members'" in ran.out
    assert "waits for a catch-up replica that is free and up, in place of c-2" in ran.out
    assert row(ran.out, "c-1")[3:] == [
        *["member", "1.2", "s", "ago", "2", "100", "1", "to", "100", "2.5", "MB"],
        "http://10.0.0.1:8086",
    ]
    assert row(ran.out, "c-2")[3:6] == ["member", "down,", "11"]
    assert "none announced" in next(x for x in ran.out.splitlines() if x.startswith("c-2"))
    assert row(ran.out, "c-3")[3:5] == ["candidate", "down"]
    assert row(ran.out, "spark")[1] == "95"


def test_show_works_without_a_coordinator_and_as_json(server: Server, stele: Stele) -> None:
    truncated = {"epoch": 50, "offset": 150, "log_id": LOG, "hash": 64 * "a", "members": ["c-1"]}
    archive(server, agreed=[], archive={"asked_epoch": 7, "truncated": truncated})
    ran = stele.ok("catch-up", "show")
    assert "none that a majority of the members has" in ran.out
    assert "begins at epoch 50" in ran.out
    assert row(ran.out, "c-1")[4] == "unknown"
    shown = msgspec.json.decode(stele("catch-up", "show", "--json").out)
    assert shown["catch_up"]["archive"]["truncated"]["epoch"] == 50 and shown["replicas"] == {}


STANDS = {
    "replica_id": "c-1",
    "log_id": "0a" * 16,
    "epoch": 196_627,
    "trouble": "The log cannot be read any further: run `stele recover`.",
}


def test_show_has_the_reason_why_a_replica_stopped_reading(
    server: Server, stele: Stele, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log cannot contain the reason, since the replica does not read it."""
    monkeypatch.setenv("STELE_CATCH_UP_URLS", server.url)
    archive(server, replicas=[], agreed=[])
    server.answer("GET", "/v1/archive", STANDS)
    assert f"c-1 ({server.url}): {STANDS['trouble']}" in stele.ok("catch-up", "show").out
    shown = msgspec.json.decode(stele("catch-up", "show", "--json").out)
    assert shown["troubles"] == {server.url: STANDS["trouble"]}


def test_status_of_an_empty_log_shows_the_older_log_of_a_replica(
    server: Server, stele: Stele, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STELE_CATCH_UP_URLS", server.url)
    monkeypatch.delenv("STELE_COORDINATOR_URLS")
    cluster(server, nodes=[], keyspaces=[])
    (topology,) = server.answers["GET", "/v1/topology"]
    empty = {**msgspec.json.decode(topology.body), "cluster": "", "cluster_id": ""}
    server.answers["GET", "/v1/topology"].clear()
    server.answer("GET", "/v1/topology", empty)
    server.answer("GET", "/v1/archive", {**STANDS, "epoch": 0, "log_id": "00" * 16})
    server.answer("GET", "/v1/archive", STANDS)
    new = stele("status")
    assert (new.exit_code, new.out) == (
        0,
        "The log is empty: there is no cluster yet. `stele found` creates it.\n",
    )
    lost = stele.exits(1, "status")
    assert lost.out == (
        f"The log is empty, but catch-up replica c-1 holds epoch 196627 of log {'0a' * 16}: `stele recover`"
        " continues from there.\n"
    )


def test_reconfigure_cancel_cancels_the_open_request(server: Server, stele: Stele) -> None:
    mine = {"kind": "reconfigure_catch_up", "archive_replication": "3", "node_id": ""}
    rows = [request("running"), request("running", request_id=new_request_id(), **mine)]
    cluster(server, requests=rows)
    server.answer("POST", "/v1/commands", ACCEPTED)
    ran = stele.ok("catch-up", "reconfigure", "--cancel")
    assert sent(server)["command"] == {"type": "cancel", "target": rows[1]["request_id"]}
    assert "is cancelled since epoch 8" in ran.out


def test_reconfigure_cancel_fails_without_an_open_request(server: Server, stele: Stele) -> None:
    cluster(server, requests=[request("running")])
    ran = stele.exits(1, "catch-up", "reconfigure", "--cancel")
    assert "No change of the members is under way" in ran.err
    assert stele("catch-up", "reconfigure", "3", "--cancel").exit_code == 2


def test_why_shows_waits_of_the_archive_without_open_requests(server: Server, stele: Stele) -> None:
    cluster(server)
    server.answer("GET", "/v1/progress", {**IDLE, "waits": [WAIT]})
    assert f"the archive waits for {WAIT['waiting_for']}" in stele.ok("why").out


# The log.


def test_log_snapshot_waits_until_a_majority_has_it(server: Server, stele: Stele) -> None:
    server.answer("POST", "/v1/commands", {**ACCEPTED, "epoch": 105})
    archive(server)
    archive(server, agreed=[agreed(105, "c-1", "c-2")])
    ran = stele.ok("log", "snapshot")
    assert sent(server)["command"] == {"type": "ask_snapshot"}
    assert "snapshot of epoch 105 requested" in ran.out
    assert "snapshot of epoch 105 is on c-1 c-2" in ran.out


def test_log_snapshot_fails_if_no_majority_takes_it_in_time(server: Server, stele: Stele) -> None:
    server.answer("POST", "/v1/commands", {**ACCEPTED, "epoch": 105})
    archive(server)
    ran = stele.exits(1, "log", "snapshot", "--timeout", "0.4")
    assert "no majority of the members has it after 0.4 s" in ran.out
    assert stele("log", "snapshot", "--no-wait").exit_code == 0


def test_truncate_dry_run_shows_the_limit_and_its_reason(server: Server, stele: Stele) -> None:
    archive(server)
    ran = stele.ok("log", "truncate", "--dry-run")
    assert "epochs 1 to 89 can be deleted" in ran.out
    assert "why not further: reader spark is at epoch 95" in ran.out
    assert "lost readers, for which truncation does not wait: old" in ran.out
    assert not server.asked_for("/v1/commands")
    assert server.asked_for("/v1/catch_up")[0].query["level"] == ["linearizable"]


def test_truncate_sends_the_newest_possible_epoch(server: Server, stele: Stele) -> None:
    archive(server)
    server.answer("POST", "/v1/commands", ACCEPTED)
    ran = stele.ok("log", "truncate")
    assert sent(server)["command"] == {"type": "truncate_log", "epoch": 90, "offset": 270}
    assert "the log begins at epoch 90, offset 270, since epoch 8" in ran.out


def test_truncate_fails_with_the_reason_if_nothing_can_be_deleted(
    server: Server, stele: Stele
) -> None:
    archive(server, truncation={"why_not_more": "no catch-up replica is a member"})
    ran = stele.exits(1, "log", "truncate")
    assert not server.asked_for("/v1/commands")
    assert "Nothing of the log can be deleted now" in ran.err
    assert "no catch-up replica is a member" in ran.err
    ran = stele.ok("log", "truncate", "--dry-run")
    assert "nothing can be deleted: the log begins at epoch 1" in ran.out


def test_readers_are_listed_and_forgotten(server: Server, stele: Stele) -> None:
    archive(server)
    server.answer("POST", "/v1/commands", ACCEPTED)
    assert row(stele("log", "readers").out, "spark")[1] == "95"
    shown = msgspec.json.decode(stele("log", "readers", "--json").out)
    assert shown["readers"][0]["reader_id"] == "spark" and shown["epoch"] == 110
    stele.ok("log", "readers", "forget", "spark")
    assert sent(server)["command"] == {"type": "forget_reader", "reader_id": "spark"}


def test_each_fact_of_the_archive_has_a_text() -> None:
    assert {*ARCHIVE} == {fact.__name__ for fact in ArchiveFact.__args__}
