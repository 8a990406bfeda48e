"""``stele settings``: the list with defaults, changes, and what is no setting."""

from __future__ import annotations

import json

from tests.cli.conftest import Server, Stele, at

SET = {"stream_mib_per_s": "50", "colour": "blue"}


def settings(server: Server) -> None:
    server.answer("GET", "/v1/settings", {**at(7), "features": [], "settings": SET})
    outcome = {"request_id": "r", "applied": True, "log_id": "", **at(8), "rejection": None}
    server.answer("POST", "/v1/commands", outcome)


def test_the_list_shows_values_defaults_and_what_they_are(server: Server, stele: Stele) -> None:
    settings(server)
    shown = stele("settings", "list")
    assert shown.exit_code == 0, shown.err
    lines = {line.split()[0]: line for line in shown.out.splitlines() if line.strip()}
    assert "50" in lines["stream_mib_per_s"] and "1000000" in lines["stream_mib_per_s"]
    assert "groups of ranges" in lines["stream_concurrency"]
    assert "blue" in lines["colour"]
    found = json.loads(stele("settings", "list", "--json").out)
    assert found["settings"] == SET


def test_set_and_reset_send_their_commands(server: Server, stele: Stele) -> None:
    settings(server)
    changed = stele("settings", "set", "stream_mib_per_s", "20", "--reason", "the disks are slow")
    assert "stream_mib_per_s is 20 since epoch 8" in changed.out, changed.err
    assert "has its default" in stele("settings", "reset", "stream_mib_per_s").out
    sent = [json.loads(asked.body) for asked in server.asked_for("/v1/commands")]
    assert [envelope["command"] for envelope in sent] == [
        {"type": "set_setting", "name": "stream_mib_per_s", "value": "20"},
        {"type": "set_setting", "name": "stream_mib_per_s", "value": ""},
    ]
    assert sent[0]["reason"] == "the disks are slow"


def test_what_nobody_reads_or_makes_no_sense_is_not_sent(server: Server, stele: Stele) -> None:
    unknown = stele("settings", "set", "stream_mb", "20")
    assert unknown.exit_code == 2
    assert "stream_mib_per_s" in unknown.err
    none = stele("settings", "set", "stream_concurrency", "0")
    assert none.exit_code == 2
    assert "from 1 to 64" in none.err
    assert not server.asked_for("/v1/commands")
