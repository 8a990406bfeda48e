"""The real process on a real broker: commands both ways, reads at every level, streams, crashes."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from stele.domain.commands import ClaimCoordinator, Envelope, Leave, SetSetting
from stele.domain.model.requests import named, parse, uuid7
from stele.log.brokers import Brokers
from stele.log.codec import encode_envelope
from stele.log.commander import Commander, OutcomeUnknownError
from stele.log.flows import flow_topic
from stele.metadata_log.openapi import openapi
from tests.deployment.metadata_log import DEADLINE_S, MetadataLog, Start, instances
from tests.polling import wait_until
from tests.services.groups import fence_member, forget_offsets
from tests.services.plain_kafka import Kafka

pytestmark = pytest.mark.broker

NESTED = "[" * 100_000 + "]" * 100_000
"""JSON nested deeper than any stack."""


@pytest.fixture
def start(kafka: str, cluster: str, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts healthy instances of the test's cluster. They end with the test."""
    with instances(tmp_path, kafka, cluster) as started:
        yield lambda instance="ml-1", **env: started(instance, **env).wait_healthy().wait_known()


@pytest.fixture(scope="module")
def shared(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetadataLog]:
    """Return one instance for tests that do not affect each other."""
    cluster = f"t{uuid.uuid4().hex[:12]}"
    service = MetadataLog(tmp_path_factory.mktemp("shared"), kafka, cluster, "shared")
    service.start().wait_healthy().wait_known()
    yield service
    assert service.stop() == 0


@pytest.fixture
def plain(kafka: str, cluster: str) -> Iterator[Kafka]:
    client = Kafka(kafka, cluster)
    yield client
    client.close()


def setting(request_id: str, value: str = "v") -> Envelope:
    return Envelope(request_id=named(request_id), command=SetSetting(request_id, value))


def test_epoch_of_a_command_has_actor_and_reason(shared: MetadataLog) -> None:
    body = {
        "request_id": named("who"),
        "actor": "ada",
        "reason": "a test",
        "command": {"type": "set_setting", "name": "who", "value": "x"},
    }
    outcome = shared.http.post("/v1/commands", json=body).json()
    epoch = shared.get(f"/v1/epochs/{outcome['epoch']}")
    assert outcome["applied"]
    assert outcome["state_id"] == epoch["state_id"]
    assert (epoch["actor"], epoch["reason"], epoch["origin"]) == ("ada", "a test", "http")
    assert shared.get("/v1/state")["settings"]["who"] == "x"


def test_rejection_is_409_with_the_complete_outcome(shared: MetadataLog) -> None:
    answer = shared.command("no", type="leave", node_id="nobody")
    outcome = answer.json()
    assert answer.status_code == 409
    assert not outcome["applied"]
    assert outcome["rejection"]["code"] == "unknown_node"
    metrics = shared.http.get("/metrics").text
    assert 'stele_log_rejections_total{code="unknown_node"}' in metrics


