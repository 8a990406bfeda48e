"""``stele recover``: the processes that it reads, its choice of a source, and the dry run."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from stele.log.archive.container import Archived, as_container, from_container
from stele.log.codec import encode_epoch
from stele.runtime.answers.catch_up import HistoryAnswer, RecoveredAnswer
from stele.runtime.recent import Promised
from tests.catch_up import others
from tests.catch_up.stories import story_of
from tests.cli.conftest import Server, Stele
from tests.domain.epochs import LOG_ID

LOG = "0a" * 16
STATES = {3: "03" * 16}
CHECK = "/v1/recover/check"
REFUSED = {
    "code": "not_recovered",
    "message": f"At offset 0 of the log: log {'0b' * 16} is written here, which is later than {LOG}.",
    "hint": "Look at what the replicas hold.",
}


def history(replica_id: str, node: str, states: dict[int, str] = STATES) -> HistoryAnswer:
    return HistoryAnswer(
        replica_id=replica_id,
        log_id=LOG,
        states=states,
        first_image=1,
        last_image=max(states),
        incarnations=(),
        nodes={"n1": node},
        trouble="it is gone",
    )


@pytest.fixture
def replicas(server: Server, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the addresses of two replicas with the same history."""
    urls = [f"{server.url}/one", f"{server.url}/two"]
    monkeypatch.setenv("STELE_CATCH_UP_URLS", ",".join(urls))
    monkeypatch.setenv("STELE_URL", f"{server.url}/log")
    for name in ("one", "two"):
        told = history(f"cu-{name}", f"{server.url}/node")
        server.answer("GET", f"/{name}/v1/history", told)
        server.answer("POST", f"/{name}{CHECK}", {})
    return urls


def paths_read(server: Server) -> set[str]:
    return {asked.path.split("/v1/")[0] for asked in server.asked}


