"""Reports of replicas and processes to ``stele recover``: invalid values, fewer epochs than before, invalid
ids.
"""

from __future__ import annotations

import io
import json
from typing import Any

import msgspec
import pytest

from stele.log.archive.container import Archived, as_container
from stele.runtime.answers.catch_up import HistoryAnswer
from stele.runtime.recent import Promised
from tests.catch_up import others
from tests.cli.conftest import Server, Stele
from tests.cli.test_recover import LOG, becomes_silent, history, node_reports, replicas
from tests.domain.epochs import LOG_ID

__all__ = ["replicas"]

BEFORE = {
    "log_id": "0b" * 16,
    "topic_id": "",
    "last_epoch": 2,
    "state_id": "02" * 16,
    "known_epoch": 2,
    "version_floor": 0,
}


def replica_reports(server: Server, name: str, *told: HistoryAnswer | bytes) -> None:
    server.answers["GET", f"/{name}/v1/history"].clear()
    for each in told:
        server.answer("GET", f"/{name}/v1/history", each)


def process_reports(server: Server, name: str, *parts: list[Archived]) -> None:
    for part in parts:
        content = io.BytesIO()
        as_container(content, part)
        server.answer("GET", f"/{name}/v1/recent", content.getvalue())


def records(last: int) -> list[Archived]:
    return list(others.records_of(others.story_of(last, "blue")))


def with_states(name: str, *known: Archived) -> HistoryAnswer:
    states = {each.epoch: each.links[1].hex() for each in known}
    return msgspec.structs.replace(history(f"cu-{name}", "", states), log_id=LOG_ID.hex())


@pytest.mark.parametrize(
    "change",
    [
        {"states": {"3": "zz" * 16}},
        {"states": {"3": ""}},
        {"states": {"-3": "03" * 16}},
        {"states": {"3": "03" * 16, str(2**62 + 5): "04" * 16}},
        {"last_image": -1},
        {"incarnations": [{**BEFORE, "state_id": "zz"}]},
    ],
)
def test_invalid_history_counts_as_no_answer(
    server: Server, stele: Stele, replicas: list[str], change: dict[str, Any]
) -> None:
    replica_reports(
        server, "two", json.dumps(msgspec.to_builtins(history("cu-two", "")) | change).encode()
    )
    ran = stele.exits(1, "recover", "--dry-run")
    assert f"The answer of {replicas[1]} cannot be read: " in ran.out
    assert f"--without {replicas[1]}" in ran.err


@pytest.mark.parametrize(
    "address",
    [
        *("http://[zz", "http://user:p[w@h", "http://127.0.0.1:9/[/red]"),
        *("http://ä_b:7100", "http://xn--a", "http://a b"),
    ],
)
def test_node_with_an_invalid_address_is_reported_as_silent(
    server: Server, stele: Stele, replicas: list[str], address: str
) -> None:
    replica_reports(server, "two", history("cu-two", address))
    assert f"{address}: " in stele.ok("recover", "--dry-run").out


