"""``stele log freeze|single-user|thaw``: their commands and output, and errors of refused commands."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.cli.conftest import Server, Stele, cluster
from tests.cli.test_errors import last_line
from tests.cli.test_tables import OUTCOME

FROZEN = {
    "mode": "frozen",
    "actor": "",
    "by": "bob",
    "reason": "moving the brokers",
    "since_epoch": 41,
    "since_ms": 1_700_000_000_000,
}
TEXT = (
    "the log is frozen since epoch 41 (2023-11-14 22:13:20 UTC) by order of bob: moving the brokers"
)


def topology(server: Server, commits: dict[str, Any]) -> None:
    cluster(server, 41)
    (canned,) = server.answers.pop(("GET", "/v1/topology"))
    server.answer("GET", "/v1/topology", {**msgspec.json.decode(canned.body), "commits": commits})


def test_mode_change_prints_the_previous_restriction(server: Server, stele: Stele) -> None:
    topology(server, FROZEN)
    server.answer("POST", "/v1/commands", OUTCOME)
    frozen = stele("log", "freeze", "--reason", "x").out.splitlines()
    assert frozen[1:] == [f"before: {TEXT}", f"{TEXT}; `stele log thaw` opens it"]
    assert stele("log", "thaw").out.splitlines()[1:] == [
        f"before: {TEXT}",
        "open to all since epoch 41",
    ]


def test_command_on_a_frozen_log_fails_with_the_reason_and_a_hint(
    server: Server, stele: Stele
) -> None:
    topology(server, FROZEN)
    why = {"code": "frozen", "message": f"{TEXT}.", "hint": "`stele log thaw` opens it to all."}
    server.answer("POST", "/v1/commands", {**why, "details": {}}, 423)
    ran = stele.exits(1, "keyspace", "create", "music", "--replication", "dc1=1")
    assert "moving the brokers. `stele log thaw` opens it to all." in last_line(ran.err)
    assert TEXT in " ".join(stele("status").out.split())
