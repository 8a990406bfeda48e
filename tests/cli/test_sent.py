"""Command lines that change the cluster: the commands that they send, and lines that send none."""

from __future__ import annotations

import shlex

import msgspec
import pytest

from stele.domain import commands as c
from stele.domain.model.operations import TabletRepair
from stele.domain.model.requests import NEWEST_MS, is_id, time_ms
from stele.domain.model.schema import TableOptions
from stele.domain.names import CommitMode
from tests.cli.conftest import Server, Stele, cluster

OUTCOME = {"request_id": "r", "applied": True, "epoch": 41, "state_id": "ab", "log_id": "0a"}
EIGHT = TableOptions(min_tablet_count=8)
SONGS = "music.songs"

REQUESTS: dict[str, c.AnyCommand] = {
    "remove n4 --ignore n5 --force": c.Remove(node_id="n4", ignore_nodes=("n5",), force=True),
    "exclude n4 n5": c.Exclude(("n4", "n5")),
    "move n4": c.MoveNode(node_id="n4"),
    "move n4 --tokens=-5,7": c.MoveNode(node_id="n4", tokens=(-5, 7)),
    "rebuild n4": c.Rebuild(node_id="n4"),
    "rebuild n4 --source-dc dc2 --force": c.Rebuild(node_id="n4", source_dc="dc2", force=True),
    "cleanup": c.Cleanup(),
    "cleanup --node n2": c.Cleanup(node_id="n2"),
    "truncate library --yes": c.Truncate("library"),
    "quiesce": c.Quiesce(),
    "noop": c.NoopRequest(),
    "keyspace drop library --yes": c.DropKeyspace("library"),
    "keyspace alter library --replication dc1=3,dc2=2": c.KeyspaceRfChange(
        "library", {"dc1": 3, "dc2": 2}
    ),
    "table repair music.songs": c.RepairTable(SONGS),
    "table repair music.songs --nodes n1,n2 --nodes n3 --dcs dc1": c.RepairTable(
        SONGS, ("n1", "n2", "n3"), ("dc1",)
    ),
    "table repair music.songs --tablet 3 --dcs dc1,dc2": c.RepairTablets(
        (TabletRepair(table=SONGS, tablet=3, dcs=("dc1", "dc2")),)
    ),
    "features enable tablets": c.EnableFeatures(("tablets",)),
    "cdc new-generation": c.NewCdcGeneration(),
    "cdc new-generation --force": c.NewCdcGeneration(force=True),
    "catch-up reconfigure": c.ReconfigureCatchUp(),
    "catch-up reconfigure 3": c.ReconfigureCatchUp(replication="3"),
    "catch-up reconfigure dc1=2 dc2=1": c.ReconfigureCatchUp(replication="dc1=2,dc2=1"),
    "catch-up reconfigure dc1=2,dc2=1": c.ReconfigureCatchUp(replication="dc1=2,dc2=1"),
    "catch-up reconfigure --retire c-1 --retire c-2": c.ReconfigureCatchUp(retired=("c-1", "c-2")),
}
"""Requests, which the coordinator carries out."""

AT_ONCE: dict[str, tuple[c.AnyCommand, str]] = {
    "found": (c.FoundCluster(), "log 0a holds the cluster; epoch 41"),
    "keyspace create music --replication dc1=2 --tablets --initial-tablets 8": (
        c.CreateKeyspace("music", {"dc1": 2}, tablets=True, initial_tablets=8),
        "keyspace music exists since epoch 41",
    ),
    "table create music.songs --min-tablet-count 8": (
        c.CreateTable(SONGS, EIGHT),
        "table music.songs exists since epoch 41",
    ),
    "table create music.by_band --colocate-with music.songs": (
        c.CreateTable("music.by_band", colocated_with=SONGS),
        "table music.by_band exists since epoch 41",
    ),
    "table alter music.songs --min-tablet-count 8": (
        c.AlterTable(SONGS, EIGHT),
        "table music.songs since epoch 41: has other options",
    ),
    "settings set stream_mib_per_s 20": (
        c.SetSetting("stream_mib_per_s", "20"),
        "stream_mib_per_s is 20 since epoch 41",
    ),
    "settings reset stream_mib_per_s": (
        c.SetSetting("stream_mib_per_s", ""),
        "stream_mib_per_s has its default since epoch 41",
    ),
    "features forget coordinator/c-1": (
        c.ForgetService("coordinator/c-1"),
        "coordinator/c-1 is forgotten since epoch 41",
    ),
    "catch-up forget c-3 --force": (
        c.ForgetReplica(replica_id="c-3", force=True),
        "c-3 is forgotten since epoch 41",
    ),
    "log freeze": (c.RestrictCommits(mode=CommitMode.FROZEN), ""),
    "log single-user bob": (c.RestrictCommits(mode=CommitMode.SINGLE_USER, actor="bob"), ""),
    "log thaw": (c.RestrictCommits(mode=CommitMode.OPEN), "open to all since epoch 41"),
}
"""Commands that take effect at once, with the line that says so."""