def test_dry_run_fails_with_the_message_of_the_recovery(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    server.answers["POST", f"/one{CHECK}"].clear()
    server.answer("POST", f"/one{CHECK}", REFUSED, 409)
    server.answer("POST", "/one/v1/recover", REFUSED, 409)
    dry, done = stele("recover", "--dry-run"), stele("recover", "--reason", "it is lost")
    assert dry.exit_code == done.exit_code == 1
    assert REFUSED["message"] in dry.err
    assert dry.err.splitlines()[-1] == done.err.splitlines()[-1]
    (checked,) = server.asked_for(f"/one{CHECK}")
    (recovered,) = server.asked_for("/one/v1/recover")
    for name in ("epoch", "state_id", "known_epoch", "known_log_id", "force", "told_epoch"):
        assert checked.query[name] == recovered.query[name]
    assert recovered.query["told_epoch"] == ["3"]


def test_recovery_records_actor_and_reason(
    server: Server, stele: Stele, replicas: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STELE_ACTOR", "ada")
    server.answer("POST", "/one/v1/recover", REFUSED, 409)
    for said in ((), ("--actor", "eve")):
        stele("recover", "--reason", "it is lost", *said)
    asked = [each.query for each in server.asked_for("/one/v1/recover")]
    assert [each["actor"] for each in asked] == [["ada"], ["eve"]]
    assert [each["reason"] for each in asked] == [["it is lost"]] * 2


def test_each_phase_is_printed_to_stderr_when_it_begins(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    answer = RecoveredAnswer(
        replica_id="cu-one",
        log_id="0b" * 16,
        epoch=4,
        offset=0,
        last_epoch=3,
        known_epoch=3,
        was_there=False,
    )
    server.answer("POST", "/one/v1/recover", answer)
    server.answer("GET", "/log/healthz", {"ok": True, "epoch": 4})
    ran = stele("recover", "--reason", "it is lost", "--json", "--timeout", "9")
    assert msgspec.json.decode(ran.out)["epoch"] == 4
    assert ran.err.splitlines() == [
        "asking catch-up replicas and processes for the epochs that they have",
        f"recovering the log from cu-one ({replicas[0]})",
        "waiting until a metadata-log accepts commands, for at most 9 s",
    ]


def test_dry_run_reports_what_was_not_checked(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    assert "not checked" not in stele("recover", "--dry-run").out
    server.answers["POST", f"/one{CHECK}"].clear()
    server.answer("POST", f"/one{CHECK}", {"not_looked_at": "No leader answers"})
    ran = stele.ok("recover", "--dry-run")
    assert "continues after epoch 3" in ran.out
    assert "the topic was not checked" in ran.out and "No leader answers" in ran.out
    shown: dict[str, Any] = msgspec.json.decode(stele("recover", "--dry-run", "--json").out)
    assert shown["not_looked_at"] == "No leader answers"


@pytest.mark.parametrize("take", ["cu-two", "{url}/two", "cu-two ({url}/two)"])
def test_source_is_selected_by_name_id_or_address(
    server: Server, stele: Stele, replicas: list[str], take: str
) -> None:
    ran = stele.ok("recover", "--dry-run", "--take", take.format(url=server.url))
    assert f"from cu-two ({replicas[1]})" in ran.out
    assert len(server.asked_for(f"/two{CHECK}")) == 1


def test_ambiguous_or_unknown_source_id_is_a_usage_error(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    server.answers["GET", "/two/v1/history"].clear()
    server.answer("GET", "/two/v1/history", history("cu-one", ""))
    ran = stele.exits(2, "recover", "--dry-run", "--take", "cu-one")
    assert "2 sources are called 'cu-one'. Name one of: cu-one (" in ran.err
    ran = stele.exits(1, "recover", "--dry-run", "--take", "cu-three")
    assert "No source is called 'cu-three'" in ran.err


@pytest.mark.parametrize("second", ["the same", "another", "unknown", "silent"])
def test_shorter_history_is_compared_with_the_longest(
    server: Server, stele: Stele, replicas: list[str], second: str
) -> None:
    """Without a request for more, replicas report only their newest epochs."""
    short, long = {3: "03" * 16}, {8: "08" * 16, 9: "09" * 16}
    more = {"the same": short, "another": {3: "04" * 16}}.get(second, {})
    for name, told in (("one", [short]), ("two", [long, long | more])):
        server.answers["GET", f"/{name}/v1/history"].clear()
        for states in told:
            server.answer("GET", f"/{name}/v1/history", history(f"cu-{name}", "", states))
    if second == "silent":
        server.answers["GET", "/two/v1/history"].pop()
        becomes_silent(server, "two")
    ran = stele("recover", "--dry-run")
    assert server.asked_for("/two/v1/history")[-1].query == {"epochs": ["3"]}
    if second == "the same":
        assert ran.exit_code == 0, ran.err
        assert f"continues after epoch 9, from cu-two ({replicas[1]})" in ran.out
        return
    assert ran.exit_code == 1
    assert ("Epoch 3 differs between processes" in ran.err) is (second == "another")
    assert ("it is not proven that others are" in ran.err) is (second != "another")
    assert "--take" in ran.err


def test_chosen_source_reports_replicas_of_an_unproven_history(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    server.answers["GET", "/two/v1/history"].clear()
    server.answer("GET", "/two/v1/history", history("cu-two", "", {9: "09" * 16}))
    ran = stele.ok("recover", "--dry-run", "--take", "cu-two")
    assert f"continues after epoch 9, from cu-two ({replicas[1]})" in ran.out
    assert f"not proven to be of this history: cu-one ({replicas[0]})" in ran.out


@pytest.mark.parametrize("state", ("later", "the same", "another", "silent"))
def test_replica_known_only_from_the_log_is_read_but_does_not_recover(
    server: Server, stele: Stele, replicas: list[str], state: str
) -> None:
    """The replica may belong to the cluster whose backup was restored here."""
    url = f"{server.url}/three"
    members = {"cu-one": "http://127.0.0.1:9", "cu-three": url}
    server.answers["GET", "/one/v1/history"].clear()
    told = msgspec.structs.replace(history("cu-one", ""), replicas=members)
    server.answer("GET", "/one/v1/history", told)
    states = {"later": {**STATES, 4: "04" * 16}, "another": {3: "04" * 16}}.get(state, STATES)
    if state != "silent":
        server.answer("GET", "/three/v1/history", history("cu-three", "", states))
    ran = stele("recover", "--dry-run")
    assert "127.0.0.1:9" not in ran.out, "cu-one has answered, elsewhere"
    assert ran.exit_code == (0 if state == "the same" else 1), ran
    assert (f"cu-three ({url})" in ran.out) is (state != "silent")
    if state == "later":
        assert f"cu-three ({url}) holds later epochs" in ran.err
        assert "Name it in STELE_CATCH_UP_URLS" in ran.err
    if state == "another":
        assert "Epoch 3 differs between processes" in ran.err
    if state == "silent":
        assert f"{url}: " in ran.out
        assert f"cu-three ({url}) does not report what it holds" in ran.err
        assert stele("recover", "--dry-run", "--without", "cu-three").exit_code == 0
    assert "/three" not in {asked.path for asked in server.asked if "recover" in asked.path}


def history_with_gap(replica_id: str) -> HistoryAnswer:
    """Return a history with epochs 4 and 5 after a damaged file. Epoch 4 contains the state id before it."""
    states = {2: "02" * 16, 3: "03" * 16, 4: "04" * 16, 5: "05" * 16}
    return msgspec.structs.replace(history(replica_id, "", states), last_image=2)


def history_with_wide_gap(replica_id: str) -> HistoryAnswer:
    """Return a history with only epoch 5 after a damaged file."""
    states = {2: "02" * 16, 4: "04" * 16, 5: "05" * 16}
    return msgspec.structs.replace(history(replica_id, "", states), last_image=2)


def complete_history(replica_id: str) -> HistoryAnswer:
    return history(replica_id, "", {epoch: f"{epoch:02}" * 16 for epoch in (2, 3, 4, 5)})


def second_replica_begins_with_gap(
    server: Server, then: HistoryAnswer, hole: Callable[[str], HistoryAnswer] = history_with_gap
) -> None:
    for name, states in (("one", {2: "02" * 16, **STATES}), ("two", {})):
        server.answers["GET", f"/{name}/v1/history"].clear()
        if states:
            server.answer("GET", f"/{name}/v1/history", history(f"cu-{name}", "", states))
    for told in (hole("cu-two"), hole("cu-two"), then):
        server.answer("GET", "/two/v1/history", told)
    recovered = RecoveredAnswer(
        replica_id="cu",
        log_id="0c" * 16,
        epoch=6,
        last_epoch=5,
        known_epoch=5,
        offset=0,
        was_there=False,
    )
    for name in ("one", "two"):
        server.answer("POST", f"/{name}/v1/recover", recovered)


@pytest.mark.parametrize("silent", ["", "at first", "for a moment"])
def test_recovery_waits_for_epochs_and_answers_of_a_replica(
    server: Server, stele: Stele, replicas: list[str], silent: str
) -> None:
    """The replica fetches the epochs after a damaged file again."""
    second_replica_begins_with_gap(server, complete_history("cu-two"))
    if silent == "at first":
        server.answers["GET", "/two/v1/history"].clear()
    if silent:
        becomes_silent(server, "two")
        server.answer("GET", "/two/v1/history", complete_history("cu-two"))
    ran = stele.ok("recover", "--reason", "it is lost", "--no-wait")
    missing = f"waiting for cu-two ({replicas[1]}) to fetch the epochs before 5 that it lacks"
    assert (missing in ran.err) is (silent != "at first")
    assert ran.err.count(f"waiting for {replicas[1]} to answer") == (silent == "at first")
    assert "continues after epoch 5, from cu-two" in ran.out
    assert "LOST" not in ran.out
    (asked,) = server.asked_for("/two/v1/recover")
    assert asked.query["epoch"] == ["5"]


def becomes_silent(server: Server, name: str) -> None:
    error = {"code": "replica_diverged", "message": "This replica begins anew."}
    server.answer("GET", f"/{name}/v1/history", error, 503)


@pytest.mark.parametrize("silent", ["one", "two"])
def test_epochs_reported_by_a_now_silent_process_still_count(
    server: Server, stele: Stele, replicas: list[str], silent: str
) -> None:
    """The silent process is the source of the recovery, or the one that the recovery waits for."""
    second_replica_begins_with_gap(server, history_with_gap("cu-two"))
    becomes_silent(server, silent)
    asks = ("recover", "--reason", "it is lost", "--no-wait", "--timeout", "1.7")
    ran = stele.ok(*asks, "--lose-after", "3")
    assert "continues after epoch 3, from cu-one" in ran.out
    assert f"LOST: epochs 4 to 5, unless cu-two ({replicas[1]}) fetches the epochs" in ran.out


@pytest.mark.parametrize("agreed", ["", "2", "5", "3"])
def test_unfetched_epochs_are_lost_only_with_lose_after(
    server: Server, stele: Stele, replicas: list[str], agreed: str
) -> None:
    second_replica_begins_with_gap(server, history_with_gap("cu-two"))
    asks = ("recover", "--reason", "it is lost", "--no-wait", "--timeout", "1.2")
    ran = stele(*asks, *(("--lose-after", agreed) if agreed else ()))
    assert "continues after epoch 3, from cu-one" in ran.out
    assert f"LOST: epochs 4 to 5, unless cu-two ({replicas[1]}) fetches the epochs" in ran.out
    recovered = server.asked_for("/one/v1/recover")
    if agreed == "3":
        assert ran.exit_code == 0, ran.err
        assert len(recovered) == 1
    else:
        assert ran.exit_code == 1
        assert f"Epochs 4 to 5, known to cu-two ({replicas[1]}), would be lost" in ran.err
        assert "say --lose-after 3." in ran.err
        assert not recovered


@pytest.mark.parametrize("named", ["", "cu-one", "{url}/two"])
def test_silent_replica_is_ignored_only_with_without(
    server: Server, stele: Stele, replicas: list[str], named: str
) -> None:
    server.answers["GET", "/two/v1/history"].clear()
    becomes_silent(server, "two")
    without = ("--without", named.format(url=server.url)) if named else ()
    ran = stele("recover", "--dry-run", *without)
    assert "continues after epoch 3, from cu-one" in ran.out
    assert "waiting for" not in ran.err
    if "two" in named:
        assert ran.exit_code == 0, ran.err
    else:
        assert ran.exit_code == 1
        assert (
            f"{replicas[1]} does not report what it holds (This replica begins anew): " in ran.err
        )
        assert f"--without {replicas[1]}." in ran.err
    asks = ("recover", "--reason", "it is lost", "--no-wait", "--timeout", "0.8")
    ran = stele(*asks, *without)
    assert bool(server.asked_for("/one/v1/recover")) is ("two" in named)
    assert (f"waiting for {replicas[1]} to answer" in ran.err) is ("two" not in named)


def test_process_without_epochs_since_its_start_is_reported(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    """All processes may have been restarted after the loss."""
    content = io.BytesIO()
    as_container(content, [])
    server.answer("GET", "/node/v1/recent", content.getvalue())
    ran = stele("recover", "--dry-run")
    assert f"{server.url}/node has read nothing of the log since it was started." in ran.out
    assert "did not answer and may have read later ones" in ran.out


PROMISED = {4: "04" * 16}


def node_reports(server: Server, epoch: int, state_id: str, log_id: str = LOG) -> None:
    """Answer as a node that has read nothing since its start, with its promise."""
    told = io.BytesIO()
    text = msgspec.json.encode(Promised(log_id, epoch, state_id)).decode()
    as_container(told, [], {"stele.promised": text})
    server.answers.pop(("GET", "/node/v1/recent"), None)
    server.answer("GET", "/node/v1/recent", told.getvalue())


def test_restarted_node_reports_its_promise(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    node = f"{server.url}/node"
    node_reports(server, 3, STATES[3])
    ran = stele.ok("recover", "--dry-run")
    assert f"{node}: has read epoch 3 of log {LOG}" in ran.out
    node_reports(server, 4, PROMISED[4])
    ran = stele.exits(1, "recover", "--dry-run")
    assert f"({node} has read epoch 4)" in ran.err
    ran = stele("recover", "--dry-run", "--take", "cu-one")
    assert "LOST: epochs 4 to 4: a process has read them, and no source holds them" in ran.out, (
        ran.err
    )
    node_reports(server, 3, "09" * 16)
    ran = stele.exits(1, "recover", "--dry-run")
    assert "Epoch 3 differs between processes" in ran.err


def test_promise_of_a_node_counts_although_it_becomes_silent(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    server.answers["GET", "/two/v1/history"].clear()
    becomes_silent(server, "two")
    server.answer("GET", "/two/v1/history", history("cu-two", f"{server.url}/node"))
    node_reports(server, 4, PROMISED[4])
    server.answer("GET", "/node/v1/recent", {"code": "unavailable", "message": "It ends."}, 503)
    ran = stele.exits(1, "recover", "--reason", "it is lost", "--no-wait", "--timeout", "10")
    assert f"waiting for {replicas[1]} to answer" in ran.err
    assert f"({server.url}/node has read epoch 4)" in ran.err
    assert f"{server.url}/node: It ends." in ran.out
    assert not server.asked_for("/one/v1/recover")


def test_node_reports_its_promise_and_the_log_that_it_reads(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    story, told = story_of(3), io.BytesIO()
    text = msgspec.json.encode(Promised(LOG, 3, STATES[3])).decode()
    as_container(told, [Archived(3, 2, 0, encode_epoch(story.epochs[2]))], {"stele.promised": text})
    server.answer("GET", "/node/v1/recent", told.getvalue())
    ran = stele("recover", "--dry-run")
    assert f"{server.url}/node promised: has read epoch 3 of log {LOG}" in ran.out
    assert f"{server.url}/node: has read epoch 3 of log {LOG_ID.hex()}" in ran.out


@pytest.mark.parametrize("text", ["", "{}", '{"log_id":"x","epoch":0,"state_id":"y"}'])
def test_unreadable_promise_counts_as_no_answer(
    server: Server, stele: Stele, replicas: list[str], text: str
) -> None:
    told = io.BytesIO()
    as_container(told, [], {"stele.promised": text})
    server.answer("GET", "/node/v1/recent", told.getvalue())
    ran = stele("recover", "--dry-run")
    assert "/node: its metadata stele.promised cannot be read: " in ran.out
    assert "did not answer and may have read later ones" in ran.out


@pytest.mark.parametrize("name", ["cu-nine", "cu", "http://127.0.0.1:9"])
def test_without_option_needs_a_known_replica(
    server: Server, stele: Stele, replicas: list[str], name: str
) -> None:
    ran = stele.exits(2, "recover", "--dry-run", "--without", name)
    assert f"No catch-up replica is called '{name}'. Replicas are cu-one (" in ran.err
    for known in ("cu-one", replicas[0], f"cu-one ({replicas[0]})"):
        assert stele("recover", "--dry-run", "--without", known).exit_code == 0


@pytest.mark.parametrize(("third", "exit_code"), [("03", 0), ("13", 1)])
def test_filled_gap_shows_whether_histories_diverge(
    server: Server, stele: Stele, replicas: list[str], third: str, exit_code: int
) -> None:
    whole = complete_history("cu-two")
    filled = msgspec.structs.replace(whole, states={**whole.states, 3: third * 16})
    second_replica_begins_with_gap(server, filled, history_with_wide_gap)
    ran = stele("recover", "--reason", "it is lost", "--no-wait")
    assert ran.exit_code == exit_code, ran.err
    assert ("continues after epoch 5, from cu-two" in ran.out) is (exit_code == 0)
    assert ("Epoch 3 differs between processes" in ran.err) is (exit_code == 1)


def test_lost_epochs_include_those_that_processes_have_only_read(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    story, told = story_of(7), io.BytesIO()
    state = {epoch.epoch: epoch.state_id.hex() for epoch in story.epochs}
    has = {"one": {2: state[2], 3: state[3]}, "two": {each: state[each] for each in (2, 3, 4, 5)}}
    for name, last in (("one", 3), ("two", 2)):
        answer = msgspec.structs.replace(
            history(f"cu-{name}", f"{server.url}/node", has[name]),
            log_id=LOG_ID.hex(),
            last_image=last,
        )
        server.answers["GET", f"/{name}/v1/history"].clear()
        server.answer("GET", f"/{name}/v1/history", answer)
    as_container(told, [Archived(7, 6, 0, encode_epoch(story.epochs[6]))])
    server.answer("GET", "/node/v1/recent", told.getvalue())
    ran = stele("recover", "--dry-run")
    assert f"({server.url}/node has read epoch 7)" in ran.err
    ran = stele("recover", "--dry-run", "--take", "cu-one")
    assert "LOST: epochs 4 to 7, unless cu-two (" in ran.out, ran.err
    assert "before them from another replica; no source holds epochs after 5" in ran.out


def test_dry_run_and_chosen_source_do_not_wait(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    second_replica_begins_with_gap(server, complete_history("cu-two"))
    ran = stele("recover", "--dry-run")
    assert "unless cu-two" in ran.out and "waiting" not in ran.err
    ran = stele.ok("recover", "--take", "cu-one", "--reason", "it is lost", "--no-wait")
    assert "unless cu-two" in ran.out and "waiting" not in ran.err


@pytest.mark.parametrize(
    ("take", "last", "colour"), [("log", 12, "blue"), ("node", 10, "green"), ("one", 8, "")]
)
def test_chosen_process_is_used_with_the_replica_that_it_continues(
    server: Server, stele: Stele, replicas: list[str], take: str, last: int, colour: str
) -> None:
    """Two processes have different epochs. One of them has those that an unclean election lost."""
    forks = {"log": others.story_of(12, "blue"), "node": others.story_of(10, "green")}
    records = {name: others.records_of(story) for name, story in forks.items()}
    shared = {each.epoch: each.links[1].hex() for each in records["log"][: others.SHARED]}
    for name in ("one", "two"):
        told = history(f"cu-{name}", f"{server.url}/node", shared)
        told = msgspec.structs.replace(told, log_id=LOG_ID.hex())
        server.answers["GET", f"/{name}/v1/history"].clear()
        server.answer("GET", f"/{name}/v1/history", told)
    for name, told_records in records.items():
        content = io.BytesIO()
        as_container(content, told_records[others.SHARED :])
        server.answer("GET", f"/{name}/v1/recent", content.getvalue())
    ran = stele.exits(1, "recover", "--dry-run")
    assert "Epoch 9 differs between processes" in ran.err
    assert "cu-one" not in ran.err.partition("Find out")[0]
    ran = stele.ok("recover", "--dry-run", "--take", f"{server.url}/{take}")
    assert f"continues after epoch {last}, from cu-one" in ran.out
    (checked,) = server.asked_for(f"/one{CHECK}")
    expected = [each for each in records.get(take, []) if each.epoch > others.SHARED]
    assert (from_container(checked.body) if checked.body else []) == expected
    if colour:
        assert checked.query["state_id"] == [forks[take].image.state_id.hex()]
        (other,) = {*forks} - {take}
        assert f"another history: {server.url}/{other}" in ran.out


def test_recovery_needs_a_reason(server: Server, stele: Stele, replicas: list[str]) -> None:
    assert "A recovery needs a reason" in stele.exits(2, "recover").err
    assert not server.asked


def test_only_option_limits_the_processes_that_are_read(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    """A backup that is restored elsewhere contains the addresses of the live cluster."""
    assert stele("recover", "--dry-run").exit_code == 0
    assert paths_read(server) >= {"/one", "/two", "/log", "/node"}
    for only, asked in (
        (["catch-up"], {"/one", "/two"}),
        ([replicas[1]], {"/two"}),
        (["catch-up", f"{server.url}/node"], {"/one", "/two", "/node"}),
        ([replicas[0], "metadata-log"], {"/one", "/log"}),
    ):
        server.asked.clear()
        stele.ok("recover", "--dry-run", *(f"--only={name}" for name in only))
        assert paths_read(server) == asked


def test_only_option_must_be_an_address_or_a_service(stele: Stele, replicas: list[str]) -> None:
    ran = stele.exits(2, "recover", "--dry-run", "--only", "http://")
    assert "is not an address of a service" in ran.err
