"""``stele balance off|on``: the commands that they send, and their output and that of lists."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.cli.output import clock
from stele.domain.model.requests import uuid7
from stele.words import GivenError
from stele.words.given import MOST_S, span_ms
from tests.cli.conftest import Server, Stele, at
from tests.cli.test_tables import KEYSPACE, MOVE, OUTCOME, SONGS, sent

ASKED_MS = 1_795_000_000_000
REQUEST_ID = uuid7(ASKED_MS, 7)
OFF = {"off_since": 30, "actor": "ada", "reason": "the night", "until_ms": ASKED_MS}


def state(
    server: Server,
    *requests: dict[str, Any],
    cluster: dict[str, Any] | None = None,
    keyspace: dict[str, Any] | None = None,
    table: dict[str, Any] | None = None,
) -> None:
    """Return the disabled parts by the log."""
    page = {**at(41), "next_cursor": ""}
    found = {**KEYSPACE, "balancing": keyspace or {}}
    answer = {**page, "keyspaces": [found], "balancing": cluster or {}}
    server.answer("GET", "/v1/keyspaces", answer)
    songs = {**SONGS, "balancing": table or {}}
    server.answer("GET", "/v1/tables", {**page, "tables": [songs]})
    server.answer(
        "GET", "/v1/requests", {**page, "since_epoch": 0, "since_ms": 0, "requests": requests}
    )
    rows = {"placement": "tablets:t-1", "keyspaces": ["music.songs"], "ranges": 2, "rows": []}
    server.answer("GET", "/v1/placements", {**page, **rows})


@pytest.mark.parametrize("name", ["", "music", "music.songs"])
def test_balance_off_counts_its_times_from_the_request_id(
    server: Server, stele: Stele, name: str
) -> None:
    server.answer("POST", "/v1/commands", OUTCOME)
    state(server)
    said = (
        *("--for", "2h", "--abort-after", "1m30s", "--reason", "the night"),
        *("--request-id", REQUEST_ID),
    )
    ran = stele.ok("balance", "off", *([name] if name else []), *said)
    until_ms = ASKED_MS + 7_200_000
    assert sent(server) == {
        "type": "switch_balancing_off",
        "name": name,
        "until_ms": until_ms,
        "abort_at_ms": ASKED_MS + 90_000,
    }
    (asked,) = server.asked_for("/v1/commands")
    assert msgspec.json.decode(asked.body)["request_id"] == REQUEST_ID
    of = f"balancing of {name} is" if name else "balancing is"
    assert ran.out.splitlines() == [
        f"request {REQUEST_ID}",
        f"{of} off since epoch 41, until {clock(until_ms)}",
    ]


def test_balance_off_prints_the_number_of_moves_that_continue(server: Server, stele: Stele) -> None:
    server.answer("POST", "/v1/commands", OUTCOME)
    of_another_user = {**MOVE, "request_id": "r-9", "actor": "ada"}
    state(server, MOVE, of_another_user)
    ran = stele("balance", "off", "music")
    assert ran.out.splitlines()[-1] == (
        "1 move or resize of the balancer continues; nothing cancels it"
    )
    ran = stele("balance", "off", "music", "--abort-after", "60s")
    assert ran.out.splitlines()[-1] == (
        "1 move or resize of the balancer continues; those that are not done after 60.0 s are cancelled"
    )
    assert "continues" not in stele("balance", "off", "jazz").out


@pytest.mark.parametrize(
    "words",
    [
        ("--for", "2"),
        ("--for", "two hours"),
        ("--for", "0s"),
        ("--abort-after", "-5s"),
        ("--for", "5s and more"),
        ("--for", "9999999999d"),
        ("--request-id", "r-1"),
    ],
)
def test_invalid_duration_is_refused_before_anything_is_sent(
    server: Server, stele: Stele, words: tuple[str, str]
) -> None:
    ran = stele.exits(2, "balance", "off", f"{words[0]}={words[1]}")
    assert words[1] in ran.err and ("For example" in ran.err or "stele id" in ran.err)
    assert not server.asked


@given(st.integers(1, 1000 * MOST_S))
def test_duration_with_units_is_parsed(ms: int) -> None:
    seconds, rest = divmod(ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    assert span_ms(f"{days}d{hours}h {minutes}m{seconds}s{rest}ms", "--for") == ms
    assert span_ms(f"{ms}ms", "--for") == ms


def test_empty_duration_is_refused() -> None:
    with pytest.raises(GivenError, match="is not a span of time"):
        span_ms("", "--for")


def test_balance_on_lists_levels_that_are_still_off(server: Server, stele: Stele) -> None:
    server.answer("POST", "/v1/commands", OUTCOME)
    state(server, cluster=OFF, table={**OFF, "until_ms": 0})
    ran = stele("balance", "on", "music")
    assert sent(server) == {"type": "switch_balancing_on", "name": "music", "off_since": 0}
    assert ran.out.splitlines()[1:] == [
        "balancing of music is on since epoch 41",
        f"still: balancing is off since epoch 30 by ada (the night), until {clock(ASKED_MS)}",
        "still: balancing of music.songs is off since epoch 30 by ada (the night)",
    ]


def test_lists_of_tables_and_keyspaces_show_disabled_balancing(
    server: Server, stele: Stele
) -> None:
    state(server, cluster=OFF, keyspace=OFF)
    shown = stele("table", "list").out.splitlines()
    assert f"balancing is off with its keyspace until {clock(ASKED_MS)}" in shown[2]
    assert shown[3].startswith("balancing is off since epoch 30 by ada")
    shown = stele("keyspace", "list").out.splitlines()
    assert f"balancing is off until {clock(ASKED_MS)}" in shown[2]
    assert shown[3].startswith("balancing is off since epoch 30 by ada")
    server.answers.clear()
    state(server, table=OFF)
    assert f"  balancing is off until {clock(ASKED_MS)}" in stele("table", "list").out
    assert "balancing" not in stele("keyspace", "list").out
