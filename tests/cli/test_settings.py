"""``stele settings``: the list with defaults, changes, and invalid settings."""

from __future__ import annotations

import json

from stele.domain.model.requests import time_ms
from stele.domain.model.settings import KNOWN
from stele.runtime.request_ids import new_request_id
from tests.cli.conftest import Server, Stele, at

SET = {"stream_mib_per_s": "50", "colour": "blue"}


def settings(server: Server) -> None:
    server.answer("GET", "/v1/settings", {**at(7), "features": [], "settings": SET})
    outcome = {"request_id": "r", "applied": True, "log_id": "", **at(8), "rejection": None}
    server.answer("POST", "/v1/commands", outcome)


def test_list_shows_values_defaults_and_descriptions(server: Server, stele: Stele) -> None:
    settings(server)
    shown = stele.ok("settings", "list")
    lines = {line.split()[0]: line for line in shown.out.splitlines() if line.strip()}
    assert "50" in lines["stream_mib_per_s"] and "1000000" in lines["stream_mib_per_s"]
    assert "groups of ranges" in lines["stream_concurrency"]
    assert "blue" in lines["colour"]
    found = json.loads(stele("settings", "list", "--json").out)
    assert found["settings"] == SET
    rows = {row["name"]: row for row in found["known"]}
    assert {*rows} == {*KNOWN}, "all that the table shows"
    assert rows["stream_mib_per_s"]["value"] == "50"
    assert rows["snapshot_mb"]["default"] == "64" and "MB of records" in rows["snapshot_mb"]["what"]


EXPIRED = {
    "code": "request_id_expired",
    "message": "The request id is older than what the log remembers.",
    "hint": "Send it under a new id.",
}


def test_expired_request_id_is_replaced_by_one_after_the_horizon(
    server: Server, stele: Stele
) -> None:
    """A fast clock may have raised the horizon."""
    horizon_ms = time_ms(new_request_id()) + 240_000
    refused = {**EXPIRED, "details": {"horizon_ms": str(horizon_ms), "request_id": "x"}}
    server.answer("POST", "/v1/commands", refused, 410)
    settings(server)
    ran = stele("settings", "set", "stream_mib_per_s", "20")
    assert "stream_mib_per_s is 20 since epoch 8" in ran.out, ran.err
    first, again = [json.loads(asked.body) for asked in server.asked_for("/v1/commands")]
    assert time_ms(first["request_id"]) < horizon_ms < time_ms(again["request_id"])
    assert again == {**first, "request_id": again["request_id"]}
    assert f"request {again['request_id']} in its place" in ran.out
    assert ran.out.index(first["request_id"]) < ran.out.index(again["request_id"])


def test_given_request_id_is_never_replaced(server: Server, stele: Stele) -> None:
    request_id = new_request_id()
    refused = {**EXPIRED, "details": {"horizon_ms": str(time_ms(request_id) + 1)}}
    server.answer("POST", "/v1/commands", refused, 410)
    ran = stele.exits(1, "settings", "set", "stream_mib_per_s", "20", "--request-id", request_id)
    assert "older than what the log remembers" in ran.err
    assert len(server.asked_for("/v1/commands")) == 1


def test_command_that_may_be_decided_is_not_sent_under_a_new_id(
    server: Server, stele: Stele
) -> None:
    busy = {"code": "unavailable", "message": "No answer in time.", "hint": ""}
    server.answer("POST", "/v1/commands", busy, 503)
    refused = {**EXPIRED, "details": {"horizon_ms": str(time_ms(new_request_id()) + 1)}}
    server.answer("POST", "/v1/commands", refused, 410)
    ran = stele.exits(1, "settings", "set", "stream_mib_per_s", "20")
    assert "older than what the log remembers" in ran.err
    assert len({*(asked.body for asked in server.asked_for("/v1/commands"))}) == 1


def test_unknown_settings_and_invalid_values_are_not_sent(server: Server, stele: Stele) -> None:
    assert "stream_mib_per_s" in stele.exits(2, "settings", "set", "stream_mb", "20").err
    none = stele.exits(2, "settings", "set", "stream_concurrency", "0")
    assert "stream_concurrency cannot be '0': it is a whole number from 1 to 64." in none.err
    for value in ("", "default"):
        reset = stele("settings", "set", "stream_concurrency", value)
        assert (reset.exit_code, "`stele settings reset stream_concurrency`" in reset.err) == (
            2,
            True,
        )
    settings(server)
    reset = stele.exits(2, "settings", "reset", "stream_mib_per_sec")
    assert "There is no setting 'stream_mib_per_sec'. Did you mean stream_mib_per_s?" in reset.err
    assert not server.asked_for("/v1/commands")


def test_unknown_setting_can_be_reset(server: Server, stele: Stele) -> None:
    settings(server)
    assert stele("settings", "reset", "colour").exit_code == 0
    (asked,) = server.asked_for("/v1/commands")
    assert json.loads(asked.body)["command"]["name"] == "colour"


def test_barrier_level_is_validated_and_an_unsafe_one_is_marked(
    server: Server, stele: Stele
) -> None:
    unsafe = {"progress_barrier_level": "ONE"}
    server.answer("GET", "/v1/settings", {**at(7), "features": [], "settings": unsafe})
    settings(server)
    wrong = stele.exits(2, "settings", "set", "progress_barrier_level", "most")
    assert "one of ALL, EACH_QUORUM, QUORUM" in wrong.err
    assert stele("settings", "set", "progress_barrier_level", "ONE", "--force").exit_code == 0
    (sent,) = [json.loads(asked.body) for asked in server.asked_for("/v1/commands")]
    command = {"type": "set_setting", "name": "progress_barrier_level", "value": "ONE"}
    assert sent["command"] == {**command, "force": True}
    undone = stele.exits(2, "settings", "set", "progress_barrier_level", "ONE", "--no-force")
    assert "--no-force" in undone.err
    shown = stele("settings", "list").out
    assert any(
        "progress_barrier_level" in line and "ONE (unsafe)" in line for line in shown.splitlines()
    )