@pytest.mark.parametrize(
    ("body", "status", "code", "says"),
    [
        ("{", 400, "malformed_json", "not JSON"),
        ("", 400, "malformed_json", "not JSON"),
        ("[]", 400, "invalid_request", "Expected `object`"),
        ("{}", 400, "invalid_request", "`command`"),
        ('{"command":{"type":"explode"}}', 400, "invalid_request", "explode"),
        ('{"command":{"type":"noop"},"extra":1}', 400, "invalid_request", "extra"),
        ('{"command":{"type":"noop","extra":1}}', 400, "invalid_request", "extra"),
        ('{"command":{"type":"leave","node_id":7}}', 400, "invalid_request", "node_id"),
        ('{"command":{"type":"leave","node_id":"\\ud800"}}', 400, "malformed_json", ""),
        (f'{{"command":{{"extra":{NESTED},"type":"noop"}}}}', 400, "malformed_json", "not JSON"),
        (f'{{"command":{NESTED}}}', 400, "invalid_request", "`object`"),
        (NESTED, 400, "invalid_request", "`object`"),
    ],
)
def test_invalid_body_is_refused_with_the_reason(
    shared: MetadataLog, body: str, status: int, code: str, says: str
) -> None:
    answer = shared.http.post("/v1/commands", content=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert says in answer.json()["message"]
    assert answer.json()["hint"]
    assert shared.http.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    "command",
    [
        {"type": "claim_coordinator", "holder": "x", "term": 10**30},
        {"type": "advance", "term": -(10**30), "version": 10**30, "open": [["x"]]},
        {"type": "create_keyspace", "name": "k", "replication": {"dc1": 10**12}},
        {"type": "create_keyspace", "name": "k", "replication": {}},
        {"type": "join", "node_id": "n", "cluster": "c", "address": "a", "dc": "d", "rack": "r",
         "num_tokens": 10**20, "initial_tokens": [10**40]},
        {"type": "set_setting", "name": "x" * 10_000, "value": ""},
        {"type": "set_setting", "name": "x", "value": "v" * 70_000},
        {"type": "finish_cleanup", "term": 2**63, "node_id": "", "session": "s" * 9999},
    ],
)  # fmt: skip
def test_extreme_values_are_rejected_without_harm(
    shared: MetadataLog, command: dict[str, Any]
) -> None:
    answer = shared.command("", **command)
    assert answer.status_code == 409, answer.text
    assert answer.json()["rejection"]["code"] != "internal"
    assert shared.http.get("/healthz").status_code == 200


@pytest.mark.parametrize("level", ["barrier", "linearizable"])
def test_barrier_and_linearizable_reads_contain_earlier_commits(
    shared: MetadataLog, level: str
) -> None:
    done = shared.set("level", level)
    state = shared.get("/v1/state", level=level)
    assert state["epoch"] >= done["epoch"]
    assert state["settings"]["level"] == level


def test_past_state_is_exact_and_a_future_epoch_is_404(shared: MetadataLog) -> None:
    one = shared.set("past", "1")["epoch"]
    then = shared.get("/v1/state", epoch=one)
    shared.set("past", "2")
    assert shared.get("/v1/state", epoch=one) == then
    assert then["settings"]["past"] == "1"
    assert shared.get("/v1/state", epoch=0)["cluster"] == ""
    answer = shared.http.get("/v1/state", params={"epoch": 10**9})
    assert (answer.status_code, answer.json()["code"]) == (404, "epoch_not_found")
    assert answer.json()["details"]["newest"] == shared.get("/v1/state")["epoch"]


def test_diff_and_pages_of_epochs_have_the_selected_facts(shared: MetadataLog) -> None:
    first = shared.set("d", "1")["epoch"]
    last = shared.set("d", "2")["epoch"]
    found = shared.get("/v1/diff", **{"from": first, "to": last})
    assert found["settings"]["changed"] == {"d": {"before": "1", "after": "2"}}
    page = shared.get("/v1/epochs", **{"from": first, "limit": 2})
    assert [epoch["epoch"] for epoch in page] == [first, first + 1]
    assert shared.get("/v1/epochs", **{"from": 10**9}) == []
    only = {"from": first, "limit": 2, "facts": "RequestChanged,SettingChanged"}
    assert shared.get("/v1/epochs", **only) == page
    bare = shared.get("/v1/epochs", **{**only, "facts": "RequestChanged"})
    assert bare == [{**epoch, "facts": []} for epoch in page]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/state?epoch=x", 400),
        ("/v1/state?epoch=-1", 400),
        ("/v1/state?level=best", 400),
        ("/v1/epochs?limit=0", 400),
        ("/v1/epochs?limit=99999999999999999999", 400),
        ("/v1/epochs?facts=Gossip", 400),
        ("/v1/epochs/zero", 400),
        ("/v1/epochs/0", 404),
        ("/v1/diff", 400),
        ("/v1/nodes?limit=10001", 400),
        ("/v1/nodes?cursor=zz", 400),
        ("/v1/nodes?colour=red", 400),
        ("/v1/state?colour=red", 400),
        ("/v1/placements", 400),
        ("/v1/placements?keyspace=cellar", 404),
        ("/v1/requests/nothing", 404),
        ("/v1/transitions/nothing", 404),
        ("/v1/changes?from=999999", 404),
        ("/v1/diff?from=1&to=999999", 404),
        ("/v1/nothing", 404),
        ("/v1/commands", 405),
    ],
)
def test_invalid_queries_have_complete_error_bodies(
    shared: MetadataLog, path: str, status: int
) -> None:
    answer = shared.http.get(path)
    assert answer.status_code == status
    assert set(answer.json()) == {"code", "message", "hint", "details"}