REFUSED = {
    "move n4 --tokens many": "'many' is not a list of tokens",
    "remove n4 n5 --request-id mine": "each removal has an id of its own",
    "join http://n5:1 --force": "--replace NODE",
    "keyspace alter library --replication dc1": "is neither DC=COPIES nor DC=RACK,RACK",
    "log freeze": "--reason",
    "log single-user bob": "--reason",
    "table create songs": "'songs' names no table. Write KEYSPACE.TABLE;",
    "table create music.by_band --colocate-with songs": "'songs' names no table",
    "table alter music.": "'music.' names no table. Write KEYSPACE.TABLE;",
    "table drop music": "'music' names no table. Write KEYSPACE.TABLE;",
    "table snapshot delete nightly --tag other": "taken",
    "tablet list music": "'music' names no table. Write KEYSPACE.TABLE;",
    "tablet move songs 0 --from n1 --to n2": "'songs' names no table. Write KEYSPACE.TABLE;",
    "catch-up reconfigure --retire c-1 --cancel": "--cancel",
    f"id --after={NEWEST_MS}": f"< {NEWEST_MS}",
}
"""Lines that are refused before anything is sent, with a part of the error."""


@pytest.mark.parametrize("line", [*REQUESTS, *AT_ONCE])
def test_line_sends_its_command_under_the_printed_id(
    server: Server, stele: Stele, line: str
) -> None:
    cluster(server, 41)
    server.answer("POST", "/v1/commands", OUTCOME)
    waits = line in REQUESTS or line.startswith(("keyspace", "table"))
    ran = stele.ok(*shlex.split(line), "--reason", "a rehearsal", *["--no-wait"] * waits)
    (asked,) = server.asked_for("/v1/commands")
    envelope = msgspec.json.decode(asked.body, type=c.Envelope)
    wanted, told = AT_ONCE.get(line) or (REQUESTS[line], "accepted at epoch 41")
    assert (envelope.command, envelope.reason) == (wanted, "a rehearsal")
    first, *rest = ran.out.splitlines()
    assert first == f"request {envelope.request_id}"
    assert told in "\n".join(rest)
    if line in REQUESTS:
        assert rest[-1] == f"follow it with: stele request follow {envelope.request_id}"


@pytest.mark.parametrize("line", REFUSED)
def test_line_is_refused_before_anything_is_sent(server: Server, stele: Stele, line: str) -> None:
    assert REFUSED[line] in stele.exits(2, *shlex.split(line)).err
    assert not server.asked


def test_refused_found_prints_the_reason(server: Server, stele: Stele) -> None:
    why = {
        "code": "older_cluster",
        "message": "Orders are there.",
        "hint": "Recover.",
        "details": {},
    }
    server.answer("POST", "/v1/commands", why, 412)
    ran = stele("found")
    assert ran.exit_code != 0
    assert "Orders are there." in ran.err


@pytest.mark.parametrize("after", [0, 1 << 45, NEWEST_MS - 1])
def test_new_id_is_later_than_the_given_time(stele: Stele, after: int) -> None:
    made = stele("id", f"--after={after}").out.strip()
    assert is_id(made)
    assert time_ms(made) > after
