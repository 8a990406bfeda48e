"""``stele found``."""

from __future__ import annotations

import msgspec

from tests.cli.conftest import Server, Stele


def test_found_prints_the_log_id(server: Server, stele: Stele) -> None:
    outcome = {"request_id": "r", "applied": True, "epoch": 1, "state_id": "", "log_id": "ab" * 16}
    server.answer("POST", "/v1/commands", outcome)
    ran = stele("found", "--reason", "a new cluster")
    assert ran.exit_code == 0
    assert f"log {'ab' * 16} holds the cluster; epoch 1" in ran.out
    (asked,) = server.asked_for("/v1/commands")
    assert msgspec.json.decode(asked.body)["command"]["type"] == "found"


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