def test_openapi_document_is_served(shared: MetadataLog) -> None:
    assert shared.get("/openapi.json") == json.loads(json.dumps(openapi()))


def test_a_stream_is_gapless_live_and_resumable(shared: MetadataLog) -> None:
    first = shared.set("s", "0")["epoch"]
    writing = threading.Thread(target=lambda: [shared.set("s", str(n)) for n in range(20)])
    seen = list[dict[str, Any]]()
    writing.start()
    seen.extend(shared.events(10, path=f"/v1/epochs?from={first}"))
    seen.extend(shared.events(11, **{"Last-Event-ID": str(seen[-1]["id"])}))
    writing.join()
    assert [event["id"] for event in seen] == list(range(first, first + 21))
    assert seen == [
        {"id": event["epoch"], **event}
        for event in shared.get("/v1/epochs", **{"from": first, "limit": 21})
    ]


def test_commands_through_kafka_are_answered_on_outcomes(start: Start, plain: Kafka) -> None:
    service = start()
    plain.send(encode_envelope(setting("a")), "a")
    refused = Envelope(request_id=named("b"), command=Leave("nobody"))
    plain.send(encode_envelope(refused), "b")
    first, second = plain.wait_for(named("a"), named("b"))
    assert first.applied
    assert service.get(f"/v1/epochs/{first.epoch}")["command"] == "set_setting"
    assert second.rejection is not None
    assert second.rejection.code == "unknown_node"
    assert service.get("/v1/state")["settings"]["a"] == "v"


def test_malformed_command_records_are_answered_and_block_nothing(
    start: Start, plain: Kafka
) -> None:
    service = start()
    good = encode_envelope(setting("good"))
    plain.send(b"not avro", "junk")
    plain.send(good[:-1], "cut")
    plain.send(b"\xc3\x01" + bytes(8) + good[10:], "schema")
    plain.send(b"no key", None)
    plain.send(b"", "empty")
    plain.send(good, "good")
    outcomes = plain.wait_for("junk", "cut", "schema", "empty", named("good"))
    codes = [o.rejection.code if o.rejection else "applied" for o in outcomes]
    assert [outcome.taken for outcome in outcomes] == [False, False, False, False, True]
    assert codes == [
        "unknown_schema",
        "malformed_command",
        "unknown_schema",
        "unknown_schema",
        "applied",
    ]
    metrics = service.http.get("/metrics").text
    assert 'stele_log_malformed_commands_total{answered="no"} 1.0' in metrics


def test_kill_and_restart_loses_no_command_and_applies_none_twice(
    start: Start, plain: Kafka
) -> None:
    service = start()
    sent = [setting(f"k{n}") for n in range(600)]
    plain.send_all(sent[:300])
    wait_until(lambda: service.get("/v1/state")["epoch"] > 20, "some epochs", DEADLINE_S)
    service.kill()
    plain.send_all(sent[300:])
    service = start()
    outcomes = plain.wait_for(*(envelope.request_id for envelope in sent))
    assert all(outcome.applied for outcome in outcomes)
    epochs = list[dict[str, Any]]()
    while page := service.get("/v1/epochs", **{"from": len(epochs) + 1, "limit": 500}):
        epochs.extend(page)
    commands = [epoch["request_id"] for epoch in epochs if epoch["command"] == "set_setting"]
    assert sorted(commands) == sorted(envelope.request_id for envelope in sent)
    for answers in plain.outcomes.values():
        assert len({answer.epoch for answer in answers}) == 1


