"""``stele log tail``, ``search`` and ``stats`` against canned answers."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest

from stele.cli import history
from stele.cli.errors import UsageError
from stele.cli.notice import ProgressLine
from stele.cli.options import moment_ms
from tests.cli.conftest import Server, Stele, Terminal, at, cluster, request

COLOUR = {"type": "SettingChanged", "name": "colour", "value": "red"}
NODE = {"type": "NodeNumbered", "number": 3, "node_id": "n4"}


def epoch(number: int, *facts: dict[str, Any], actor: str = "ada") -> dict[str, Any]:
    return {"epoch": number, "command": "set_setting", "actor": actor, "facts": facts}


def event(number: int, *facts: dict[str, Any]) -> str:
    data = msgspec.json.encode(epoch(number, *facts)).decode()
    return f"id: {number}\nevent: epoch\ndata: {data}\n\n"


def found(*epochs: dict[str, Any], looked_at: int = 9, next_before: int = 0) -> dict[str, Any]:
    return {"newest": 7, "looked_at": looked_at, "next_before": next_before, "epochs": epochs}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "RECONNECT_WAIT_S", 0.01)


def shown(out: str) -> list[int]:
    return [msgspec.json.decode(line)["epoch"] for line in out.splitlines()]


def test_tail_shows_each_epoch_once_over_broken_streams(server: Server, stele: Stele) -> None:
    """Streams end, repeat epochs, skip epochs and fail. The last answer ends the command."""
    cluster(server, epoch=7)
    server.answer("GET", "/v1/epochs", [epoch(number, COLOUR) for number in range(1, 8)])
    server.stream("/v1/epochs", ": ping\n\n" + event(8, COLOUR) + event(9, COLOUR))
    server.stream("/v1/epochs", event(9, COLOUR) + event(10, COLOUR) + event(12, COLOUR))
    server.answer("GET", "/v1/epochs", {"code": "busy", "message": "not yet"}, status=503)
    server.stream("/v1/epochs", event(11) + event(12, COLOUR) + "id: 13\ndata: {")
    server.answer("GET", "/v1/epochs", {"code": "gone", "message": "That is all."}, status=404)
    ran = stele("log", "tail", "--last", "2", "-f", "--json")
    assert shown(ran.out) == [6, 7, 8, 9, 10, 12], "11 is a barrier"
    assert "That is all." in ran.err
    first, *streams = server.asked_for("/v1/epochs")
    assert "last-event-id" not in first.headers
    resumed = [asked.headers["last-event-id"] for asked in streams]
    assert resumed == ["7", "9", "10", "10", "12"]


def test_tail_fails_if_no_stream_delivers_an_epoch_in_time(server: Server, stele: Stele) -> None:
    cluster(server, epoch=7)
    server.stream("/v1/epochs", event(9, COLOUR))
    ran = stele.exits(3, "log", "tail", "--last", "0", "--follow", "--timeout", "0.2")
    assert "Streams end before epoch 8." in ran.err


def test_tail_shows_only_the_selected_facts(server: Server, stele: Stele) -> None:
    part = {"type": "Part", "staging_id": "s", "index": 0, "facts": [COLOUR, NODE]}
    cluster(server, epoch=7)
    path = "/v1/epochs/search"
    server.answer("GET", path, found(epoch(7, COLOUR, NODE), looked_at=3, next_before=5))
    server.answer("GET", path, found(epoch(4, part), next_before=2))
    server.stream("/v1/epochs", event(8, COLOUR) + event(9, NODE, COLOUR))
    server.answer("GET", "/v1/epochs", {"code": "gone", "message": "That is all."}, status=404)
    ran = stele("log", "tail", "--facts", "NodeNumbered", "--last", "2", "--follow", "--json")
    shown = [msgspec.json.decode(line) for line in ran.out.splitlines()]
    assert [raw["epoch"] for raw in shown] == [4, 7, 9]
    assert [raw["facts"] for raw in shown] == [[{**part, "facts": [NODE]}], [NODE], [NODE]]
    asked = [each.query for each in server.asked_for(path)]
    assert [(q["facts"], q["limit"], q["before"]) for q in asked] == [
        (["NodeNumbered"], ["2"], ["8"]),
        (["NodeNumbered"], ["1"], ["5"]),
    ]


def test_tail_prints_actor_and_change_on_one_line(server: Server, stele: Stele) -> None:
    cluster(server, epoch=1)
    server.answer("GET", "/v1/epochs", [epoch(1, COLOUR)])
    (line,) = stele("log", "tail").out.splitlines()
    assert line.split() == ["1", "set_setting", "ada", "colour", "=", "red"]


@pytest.mark.parametrize("command", ["tail", "search"])
def test_reason_follows_the_actor(server: Server, stele: Stele, command: str) -> None:
    cluster(server, epoch=1)
    row = {**epoch(1, COLOUR), "reason": "blue was ugly"}
    server.answer("GET", "/v1/epochs", [row])
    server.answer("GET", "/v1/epochs/search", found(row))
    line, *_ = stele("log", command).out.splitlines()
    assert line.endswith("  ada: blue was ugly  colour = red")


def test_search_reads_pages_until_the_limit_and_prints_the_next_epoch(
    server: Server, stele: Stele
) -> None:
    cluster(server, epoch=7)
    path = "/v1/epochs/search"
    server.answer("GET", path, found(looked_at=100, next_before=6))
    server.answer("GET", path, found(epoch(5, COLOUR), looked_at=50, next_before=5))
    server.answer("GET", path, found(epoch(3, NODE, actor="bob"), looked_at=5, next_before=3))
    ran = stele("log", "search", "--last", "2", "--before", "7", "--about", "n4", "--refused")
    lines = ran.out.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["3", "5"]
    assert lines[2].startswith("found 2 epochs; looked at 155 epochs in ")
    assert lines[2].endswith(": --before 3 continues the search")
    asked = [each.query for each in server.asked_for(path)]
    assert [(q["before"], q["limit"]) for q in asked] == [
        (["7"], ["2"]),
        (["6"], ["2"]),
        (["5"], ["1"]),
    ]
    assert all((q["about"], q["refused"]) == (["n4"], ["true"]) for q in asked)
    assert asked[0].keys() == {"about", "refused", "before", "limit"}, "what is empty is not asked"


def test_search_about_an_unknown_name_reports_it(server: Server, stele: Stele) -> None:
    """Otherwise a misspelt name would look like a name without history."""
    cluster(server, epoch=7)
    table = {"table_id": "id-2", "keyspace_id": "id-1", "name": "books"}
    server.answer("GET", "/v1/tables", {**at(7), "tables": [table]})
    server.answer("GET", "/v1/epochs/search", found())
    *_, line = stele("log", "search", "--about", "blob").out.splitlines()
    assert line.startswith("No node, keyspace or table has the name blob now")
    for known in ("n2", "library", "library.books", "id-2"):
        assert "has the name" not in stele("log", "search", "--about", known).out
    assert "has the name" not in stele("log", "search", "--actor", "blob").out
    server.answers["GET", "/v1/epochs/search"].clear()
    server.answer("GET", "/v1/epochs/search", found(epoch(5, COLOUR)))
    assert "has the name" not in stele("log", "search", "--about", "id-of-what-was-dropped").out


def test_search_as_json_has_all_matches(server: Server, stele: Stele) -> None:
    path = "/v1/epochs/search"
    server.answer("GET", path, found(epoch(5, COLOUR), looked_at=50, next_before=5))
    server.answer("GET", path, found(looked_at=4))
    ran = stele(
        "log", "search", "--text", "red room", "--since", "1970-01-01T00:00:05+00:00", "--json"
    )
    assert msgspec.json.decode(ran.out) == {
        "looked_at": 54,
        "next_before": 0,
        "epochs": [{**epoch(5), "facts": [COLOUR]}],
    }
    (asked, _) = (each.query for each in server.asked_for(path))
    assert (asked["text"], asked["since_ms"]) == (["red room"], ["5000"])


def slice_of(first: int, last: int, next_from: int = 0) -> dict[str, Any]:
    epochs = last - first + 1
    size = 1000 * last
    return {
        "newest": 7,
        "next_from": next_from,
        "losers": 2,
        "strays": 1,
        "stats": {
            "first": first,
            "last": last,
            "first_offset": first + 1,
            "last_offset": last + 2,
            "first_at_ms": 1000 * first,
            "last_at_ms": 1000 * last,
            "total": {"epochs": epochs, "size_bytes": 100 * epochs},
            "beside": 1,
            "commands": {"join": {"epochs": epochs, "size_bytes": 100 * epochs}},
            "actors": {f"a{last}": {"epochs": epochs, "size_bytes": 100 * epochs}},
            "minutes": {"0": epochs},
            "sizes": {"7": epochs},
            "largest": [
                {
                    "epoch": last,
                    "offset": last + 2,
                    "size_bytes": size,
                    "command": "join",
                    "actor": "x",
                }
            ],
        },
    }


def test_stats_sums_the_counts_of_all_calls(server: Server, stele: Stele) -> None:
    cluster(server, epoch=7)
    server.answer("GET", "/v1/epochs/stats", slice_of(3, 4, next_from=5))
    server.answer("GET", "/v1/epochs/stats", slice_of(5, 7))
    ran = stele("log", "stats", "--last", "5")
    asked = [each.query for each in server.asked_for("/v1/epochs/stats")]
    assert asked == [{"from": ["3"], "to": ["7"]}, {"from": ["5"], "to": ["7"]}]
    lines = [" ".join(line.split()) for line in ran.out.splitlines()]
    assert "epochs 3 to 7: 5, 1.2/s" in lines
    assert "offsets 4 to 9" in lines
    assert "beside 2 records among them won nothing" in lines
    assert "skipped 2 losers and 1 stray, of all that this instance has read" in lines
    assert "join 5 100.0 % 500 B 100.0 %" in lines
    assert "a7 3 60.0 % 300 B 60.0 %" in lines
    assert "< 128 B 5 100.0 %" in lines
    assert "7.0 kB 7 9 join x" in lines


def test_stats_of_the_whole_log_as_json(server: Server, stele: Stele) -> None:
    cluster(server, epoch=7)
    server.answer("GET", "/v1/epochs/stats", slice_of(2, 7))
    shown = msgspec.json.decode(stele("log", "stats", "--all", "--json").out)
    (asked,) = server.asked_for("/v1/epochs/stats")
    assert asked.query["from"] == ["1"]
    assert (shown["newest"], shown["losers"], shown["strays"]) == (7, 2, 1)
    assert shown["stats"]["first"] == 2
    assert shown["stats"]["total"] == {"epochs": 6, "size_bytes": 600}


def test_times_are_durations_dates_or_timestamps() -> None:
    now_ms = 1_700_000_000_000
    assert moment_ms("90s", "--since", now_ms) == now_ms - 90_000
    assert moment_ms("2023-11-14T22:13:20+00:00", "--since", 0) == now_ms
    day = moment_ms("2023-11-14", "--since", 0)
    assert moment_ms("2023-11-14 08:30", "--since", 0) - day == 8.5 * 3_600_000
    for wrong in ("yesterday", "", "2023-13-01", "12", "10min"):
        with pytest.raises(UsageError, match=f"--until '{wrong}' is neither") as error:
            moment_ms(wrong, "--until", now_ms)
        assert "with ms, s, m, h or d. For example 90s" in error.value.hint


def test_progress_is_one_line_on_a_terminal_and_periodic_lines_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 100.0
    monkeypatch.setattr("stele.cli.notice.monotonic", lambda: now_s)
    terminal, file = Terminal(), io.StringIO()
    lines = [ProgressLine(terminal), ProgressLine(file)]
    for passed_s, share in ((1.0, 0.0), (6.0, 0.25), (7.0, 0.5)):
        now_s = 100.0 + passed_s
        for line in lines:
            line.tell("half", share)
    for line in lines:
        line.end()
    shown = ("half", "half, about 18.0 s to go", "half, about 7.0 s to go", "")
    assert terminal.getvalue() == "".join(f"\r\x1b[K{each}" for each in shown)
    assert file.getvalue() == "stele: half, about 18.0 s to go\n"


@pytest.mark.parametrize(("given", "meant"), [("join-n3", "join-n3-1"), ("forgotten", "forgotten")])
def test_search_accepts_a_prefix_of_a_request_id(
    server: Server, stele: Stele, given: str, meant: str
) -> None:
    known = [request("done")] if given == "join-n3" else []
    cluster(server, requests=known)
    server.answer("GET", "/v1/epochs/search", found())
    assert stele("log", "search", "--request", given, "--json").exit_code == 0
    (asked,) = server.asked_for("/v1/epochs/search")
    assert asked.query["request"] == [meant]
