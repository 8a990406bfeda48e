"""``stele recover``: the processes that it asks, its choice of a source, and the dry run."""

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
    """Two replicas of one history; their nodes are elsewhere."""
    urls = [f"{server.url}/one", f"{server.url}/two"]
    monkeypatch.setenv("STELE_CATCH_UP_URLS", ",".join(urls))
    monkeypatch.setenv("STELE_URL", f"{server.url}/log")
    for name in ("one", "two"):
        told = history(f"cu-{name}", f"{server.url}/node")
        server.answer("GET", f"/{name}/v1/history", told)
        server.answer("POST", f"/{name}{CHECK}", {})
    return urls


def asked_of(server: Server) -> set[str]:
    return {asked.path.split("/v1/")[0] for asked in server.asked}


@pytest.mark.parametrize("address", ("http://ä_b:7100", "http://xn--a", "http://a b"))
def test_a_node_whose_address_no_client_takes_is_one_that_does_not_answer(
    server: Server, stele: Stele, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """An older release may have taken it into the log."""
    monkeypatch.setenv("STELE_CATCH_UP_URLS", f"{server.url}/one")
    server.answer("GET", "/one/v1/history", history("cu-one", address))
    server.answer("POST", f"/one{CHECK}", {})
    done = stele("recover", "--dry-run")
    assert done.exit_code == 0, done


def test_a_dry_run_is_refused_in_the_words_of_the_recovery(
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


def test_the_history_says_who_recovered_and_why(
    server: Server, stele: Stele, replicas: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STELE_ACTOR", "ada")
    server.answer("POST", "/one/v1/recover", REFUSED, 409)
    for said in ((), ("--actor", "eve")):
        stele("recover", "--reason", "it is lost", *said)
    asked = [each.query for each in server.asked_for("/one/v1/recover")]
    assert [each["actor"] for each in asked] == [["ada"], ["eve"]]
    assert [each["reason"] for each in asked] == [["it is lost"]] * 2


def test_each_phase_is_named_on_standard_error_as_it_begins(
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


def test_a_dry_run_says_what_it_could_not_look_at(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    assert "not checked" not in stele("recover", "--dry-run").out
    server.answers["POST", f"/one{CHECK}"].clear()
    server.answer("POST", f"/one{CHECK}", {"not_looked_at": "No leader answers"})
    ran = stele("recover", "--dry-run")
    assert ran.exit_code == 0, ran.err
    assert "continues after epoch 3" in ran.out
    assert "the topic was not checked" in ran.out and "No leader answers" in ran.out
    shown: dict[str, Any] = msgspec.json.decode(stele("recover", "--dry-run", "--json").out)
    assert shown["not_looked_at"] == "No leader answers"


@pytest.mark.parametrize("take", ["cu-two", "{url}/two", "cu-two ({url}/two)"])
def test_a_source_is_taken_by_its_name_its_id_or_its_address(
    server: Server, stele: Stele, replicas: list[str], take: str
) -> None:
    ran = stele("recover", "--dry-run", "--take", take.format(url=server.url))
    assert ran.exit_code == 0, ran.err
    assert f"from cu-two ({replicas[1]})" in ran.out
    assert len(server.asked_for(f"/two{CHECK}")) == 1


def test_an_id_of_two_replicas_names_none_and_so_does_one_of_nobody(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    server.answers["GET", "/two/v1/history"].clear()
    server.answer("GET", "/two/v1/history", history("cu-one", ""))
    ran = stele("recover", "--dry-run", "--take", "cu-one")
    assert ran.exit_code == 2
    assert "2 sources are called 'cu-one'. Name one of: cu-one (" in ran.err
    ran = stele("recover", "--dry-run", "--take", "cu-three")
    assert ran.exit_code == 1
    assert "No source is called 'cu-three'" in ran.err


def test_two_histories_are_told_with_the_option_that_decides(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    server.answers["GET", "/two/v1/history"].clear()
    server.answer("GET", "/two/v1/history", history("cu-two", "", {3: "04" * 16}))
    ran = stele("recover", "--dry-run")
    assert ran.exit_code == 1
    assert "name a source that has it with --take" in ran.err


@pytest.mark.parametrize("second", ["the same", "another", "unknown", "silent"])
def test_a_shorter_history_is_compared_before_the_longest_is_taken(
    server: Server, stele: Stele, replicas: list[str], second: str
) -> None:
    """By themselves replicas tell of their newest epochs alone."""
    short, long = {3: "03" * 16}, {8: "08" * 16, 9: "09" * 16}
    more = {"the same": short, "another": {3: "04" * 16}}.get(second, {})
    for name, told in (("one", [short]), ("two", [long, long | more])):
        server.answers["GET", f"/{name}/v1/history"].clear()
        for states in told:
            server.answer("GET", f"/{name}/v1/history", history(f"cu-{name}", "", states))
    if second == "silent":
        server.answers["GET", "/two/v1/history"].pop()
        silent_from_now_on(server, "two")
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


def test_who_is_taken_though_nobody_can_tell_is_told_so(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    server.answers["GET", "/two/v1/history"].clear()
    server.answer("GET", "/two/v1/history", history("cu-two", "", {9: "09" * 16}))
    ran = stele("recover", "--dry-run", "--take", "cu-two")
    assert ran.exit_code == 0, ran.err
    assert f"continues after epoch 9, from cu-two ({replicas[1]})" in ran.out
    assert f"not proven to be of this history: cu-one ({replicas[0]})" in ran.out


@pytest.mark.parametrize("state", ("later", "the same", "another", "silent"))
def test_a_replica_that_only_the_log_names_is_asked_and_recovers_nothing(
    server: Server, stele: Stele, replicas: list[str], state: str
) -> None:
    """It may be of the cluster whose backup this one was made of."""
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


def with_a_hole(replica_id: str) -> HistoryAnswer:
    """The epochs 4 and 5 are behind what another replica has, and a file before them is damaged. Epoch 4 tells
    which state it follows.
    """
    states = {2: "02" * 16, 3: "03" * 16, 4: "04" * 16, 5: "05" * 16}
    return msgspec.structs.replace(history(replica_id, "", states), last_image=2)


def with_a_wide_hole(replica_id: str) -> HistoryAnswer:
    """Epoch 5 alone is left of what is behind the damaged file."""
    states = {2: "02" * 16, 4: "04" * 16, 5: "05" * 16}
    return msgspec.structs.replace(history(replica_id, "", states), last_image=2)


def in_one_piece(replica_id: str) -> HistoryAnswer:
    return history(replica_id, "", {epoch: f"{epoch:02}" * 16 for epoch in (2, 3, 4, 5)})


def first_with_a_hole(
    server: Server, then: HistoryAnswer, hole: Callable[[str], HistoryAnswer] = with_a_hole
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


def test_epochs_behind_a_damaged_file_are_waited_for(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    first_with_a_hole(server, in_one_piece("cu-two"))
    ran = stele("recover", "--reason", "it is lost", "--no-wait")
    assert ran.exit_code == 0, ran.err
    assert (
        f"waiting for cu-two ({replicas[1]}) to fetch the epochs before 5 that it lacks" in ran.err
    )
    assert "continues after epoch 5, from cu-two" in ran.out
    assert "LOST" not in ran.out
    (asked,) = server.asked_for("/two/v1/recover")
    assert asked.query["epoch"] == ["5"]


def silent_from_now_on(server: Server, name: str) -> None:
    error = {"code": "replica_diverged", "message": "This replica begins anew."}
    server.answer("GET", f"/{name}/v1/history", error, 503)


@pytest.mark.parametrize("silent", ["one", "two"])
def test_who_does_not_answer_any_more_has_not_lost_what_he_told(
    server: Server, stele: Stele, replicas: list[str], silent: str
) -> None:
    """The source of the recovery, or the process that is waited for."""
    first_with_a_hole(server, with_a_hole("cu-two"))
    silent_from_now_on(server, silent)
    asks = ("recover", "--reason", "it is lost", "--no-wait", "--timeout", "1.7")
    ran = stele(*asks, "--lose-after", "3")
    assert ran.exit_code == 0, ran.err
    assert "continues after epoch 3, from cu-one" in ran.out
    assert f"LOST: epochs 4 to 5, unless cu-two ({replicas[1]}) fetches the epochs" in ran.out


def test_who_is_waited_for_may_not_answer_for_a_while(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    first_with_a_hole(server, with_a_hole("cu-two"))
    silent_from_now_on(server, "two")
    silent_from_now_on(server, "one")
    server.answer("GET", "/two/v1/history", in_one_piece("cu-two"))
    ran = stele("recover", "--reason", "it is lost", "--no-wait")
    assert ran.exit_code == 0, ran.err
    assert "continues after epoch 5, from cu-two" in ran.out
    assert "LOST" not in ran.out


@pytest.mark.parametrize("agreed", ["", "2", "5", "3"])
def test_they_are_not_waited_for_without_end_and_lost_by_name_alone(
    server: Server, stele: Stele, replicas: list[str], agreed: str
) -> None:
    first_with_a_hole(server, with_a_hole("cu-two"))
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
def test_a_replica_that_does_not_answer_is_gone_on_without_by_name_alone(
    server: Server, stele: Stele, replicas: list[str], named: str
) -> None:
    server.answers["GET", "/two/v1/history"].clear()
    silent_from_now_on(server, "two")
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


def test_a_process_that_has_read_nothing_since_its_start_may_know_more(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    """As where all were started again since."""
    content = io.BytesIO()
    as_container(content, [])
    server.answer("GET", "/node/v1/recent", content.getvalue())
    ran = stele("recover", "--dry-run")
    assert f"{server.url}/node has read nothing of the log since it was started." in ran.out
    assert "did not answer and may have read later ones" in ran.out


PROMISED = {4: "04" * 16}


def tells(server: Server, epoch: int, state_id: str, log_id: str = LOG) -> None:
    """A node that has read nothing since its start, of what it has acknowledged."""
    told = io.BytesIO()
    text = msgspec.json.encode(Promised(log_id, epoch, state_id)).decode()
    as_container(told, [], {"stele.promised": text})
    server.answers.pop(("GET", "/node/v1/recent"), None)
    server.answer("GET", "/node/v1/recent", told.getvalue())


def test_a_node_that_was_started_since_tells_what_it_has_acknowledged(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    node = f"{server.url}/node"
    tells(server, 3, STATES[3])
    ran = stele("recover", "--dry-run")
    assert ran.exit_code == 0, ran.err
    assert f"{node}: has read epoch 3 of log {LOG}" in ran.out
    tells(server, 4, PROMISED[4])
    ran = stele("recover", "--dry-run")
    assert ran.exit_code == 1
    assert f"({node} has read epoch 4)" in ran.err
    ran = stele("recover", "--dry-run", "--take", "cu-one")
    assert "LOST: epochs 4 to 4: a process has read them, and no source holds them" in ran.out, (
        ran.err
    )
    tells(server, 3, "09" * 16)
    ran = stele("recover", "--dry-run")
    assert ran.exit_code == 1 and "Epoch 3 differs between processes" in ran.err


def test_what_a_node_told_is_not_lost_by_its_silence_while_a_replica_is_waited_for(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    server.answers["GET", "/two/v1/history"].clear()
    silent_from_now_on(server, "two")
    server.answer("GET", "/two/v1/history", history("cu-two", f"{server.url}/node"))
    tells(server, 4, PROMISED[4])
    server.answer("GET", "/node/v1/recent", {"code": "unavailable", "message": "It ends."}, 503)
    ran = stele("recover", "--reason", "it is lost", "--no-wait", "--timeout", "10")
    assert ran.exit_code == 1
    assert f"waiting for {replicas[1]} to answer" in ran.err
    assert f"({server.url}/node has read epoch 4)" in ran.err
    assert f"{server.url}/node: It ends." in ran.out
    assert not server.asked_for("/one/v1/recover")


def test_a_node_that_promised_in_another_log_than_it_reads_tells_both(
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
def test_a_promise_that_cannot_be_read_is_no_answer(
    server: Server, stele: Stele, replicas: list[str], text: str
) -> None:
    told = io.BytesIO()
    as_container(told, [], {"stele.promised": text})
    server.answer("GET", "/node/v1/recent", told.getvalue())
    ran = stele("recover", "--dry-run")
    assert "/node: its metadata stele.promised cannot be read: " in ran.out
    assert "did not answer and may have read later ones" in ran.out


@pytest.mark.parametrize("name", ["cu-nine", "cu", "http://127.0.0.1:9"])
def test_nobody_is_gone_on_without_whom_nobody_knows(
    server: Server, stele: Stele, replicas: list[str], name: str
) -> None:
    ran = stele("recover", "--dry-run", "--without", name)
    assert ran.exit_code == 2
    assert f"No catch-up replica is called '{name}'. Replicas are cu-one (" in ran.err
    for known in ("cu-one", replicas[0], f"cu-one ({replicas[0]})"):
        assert stele("recover", "--dry-run", "--without", known).exit_code == 0


def test_a_replica_is_waited_for_until_it_answers(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    first_with_a_hole(server, in_one_piece("cu-two"))
    server.answers["GET", "/two/v1/history"].clear()
    silent_from_now_on(server, "two")
    server.answer("GET", "/two/v1/history", in_one_piece("cu-two"))
    ran = stele("recover", "--reason", "it is lost", "--no-wait")
    assert ran.exit_code == 0, ran.err
    assert ran.err.count(f"waiting for {replicas[1]} to answer") == 1
    assert "continues after epoch 5, from cu-two" in ran.out


def test_where_a_hole_hides_whether_there_are_two_histories_one_must_be_named(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    """An unclean election may have lost epoch 3 of the one history, while the other continued."""
    first_with_a_hole(server, with_a_wide_hole("cu-two"), with_a_wide_hole)
    ran = stele("recover", "--reason", "it is lost", "--no-wait", "--timeout", "1.2")
    assert ran.exit_code == 1
    assert (
        f"waiting for cu-two ({replicas[1]}) to fetch the epochs before 5 that it lacks" in ran.err
    )
    assert f"of the same history (cu-two ({replicas[1]}) has read epoch 5)" in ran.err
    assert "--take" in ran.err
    assert {"epochs": ["2,3"]} in [each.query for each in server.asked_for("/two/v1/history")]
    assert not any(server.asked_for(f"/{name}/v1/recover") for name in ("one", "two"))


@pytest.mark.parametrize(("third", "exit_code"), [("03", 0), ("13", 1)])
def test_a_hole_that_is_filled_tells_whose_history_it_hid(
    server: Server, stele: Stele, replicas: list[str], third: str, exit_code: int
) -> None:
    whole = in_one_piece("cu-two")
    filled = msgspec.structs.replace(whole, states={**whole.states, 3: third * 16})
    first_with_a_hole(server, filled, with_a_wide_hole)
    ran = stele("recover", "--reason", "it is lost", "--no-wait")
    assert ran.exit_code == exit_code, ran.err
    assert ("continues after epoch 5, from cu-two" in ran.out) is (exit_code == 0)
    assert ("Epoch 3 differs between processes" in ran.err) is (exit_code == 1)


def test_of_what_is_lost_more_may_be_known_than_held(
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


def test_a_dry_run_and_a_named_source_wait_for_nobody(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    first_with_a_hole(server, in_one_piece("cu-two"))
    ran = stele("recover", "--dry-run")
    assert "unless cu-two" in ran.out and "waiting" not in ran.err
    ran = stele("recover", "--take", "cu-one", "--reason", "it is lost", "--no-wait")
    assert ran.exit_code == 0, ran.err
    assert "unless cu-two" in ran.out and "waiting" not in ran.err


@pytest.mark.parametrize(
    ("take", "last", "colour"), [("log", 12, "blue"), ("node", 10, "green"), ("one", 8, "")]
)
def test_a_process_is_taken_alone_with_the_replica_that_it_goes_on_from(
    server: Server, stele: Stele, replicas: list[str], take: str, last: int, colour: str
) -> None:
    """Two processes have unique epochs, and one of them has those that an unclean election lost."""
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
    ran = stele("recover", "--dry-run")
    assert ran.exit_code == 1 and "Epoch 9 differs between processes" in ran.err
    assert "cu-one" not in ran.err.partition("Find out")[0]
    ran = stele("recover", "--dry-run", "--take", f"{server.url}/{take}")
    assert ran.exit_code == 0, ran.err
    assert f"continues after epoch {last}, from cu-one" in ran.out
    (checked,) = server.asked_for(f"/one{CHECK}")
    expected = [each for each in records.get(take, []) if each.epoch > others.SHARED]
    assert (from_container(checked.body) if checked.body else []) == expected
    if colour:
        assert checked.query["state_id"] == [forks[take].image.state_id.hex()]
        (other,) = {*forks} - {take}
        assert f"another history: {server.url}/{other}" in ran.out


def test_a_recovery_needs_a_reason_before_anybody_is_asked(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    ran = stele("recover")
    assert ran.exit_code == 2
    assert "A recovery needs a reason" in ran.err
    assert not server.asked


def test_nobody_is_asked_but_the_named(server: Server, stele: Stele, replicas: list[str]) -> None:
    """The nodes of a backup that is restored elsewhere are those of the cluster that lives."""
    assert stele("recover", "--dry-run").exit_code == 0
    assert asked_of(server) >= {"/one", "/two", "/log", "/node"}
    for only, asked in (
        (["catch-up"], {"/one", "/two"}),
        ([replicas[1]], {"/two"}),
        (["catch-up", f"{server.url}/node"], {"/one", "/two", "/node"}),
        ([replicas[0], "metadata-log"], {"/one", "/log"}),
    ):
        server.asked.clear()
        ran = stele("recover", "--dry-run", *(f"--only={name}" for name in only))
        assert ran.exit_code == 0, ran.err
        assert asked_of(server) == asked


def test_only_is_an_address_or_a_service(stele: Stele, replicas: list[str]) -> None:
    ran = stele("recover", "--dry-run", "--only", "http://")
    assert ran.exit_code == 2
    assert "is no address of a service" in ran.err