def test_refused_command_that_is_read_again_is_refused_again(
    start: Start, plain: Kafka, kafka: str, cluster: str
) -> None:
    """The command would be valid by then, since the earlier term exists."""
    service = start()
    refused = Envelope(request_id=named("refused"), command=ClaimCoordinator("late", 2))
    plain.send_all([refused])
    first = plain.wait_for(refused.request_id)[0]
    assert first.rejection is not None and first.rejection.code == "stale_term"
    claimed = Envelope(request_id=named("claimed"), command=ClaimCoordinator("other", 1))
    plain.send_all([claimed])
    applied = plain.wait_for(claimed.request_id)[0]
    assert applied.applied
    service.kill()
    forget_offsets(kafka, f"stele.{cluster}.metadata-log")
    service = start()
    wait_until(
        lambda: plain.wait_for() == [] and all(len(seen) > 1 for seen in plain.outcomes.values()),
        "the commands to be answered again",
        DEADLINE_S,
    )
    assert plain.outcomes[refused.request_id] == [first, first]
    assert plain.outcomes[claimed.request_id] == [applied, applied]
    assert service.get("/v1/state")["coordinator"] == {"term": 1, "holder": "other"}
    refusals = service.get(f"/v1/epochs/{first.epoch}")["facts"]
    assert [(fact["type"], fact["request_id"]) for fact in refusals] == [
        ("CommandRefused", refused.request_id)
    ]


def test_command_that_is_not_taken_gets_a_hint(shared: MetadataLog) -> None:
    def status_and_code(**body: Any) -> tuple[int, str]:
        answer = shared.http.post("/v1/commands", json=body)
        assert answer.json()["hint"]
        return answer.status_code, answer.json()["code"]

    one = {"type": "set_setting", "name": "taken", "value": "1"}
    future = uuid7(time.time_ns() // 1_000_000 + 11 * 60_000, 1)
    assert shared.set("taken", "1", "taken")["applied"]
    assert status_and_code(command={**one, "value": "2"}, request_id=named("taken")) == (
        422,
        "request_id_reused",
    )
    assert status_and_code(command=one, request_id="deploy-42") == (400, "bad_request_id")
    assert status_and_code(command=one, request_id=future) == (400, "request_id_from_the_future")
    made = shared.http.post("/v1/commands", json={"command": one}).json()["request_id"]
    assert parse(made) is not None


def test_two_instances_race_and_agree(start: Start) -> None:
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(start, ("ml-1", "ml-2"))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: (one, two)[n % 2].set(f"s{n}", "v", f"r{n}"), range(200)))
        again = list(pool.map(lambda n: (two, one)[n % 2].set(f"s{n}", "v", f"r{n}"), range(200)))
    assert [a["epoch"] for a in answers] == [a["epoch"] for a in again]
    assert len({answer["epoch"] for answer in answers}) == 200
    one.get("/v1/state", level="barrier")
    two.get("/v1/state", level="barrier")
    places = [s.get("/v1/position") for s in (one, two)]
    assert places[0]["hash"] == places[1]["hash"]
    names = [epoch["command"] for epoch in one.get("/v1/epochs", limit=1000)]
    assert names.count("found") == 1


def test_another_instance_takes_over_the_commands(start: Start, plain: Kafka) -> None:
    first = start("ml-1")
    plain.send_all([setting("before")])
    plain.wait_for(named("before"))
    start("ml-2")
    first.kill()
    plain.send_all([setting("after")])
    assert plain.wait_for(named("after"))[0].applied


