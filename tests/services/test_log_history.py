"""The history of a real log: searched and counted by a metadata-log, shown by the command line."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer

from stele.cli.main import run
from stele.domain.column import column_of
from stele.domain.model.requests import named
from stele.log.brokers import Brokers
from stele.log.flows import flow_topic
from stele.log.kafka import KafkaLog
from stele.metadata_log.openapi import openapi
from stele.runtime.answers.history import SearchAnswer
from stele.runtime.answers.metadata_log import StatsAnswer
from tests.deployment.metadata_log import DEADLINE_S, MetadataLog, Start, instances
from tests.polling import wait_until

pytestmark = pytest.mark.broker

SETTINGS = 300
"""More epochs than the first page searches."""


@pytest.fixture(scope="module")
def name() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def start(kafka: str, name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    with instances(tmp_path_factory.mktemp("history"), kafka, name) as started:
        yield lambda instance="ml-1", **env: started(instance, **env).wait_healthy().wait_known()


@pytest.fixture(scope="module")
def service(start: Start, kafka: str, name: str) -> MetadataLog:
    """Return a log with settings, one of them by bob, a refused command of bob, and a loser."""
    service = start("ml-1")
    assert ask(service, "bob", type="set_setting", name="colour", value="red") == 200
    for number in range(SETTINGS):
        service.set(f"s{number % 9}", str(number))
    repeat_a_record(kafka, name)
    assert ask(service, "bob", type="leave", node_id="n9") == 409
    return service


def ask(service: MetadataLog, actor: str, **command: Any) -> int:
    body = {
        "request_id": named(f"{actor} {command}"),
        "actor": actor,
        "reason": "the Reading Room",
        "command": command,
    }
    return service.http.post("/v1/commands", json=body).status_code


def repeat_a_record(bootstrap: str, cluster: str) -> None:
    topic = flow_topic(cluster, "epochs")

    async def second() -> bytes:
        log = KafkaLog(Brokers(bootstrap), topic)
        try:
            return (await log.read(1, 1))[0].value
        finally:
            await log.close()

    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, asyncio.run(second()))
    assert producer.flush(20) == 0


def search(service: MetadataLog, **asked: Any) -> list[dict[str, Any]]:
    """Return the matches of all pages."""
    found, before = list[dict[str, Any]](), 1 << 40
    while before:
        answer = service.get("/v1/epochs/search", **asked, before=before)
        assert answer["next_before"] < before
        found, before = found + answer["epochs"], answer["next_before"]
    return found


def test_epochs_are_searched_by_actor_fact_and_time(service: MetadataLog) -> None:
    refused, red = search(service, actor="bob")
    assert red["facts"] == [
        {"type": "SettingChanged", "name": "colour", "value": "red", "unsafe": False}
    ]
    assert refused["facts"][0]["type"] == "CommandRefused"
    assert search(service, refused="true") == search(service, command="leave") == [refused]
    assert search(service, request=red["request_id"]) == [red]
    assert search(service, about="n9", actor="bob") == []
    assert search(service, about="colour", facts="SettingChanged") == [red]
    assert search(service, text="reading ROOM colour") == [red]
    assert search(service, facts="ClusterCreated")[0]["epoch"] == 1
    newest = service.get("/v1/topology")["epoch"]
    everything = search(service, limit=7)
    assert [epoch["epoch"] for epoch in everything] == [*range(newest, 0, -1)]
    middle = everything[SETTINGS // 2]["at_ms"]
    expected = [epoch for epoch in everything if epoch["at_ms"] >= middle]
    assert search(service, since_ms=middle, limit=1000) == expected
    expected = [epoch for epoch in everything if epoch["at_ms"] <= middle]
    assert search(service, until_ms=middle, limit=1000) == expected


def test_invalid_search_parameters_are_refused(service: MetadataLog) -> None:
    for params in ({"actr": "bob"}, {"refused": "maybe"}, {"facts": "Nothing"}, {"since_ms": "x"}):
        for path in ("/v1/epochs/search", "/v1/epochs/stats"):
            answer = service.http.get(path, params=params)
            assert answer.status_code == 400, (path, params)
            assert answer.json()["hint"]


def test_stats_count_epochs_commands_and_actors(service: MetadataLog, name: str) -> None:
    answer = service.get("/v1/epochs/stats")
    newest = service.get("/v1/topology")["epoch"]
    stats = answer["stats"]
    assert (stats["first"], stats["last"], answer["next_from"]) == (1, newest, 0)
    assert stats["total"]["epochs"] == newest
    assert stats["commands"]["set_setting"]["epochs"] == SETTINGS + 1
    assert stats["actors"]["bob"]["epochs"] == 1
    assert (answer["losers"], answer["strays"], stats["beside"]) == (1, 0, 1)
    assert stats["last_offset"] == newest
    part = service.get("/v1/epochs/stats", **{"from": 3, "to": 5})["stats"]
    assert (part["first"], part["last"], part["beside"]) == (3, 5, 0)


def test_answers_match_their_documented_types(service: MetadataLog) -> None:
    document = openapi()
    for path, kind in (("search", SearchAnswer), ("stats", StatsAnswer)):
        raw = service.http.get(f"/v1/epochs/{path}").content
        msgspec.json.decode(raw, type=kind, dec_hook=column_of)
        fields = {field.name for field in msgspec.structs.fields(kind)}
        assert {*json.loads(raw)} == fields
        assert f"/v1/epochs/{path}" in document["paths"]
        assert kind.__name__ in document["components"]["schemas"]


def stele(service: MetadataLog, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert run([*arguments, "--url", str(service.http.base_url)]) == 0
    return capsys.readouterr().out


def test_command_line_shows_search_results(
    service: MetadataLog, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = service.get("/v1/topology")["epoch"]
    red, refused, last = stele(service, capsys, "log", "search", "--actor", "bob").splitlines()
    assert "leave by bob (the Reading Room) is refused" in refused
    assert red.endswith("colour = red")
    assert last.startswith(f"found 2 epochs; looked at {newest} epochs in ")
    shown = stele(service, capsys, "log", "tail", "--last", "3", "--facts", "SettingChanged")
    numbers = [str(number) for number in range(SETTINGS - 3, SETTINGS)]
    assert [line.split()[-1] for line in shown.splitlines()] == numbers
    stats = stele(service, capsys, "log", "stats", "--all")
    assert f"1 to {newest}: {newest}" in stats
    assert "1 loser and 0 strays" in stats


def test_following_tail_continues_at_another_instance(
    service: MetadataLog, start: Start, tmp_path: Path
) -> None:
    other = start("ml-2")
    urls = [f"--url={each.http.base_url}" for each in (other, service)]
    command = [sys.executable, "-m", "stele.cli", "log", "tail", "--follow", "--json", *urls]
    shown = tmp_path / "shown"

    def numbers() -> list[int]:
        whole = shown.read_text().rpartition("\n")[0]
        return [json.loads(line)["epoch"] for line in whole.splitlines()]

    with shown.open("wb") as out:
        tail = subprocess.Popen([*command, "--facts=SettingChanged"], stdout=out)
    try:
        wait_until(numbers, "the newest epochs", DEADLINE_S)
        before = [service.set("late", str(n))["epoch"] for n in range(5)]
        wait_until(lambda: before[-1] in numbers(), "epochs from the first instance", DEADLINE_S)
        other.kill()
        after = [service.set("late", str(n))["epoch"] for n in range(5, 9)]
        wait_until(lambda: after[-1] in numbers(), "epochs from the other instance", DEADLINE_S)
        found = numbers()
        assert found[-9:] == [*before, *after]
        assert len(found) == len({*found}) == 10 + 9
    finally:
        tail.terminate()
        tail.wait(DEADLINE_S)