def test_markup_in_names_is_printed_literally(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    replica_reports(server, "two", history("[/red] cu", ""))
    assert f"[/red] cu ({replicas[1]}): holds images" in stele("recover", "--dry-run").out


def test_replica_that_reports_fewer_epochs_later_still_has_them(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    told = records(12)
    replica_reports(server, "one", with_states("one", *told), with_states("one", *told[:8]))
    replica_reports(server, "two")
    becomes_silent(server, "two")
    server.answer("GET", "/two/v1/history", with_states("two", *told[:8]))
    ran = stele("recover", "--reason", "it is lost", "--no-wait", "--timeout", "10")
    assert "continues after epoch 12, from cu-one" in ran.out


def test_epochs_of_several_processes_continue_each_other(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    told = records(20)
    one = msgspec.structs.replace(with_states("one", *told[:8]), nodes={"n1": f"{server.url}/node"})
    replica_reports(server, "one", one)
    replica_reports(server, "two", with_states("two", *told[:8]))
    process_reports(server, "log", told[8:12])
    process_reports(server, "node", told[10:20])
    assert "continues after epoch 20, from cu-one" in stele.ok("recover", "--dry-run").out


def test_every_id_of_a_silent_address_is_listed(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    """The replaced replica was never forgotten, and shares its address with the present one."""
    members = {"cu-old": replicas[1], "cu-new": replicas[1]}
    replica_reports(server, "one", msgspec.structs.replace(history("cu-one", ""), replicas=members))
    replica_reports(server, "two")
    becomes_silent(server, "two")
    assert stele("recover", "--dry-run").exit_code == 1
    assert "--without cu-new." in stele.exits(1, "recover", "--dry-run", "--without", "cu-old").err
    both = ("--without", "cu-old", "--without", "cu-new")
    assert stele("recover", "--dry-run", *both).exit_code == 0
    assert stele("recover", "--dry-run", "--without", replicas[1]).exit_code == 0


def test_without_option_refuses_an_id_of_two_silent_addresses(
    server: Server, stele: Stele, replicas: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = [f"{server.url}/three", f"{server.url}/four"]
    monkeypatch.setenv("STELE_CATCH_UP_URLS", ",".join([*replicas, *more]))
    for name, url in zip(("one", "two"), more, strict=True):
        known = msgspec.structs.replace(history(f"cu-{name}", ""), replicas={"cu-x": url})
        replica_reports(server, name, known)
    ran = stele.exits(2, "recover", "--dry-run", "--without", "cu-x")
    assert "2 addresses are of 'cu-x'." in ran.err
    ran = stele("recover", "--dry-run")
    options = ran.err.rpartition("continue without them: ")[2].strip().rstrip(".").split()
    assert sorted(options) == sorted(["--without", "--without", *more])
    assert stele("recover", "--dry-run", *options).exit_code == 0


def test_member_is_missing_if_another_replica_answers_at_its_address(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    members = {"cu-one": replicas[0], "cu-two": replicas[1]}
    replica_reports(server, "one", msgspec.structs.replace(history("cu-one", ""), replicas=members))
    empty = msgspec.structs.replace(
        history("cu-nine", ""), states={}, first_image=0, last_image=0, log_id="00" * 16
    )
    replica_reports(server, "two", empty)
    ran = stele.exits(1, "recover", "--dry-run")
    assert (
        f"cu-two ({replicas[1]}) does not report what it holds (cu-nine answers at its" in ran.err
    )
    ran = stele.ok("recover", "--dry-run", "--without", "cu-two")


def one_reports_members(server: Server, times: int = 1, **members: str) -> None:
    """Replica one reports these members, as often as ``times``. The other replica reports none."""
    urls = {f"cu-{name}": f"{server.url}/{where}" for name, where in members.items()}
    told = msgspec.structs.replace(history("cu-one", ""), replicas=urls)
    replica_reports(server, "one", *[told] * times)


def test_replaced_replica_is_still_missing_if_its_reporter_becomes_silent(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    """The same holds for an id in ``--without``."""
    one_reports_members(server, 3, nine="two", ten="ten")
    becomes_silent(server, "one")
    asks = ("recover", "--reason", "it is lost", "--no-wait", "--timeout", "2")
    ran = stele.exits(1, *asks, "--without", "cu-ten")
    assert "--without cu-nine." in ran.err
    assert f"waiting for cu-nine ({replicas[1]})" in ran.err, ran.err
    assert not any(server.asked_for(f"/{name}/v1/recover") for name in ("one", "two"))
    one_reports_members(server, 1, nine="two", ten="ten")
    ran = stele.ok("recover", "--dry-run", "--without", "cu-ten", "--without", "cu-nine")


@pytest.mark.parametrize("teller", ["one", "two"])
def test_replica_is_read_at_every_reported_address(
    server: Server, stele: Stele, replicas: list[str], teller: str
) -> None:
    """One of the reporters does not know the new address."""
    moved = {"one": "new", "two": "old"} if teller == "one" else {"one": "old", "two": "new"}
    for name, where in moved.items():
        members = {"cu-nine": f"{server.url}/{where}"}
        replica_reports(
            server, name, msgspec.structs.replace(history(f"cu-{name}", ""), replicas=members)
        )
    later = {3: "03" * 16, 4: "04" * 16}
    server.answer("GET", "/new/v1/history", history("cu-nine", "", later))
    ran = stele.exits(1, "recover", "--dry-run")
    assert f"cu-nine ({server.url}/new) holds later epochs" in ran.err, ran
    assert "does not report" not in ran.err


def test_suggested_without_option_works_for_a_moved_replica(
    server: Server, stele: Stele, replicas: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings still have the old address, which another process may use."""
    old = f"{server.url}/old"
    monkeypatch.setenv("STELE_CATCH_UP_URLS", ",".join([*replicas, old]))
    one_reports_members(server, two="old")
    assert f"--without {old}." in stele.exits(1, "recover", "--dry-run").err
    assert stele("recover", "--dry-run", "--without", old).exit_code == 0


LONGER = {each: f"{each:02}" * 16 for each in range(2, 7)}


def recovered_after_3(replica_id: str) -> bytes:
    """Return the history of a replica whose log continued after epoch 3 of the longer log."""
    given_up = BEFORE | {"log_id": LOG, "last_epoch": 3, "state_id": LONGER[3]}
    states = {2: LONGER[2], 3: LONGER[3], 4: "0f" * 16}
    told = msgspec.to_builtins(history(replica_id, "", states))
    return json.dumps(told | {"log_id": "0c" * 16, "incarnations": [given_up]}).encode()


def test_starting_replica_may_know_a_later_recovery(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    """One replica missed a recovery that the other knows."""
    replica_reports(server, "one", history("cu-one", f"{server.url}/node", LONGER))
    node_reports(server, 4, "0f" * 16, "0c" * 16)
    replica_reports(server, "two")
    becomes_silent(server, "two")
    ran = stele.exits(1, "recover", "--dry-run")
    assert "Epoch 4 differs between processes" in ran.err
    assert f"{replicas[1]} does not report what it holds" in ran.err
    assert "it may settle that." in ran.err
    server.answer("GET", "/two/v1/history", recovered_after_3("cu-two"))
    asks = ("recover", "--reason", "it is lost", "--no-wait", "--timeout", "10")
    ran = stele(*asks, "--lose-after", "4")
    assert f"waiting for {replicas[1]} to answer" in ran.err
    assert "continues after epoch 4, from cu-two" in ran.out


@pytest.mark.parametrize("again", ["promise", "end"])
def test_epochs_reported_before_a_restart_still_count(
    server: Server, stele: Stele, replicas: list[str], again: str
) -> None:
    """The process restarts during the wait, and then reports only its promise or its last epochs."""
    told = records(12)
    one = msgspec.structs.replace(with_states("one", *told[:8]), nodes={"n1": f"{server.url}/node"})
    replica_reports(server, "one", one)
    replica_reports(server, "two")
    for _ in range(2):
        becomes_silent(server, "two")
    server.answer("GET", "/two/v1/history", with_states("two", *told[:8]))
    process_reports(server, "node", told[8:], told[8:])
    if again == "end":
        process_reports(server, "node", told[11:])
    else:
        content = io.BytesIO()
        promise = Promised(LOG_ID.hex(), 12, told[11].links[1].hex())
        text = msgspec.json.encode(promise).decode()
        as_container(content, [], {"stele.promised": text})
        server.answer("GET", "/node/v1/recent", content.getvalue())
    asks = ("recover", "--reason", "it is lost", "--no-wait", "--timeout", "10")
    ran = stele(*asks)
    assert f"waiting for {replicas[1]} to answer" in ran.err
    assert "continues after epoch 12" in ran.out, ran


def test_epochs_given_up_by_an_earlier_recovery_are_listed(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    """A replica that was unavailable in the earlier recovery is available again."""
    replica_reports(server, "one", recovered_after_3("cu-one"))
    replica_reports(server, "two", history("cu-two", "", LONGER))
    ran = stele.exits(1, "recover", "--dry-run")
    assert "continues after epoch 4, from cu-one" in ran.out and "no epoch is lost" not in ran.out
    said = f"epochs 4 to 6 of log {LOG}, which cu-two ({replicas[1]}) holds"
    assert f"GIVEN UP by an earlier recovery: {said}" in ran.out
    assert "--take" in ran.err and "--lose-after 4." in ran.err
    assert stele("recover", "--dry-run", "--lose-after", "4").exit_code == 0
    back = stele.ok("recover", "--dry-run", "--take", "cu-two")
    assert "continues after epoch 6, from cu-two" in back.out


def test_later_log_without_remaining_epochs_needs_a_decision(
    server: Server, stele: Stele, replicas: list[str]
) -> None:
    node_reports(server, 3, "03" * 16, "0c" * 16)
    ran = stele.exits(1, "recover", "--dry-run")
    assert f"({server.url}/node has read epoch 3 of log {'0c' * 16})" in ran.err