def test_instance_that_was_fenced_out_of_its_consumer_group_rejoins(
    start: Start, plain: Kafka, kafka: str, cluster: str
) -> None:
    """A long pause may fence out a process that rejoins."""
    service = start("ml-1")
    plain.send_all([setting("before")])
    plain.wait_for(named("before"))
    group, topic = f"stele.{cluster}.metadata-log", flow_topic(cluster, "commands")
    fence_member(kafka, group, topic, "ml-1")

    def reason() -> str:
        return str(service.http.get("/healthz").json()["reason"])

    wait_until(lambda: "consumer group" in reason(), "health to tell", DEADLINE_S)
    plain.send_all([setting("after")])
    assert plain.wait_for(named("after"))[0].applied
    wait_until(lambda: not reason(), "health to return", DEADLINE_S)


def test_unreadable_record_stops_the_service_with_a_reason(
    start: Start, kafka: str, cluster: str
) -> None:
    service = start()
    done = service.set("a", "1")
    producer = Producer({"bootstrap.servers": kafka})
    producer.produce(flow_topic(cluster, "epochs"), b"junk")
    assert producer.flush(DEADLINE_S) == 0
    wait_until(
        lambda: service.http.get("/healthz").status_code == 503, "health to turn", DEADLINE_S
    )
    health = service.http.get("/healthz").json()
    assert "At offset" in health["reason"]
    assert health["epoch"] == done["epoch"]
    answer = service.command("x", type="noop")
    assert (answer.status_code, answer.json()["code"]) == (503, "reader_stopped")
    assert service.get("/v1/state")["settings"]["a"] == "1"
    assert service.stop() == 0


def test_service_restarted_on_a_broken_log_reports_the_reason(
    start: Start, kafka: str, cluster: str, tmp_path: Path
) -> None:
    start().stop()
    producer = Producer({"bootstrap.servers": kafka})
    producer.produce(flow_topic(cluster, "epochs"), b"junk")
    assert producer.flush(DEADLINE_S) == 0
    service = MetadataLog(tmp_path, kafka, cluster, "ml-2").start()
    try:
        wait_until(
            lambda: "At offset" in service.http.get("/healthz").json()["reason"],
            "health to say why",
            DEADLINE_S,
        )
    finally:
        service.stop()


def test_too_many_commands_in_flight_is_503_with_retry_after(start: Start) -> None:
    service = start(STELE_MAX_IN_FLIGHT="1")
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda n: service.command(f"b{n}", type="noop"), range(200)))
    busy = [answer for answer in answers if answer.status_code == 503]
    assert {answer.status_code for answer in answers} == {200, 503}
    assert busy[0].headers["retry-after"] == "1"
    assert busy[0].json()["code"] == "busy"


async def test_commander_shares_the_outcome_of_equal_request_ids(
    start: Start, kafka: str, cluster: str
) -> None:
    await asyncio.to_thread(start)
    async with Commander(Brokers(kafka), cluster) as commander:
        asked = [commander.submit(setting(f"c{n % 20}"), 20) for n in range(40)]
        outcomes = await asyncio.gather(*asked)
        assert all(outcome.applied for outcome in outcomes)
        assert len({outcome.epoch for outcome in outcomes}) == 20
        again = await commander.submit(setting("c3"), 150)
        assert again.epoch == outcomes[3].epoch
        commander.send(setting("forgotten"))
        assert (await commander.submit(setting("forgotten"), 20)).applied


async def test_commander_raises_for_an_unknown_outcome(kafka: str, topics: str) -> None:
    async with Commander(Brokers(kafka), topics, resend_s=0.1) as commander:
        with pytest.raises(OutcomeUnknownError, match="is unknown"):
            await commander.submit(setting("a"), 0.5)


async def test_commander_resends_until_a_metadata_log_answers(
    start: Start, kafka: str, topics: str
) -> None:
    async with Commander(Brokers(kafka), topics, resend_s=0.2) as commander:
        waiting = asyncio.create_task(commander.submit(setting("early"), DEADLINE_S))
        await asyncio.to_thread(start)
        outcome = await waiting
    assert outcome.applied
