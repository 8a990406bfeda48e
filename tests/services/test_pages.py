"""Reads of the metadata-log over HTTP, with the log in memory: pages, filters, 304, gzip, streamed state."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from collections.abc import AsyncGenerator, AsyncIterator
from itertools import count
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaError

from stele.domain.column import column_of
from stele.domain.commands import (
    Cancel,
    CreateKeyspace,
    CreateTable,
    Envelope,
    NoopRequest,
    SetSetting,
)
from stele.domain.image import EMPTY, Image
from stele.domain.view import diff, view
from stele.log.errors import LostWinnersError, OffsetGoneError, OtherHistoryError
from stele.log.history import Winner
from stele.log.kafka import TopicMissingError
from stele.log.port import Record
from stele.metadata_log.openapi import openapi
from stele.metadata_log.questions import PageCursor
from stele.metadata_log.writer import Writer
from stele.runtime.answers import metadata_log as answers
from stele.runtime.answers.history import ChangesAnswer, DiffAnswer, EpochAnswer, StateAnswer
from stele.runtime.request_ids import new_request_id
from tests.deployment.in_memory import Site, site_with_a_join
from tests.log.memory import MemoryLog, MemoryPartition
from tests.polling import until

PLAIN = {"accept-encoding": "identity"}


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with site_with_a_join() as found:
        yield found


async def change(site: Site, value: str) -> None:
    envelope = Envelope(request_id=new_request_id(), command=SetSetting("colour", value))
    assert (await site.writer.commit(envelope, 10)).applied


def plain(image: Image) -> Any:
    return json.loads(msgspec.json.encode(view(image)))


class BehindLog(MemoryLog):
    """A broker without the newest records."""

    async def read(self, offset: int, limit: int) -> list[Record]:
        return []


@pytest.mark.parametrize("path", ["/v1/epochs/3", "/v1/epochs?from=3", "/v1/state?epoch=3"])
async def test_slow_read_of_an_epoch_times_out_and_is_not_404(site: Site, path: str) -> None:
    history = site.writer.history
    history._recent.clear()
    del history._images[1:]
    history._log = BehindLog(MemoryPartition())
    answer = await site.http.get(path)
    assert (answer.status_code, answer.json()["code"]) == (504, "timed_out")


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
async def test_streamed_state_equals_the_view(site: Site, encoding: str) -> None:
    answer = await site.http.get("/v1/state", headers={"accept-encoding": encoding})
    assert answer.headers.get("content-encoding", "identity") == encoding
    assert answer.json() == plain(site.writer.image)
    assert list(answer.json()) == list(plain(site.writer.image))
    msgspec.json.decode(answer.content, type=StateAnswer)


@pytest.mark.parametrize(
    ("path", "name", "params"),
    [
        ("/v1/nodes", "nodes", {}),
        ("/v1/services", "services", {}),
        ("/v1/requests", "requests", {}),
        ("/v1/keyspaces", "keyspaces", {}),
        ("/v1/placements", "rows", {"placement": "dc1:3"}),
        ("/v1/cdc/generations", "cdc_generations", {}),
    ],
)
async def test_joined_pages_equal_the_section_of_the_view(
    site: Site, path: str, name: str, params: dict[str, str]
) -> None:
    section = plain(site.writer.image)[path.removeprefix("/v1/").replace("/", "_")]
    expected = section["dc1:3"] if path == "/v1/placements" else section
    for limit in (1, 2, 1000):
        assert await site.all_rows(path, name, limit=limit, **params) == expected


async def test_each_page_of_tables_has_the_tablets_of_its_tables(site: Site) -> None:
    for command in (
        CreateKeyspace("music", {"dc1": 3}, tablets=True, initial_tablets=4),
        CreateTable("music.bands"),
        CreateTable("music.songs"),
        CreateTable("library.books"),
    ):
        envelope = Envelope(request_id=new_request_id(), command=command)
        assert (await site.writer.commit(envelope, 10)).applied
    whole = await site.get("/v1/tables")
    tablets = {t["name"]: whole["tablets"].get(t["table_id"]) for t in whole["tables"]}
    assert tablets == {"bands": 4, "songs": 4, "books": None}
    first = await site.get("/v1/tables", limit=2)
    assert [*first["tablets"]] == [t["table_id"] for t in first["tables"] if t["placement"]]


async def test_cdc_streams_are_paged_in_ring_order_or_selected_by_token(site: Site) -> None:
    newest = site.writer.image.cdc.newest()
    assert newest is not None
    rows = [
        {
            "end": int.from_bytes(newest.streams[at : at + 8], "big", signed=True),
            "stream_id": newest.streams[at : at + 16].hex(),
        }
        for at in range(0, len(newest.streams), 16)
    ]
    assert len(rows) > 2
    for limit in (1, 1000):
        assert await site.all_rows("/v1/cdc/streams", "streams", limit=limit) == rows
    path, name = "/v1/cdc/streams", newest.generation_id
    assert await site.all_rows(path, "streams", limit=2, generation=name) == rows
    for token, expected in ((rows[1]["end"], rows[1]), (2**63 - 1, rows[0])):
        assert await site.all_rows(path, "streams", limit=5, token=token) == [expected]
    answer = await site.http.get(path, params={"generation": "nobody"})
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_generation")


async def test_schema_is_changed_and_read_at_each_epoch(site: Site) -> None:
    before = await site.get("/v1/schema")
    keyspace = {"type": "create_keyspace", "name": "radio", "replication": {"dc1": 1}}
    table = {
        "type": "create_table",
        "name": "radio.songs",
        "columns": [{"name": "id", "type": "uuid", "kind": "partition_key"}],
    }
    asked = {"changes": [keyspace, table], "schema_version": 0, "reason": "radio"}
    changed = await site.http.post("/v1/schema", json=asked)
    assert changed.status_code == 200, changed.text
    epoch, state_id = changed.json()["epoch"], changed.json()["state_id"]
    after = await site.get("/v1/schema")
    assert after["schema_version"] == {"epoch": epoch, "state_id": state_id}
    (schema,) = after["table_schemas"]
    assert [column["name"] for column in schema["columns"]] == ["id"]
    assert await site.get("/v1/schema", epoch=epoch - 1) == before
    assert site.agreements == [(epoch, 10)]
    assert (changed.json()["agreed"], changed.json()["behind"]) == (False, ["n3"])
    again = await site.http.post("/v1/schema", json=asked)
    assert again.status_code == 409
    assert again.json()["rejection"]["code"] == "keyspace_exists"
    cql = "ALTER TABLE radio.songs ADD artist text; CREATE INDEX ON radio.songs (artist)"
    quick = await site.http.post("/v1/schema", json={"cql": cql, "no_wait": True})
    assert quick.status_code == 200 and "agreed" not in quick.json()
    assert site.agreements == [(epoch, 10)], "neither a rejection nor no_wait waits"
    (schema,) = (await site.get("/v1/schema"))["table_schemas"]
    assert [index["name"] for index in schema["indexes"]] == ["songs_artist_idx"]
    for body, code in (
        ({"changes": [{"type": "create_tabel"}]}, "invalid_request"),
        ({}, "invalid_request"),
        ({"cql": cql, "wait_s": 61}, "invalid_request"),
        ({"cql": "DROP TABL radio.songs"}, "bad_cql"),
    ):
        wrong = await site.http.post("/v1/schema", json=body)
        assert (wrong.status_code, wrong.json()["code"]) == (400, code)


async def test_all_pages_are_of_the_epoch_of_the_first_page(site: Site) -> None:
    first = await site.get("/v1/nodes", limit=1)
    for n in range(30):
        await change(site, str(n))
    second = await site.get("/v1/nodes", limit=1, cursor=first["next_cursor"])
    assert (second["epoch"], second["state_id"]) == (first["epoch"], first["state_id"])
    assert second["nodes"] != first["nodes"]
    assert site.writer.image.epoch == first["epoch"] + 30


def nested_cursor() -> str:
    """Return a cursor that contains lists nested deeper than any stack."""
    raw = (
        msgspec.json.encode(PageCursor(1, "", 0, 0))[:-1] + b"," + b"[" * 5000 + b"]" * 5000 + b"]"
    )
    return base64.urlsafe_b64encode(raw).decode()


async def test_cursor_is_valid_only_for_its_query(site: Site) -> None:
    cursor = (await site.get("/v1/nodes", limit=1))["next_cursor"]
    for path, params in (
        ("/v1/keyspaces", {"cursor": cursor}),
        ("/v1/requests", {"cursor": cursor, "status": "done"}),
        ("/v1/nodes", {"cursor": cursor[:-3]}),
        ("/v1/nodes", {"cursor": "ü"}),
        ("/v1/nodes", {"cursor": nested_cursor()}),
    ):
        answer = await site.http.get(path, params=params)
        assert answer.status_code == 400, (path, answer.text)
        assert answer.json()["code"] == "invalid_request"


async def test_cursor_of_another_history_is_expired(site: Site) -> None:
    text = (await site.get("/v1/nodes", limit=1))["next_cursor"]
    cursor = msgspec.json.decode(base64.urlsafe_b64decode(text + "=="), type=PageCursor)
    other = msgspec.structs.replace(cursor, state_id="ab" * 16)
    forged = base64.urlsafe_b64encode(msgspec.json.encode(other)).decode()
    answer = await site.http.get("/v1/nodes", params={"cursor": forged})
    assert (answer.status_code, answer.json()["code"]) == (410, "cursor_expired")


async def test_requests_are_filtered_by_status_kind_node_and_prefix(site: Site) -> None:
    found = await site.all_rows("/v1/requests", "requests", unfinished="true")
    assert [r["request_id"] for r in found] == ["join-n4"]
    assert await site.all_rows("/v1/requests", "requests", prefix="join-n4") == found
    assert await site.all_rows("/v1/requests", "requests", node="n4", kind="join") == found
    done = await site.all_rows("/v1/requests", "requests", status="done", limit=1)
    assert len(done) == 3
    unknown = await site.http.get("/v1/requests", params={"colour": "red"})
    assert unknown.status_code == 400
    assert "status" in unknown.json()["hint"]


async def test_page_of_requests_has_the_epoch_since_which_it_is_complete(site: Site) -> None:
    whole = await site.get("/v1/requests", limit=1)
    assert whole["since_epoch"] == 0, "none was forgotten"
    asked = new_request_id()
    for request_id, command in (
        (new_request_id(), SetSetting("finished_requests", "1")),
        (asked, NoopRequest()),
        (new_request_id(), Cancel(asked)),
    ):
        envelope = Envelope(request_id=request_id, command=command)
        assert (await site.writer.commit(envelope, 10)).applied
    page = msgspec.convert(await site.get("/v1/requests", status="cancelled"), answers.RequestsPage)
    assert [r.request_id for r in page.requests] == [asked]
    newest = site.writer.image.requests.forgotten
    assert newest is not None
    assert (page.since_epoch, page.since_ms) == (newest.finished_epoch, newest.ended_ms)


async def test_single_request_has_its_transition(site: Site) -> None:
    found = await site.get("/v1/requests/join-n4")
    assert found["transition"]["transition_id"] == "join-n4"
    assert found["transition"]["ranges"]["dc1:3"] > 0
    assert "plans" not in found["transition"]
    none = await site.http.get("/v1/requests/nothing")
    assert (none.status_code, none.json()["code"]) == (404, "unknown_request")


async def test_times_of_repairs_are_paged(site: Site) -> None:
    commands = (
        CreateKeyspace("music", {"dc1": 2}, tablets=True, initial_tablets=4),
        CreateTable("music.songs"),
        CreateTable("library.books"),
    )
    for command in commands:
        envelope = Envelope(request_id=new_request_id(), command=command)
        assert (await site.writer.commit(envelope, 10)).applied
    found, cursor = list[answers.TabletRepairTime](), ""
    while True:
        params = {"table": "music.songs", "limit": "3", **({"cursor": cursor} if cursor else {})}
        answer = await site.http.get("/v1/repairs", params=params)
        page = msgspec.json.decode(answer.content, type=answers.RepairsPage)
        assert (page.table, page.tablets) == ("music.songs", 4)
        found += page.repairs
        cursor = page.next_cursor
        if not cursor:
            break
    assert found == [answers.TabletRepairTime(tablet, 0) for tablet in range(4)]
    for name in ("music.none", "library.books", ""):
        missing = await site.http.get("/v1/repairs", params={"table": name})
        assert missing.status_code == 404
    assert "RepairsPage" in openapi()["components"]["schemas"]


async def test_topology_has_a_summary_and_the_plan_is_paged(site: Site) -> None:
    topology = await site.get("/v1/topology")
    (summary,) = topology["transitions"]
    rows = await site.all_rows("/v1/transitions/join-n4", "rows", limit=3)
    assert len(rows) == sum(summary["ranges"].values())
    plan = site.writer.image.topology.transitions["join-n4"].plans["dc1:3"]
    assert [(r["start"], tuple(r["new"])) for r in rows] == [(r.start, r.new) for r in plan.rows]


async def test_placements_are_selected_by_token_and_range(site: Site) -> None:
    placement = site.writer.image.ring.placements["dc1:3"]
    (row,) = await site.all_rows("/v1/placements", "rows", placement="dc1:3", token=5)
    assert row["start"] == placement.row_for(5).start
    some = placement.rows[2:4]
    asked = f"{some[0].start}:{some[-1].end}"
    found = await site.all_rows("/v1/placements", "rows", placement="dc1:3", range=asked)
    assert [r["start"] for r in found] == [r.start for r in some]
    wrongs: list[dict[str, str | int]] = [
        {},
        {"placement": "dc1:3", "token": 1 << 63},
        {"placement": "dc1:3", "range": "1"},
    ]
    for wrong in wrongs:
        assert (await site.http.get("/v1/placements", params=wrong)).status_code == 400
    gone = await site.http.get("/v1/placements", params={"keyspace": "cellar"})
    assert (gone.status_code, gone.json()["code"]) == (404, "unknown_keyspace")


async def test_settings_are_paged(site: Site) -> None:
    await change(site, "red")
    page = await site.get("/v1/settings")
    assert page["settings"] == {"colour": "red"}
    msgspec.json.decode(json.dumps(page), type=answers.SettingsPage)


async def test_unchanged_state_is_304(site: Site) -> None:
    for path in ("/v1/nodes", "/v1/topology", "/v1/state", "/v1/requests/join-n4"):
        etag = (await site.http.get(path)).headers["etag"]
        assert site.writer.image.state_id.hex() in etag
        headers = {"if-none-match": f'"other", {etag}'}
        same = await site.http.get(path, headers=headers)
        assert (same.status_code, same.content) == (304, b""), path
    await change(site, "red")
    assert (await site.http.get("/v1/nodes", headers=headers)).status_code == 200


async def test_only_large_answers_are_compressed_on_request(site: Site) -> None:
    async def encoding(path: str, **headers: str) -> str:
        answer = await site.http.get(path, headers=headers)
        return str(answer.headers.get("content-encoding", ""))

    large = "/v1/placements?placement=dc1:3"
    assert await encoding(large, **{"accept-encoding": "br, gzip"}) == "gzip"
    assert await encoding(large, **{"accept-encoding": "gzip;q=0"}) == ""
    assert await encoding(large, **PLAIN) == ""
    assert await encoding("/v1/settings", **{"accept-encoding": "gzip"}) == ""
    async with site.http.stream("GET", large, headers={"accept-encoding": "gzip"}) as answer:
        raw = b"".join([piece async for piece in answer.aiter_raw()])
    assert json.loads(gzip.decompress(raw))["placement"] == "dc1:3"


async def test_past_epoch_is_read_like_the_present_state(site: Site) -> None:
    epoch = site.writer.image.epoch
    before = await site.get("/v1/nodes")
    await change(site, "red")
    assert await site.get("/v1/nodes", epoch=epoch, level="linearizable") == before
    assert (await site.get("/v1/settings", epoch=epoch))["settings"] == {}
    assert (await site.http.get("/v1/nodes", params={"epoch": 10**9})).status_code == 404


async def test_changes_are_small_and_in_order(site: Site) -> None:
    newest = site.writer.image.epoch
    task = asyncio.create_task(_events(site, newest + 2, {"from": "1"}))
    await change(site, "red")
    await change(site, "blue")
    events = await asyncio.wait_for(task, 240)
    assert [event.epoch for event in events] == list(range(1, newest + 3))
    assert events[-1].changes["settings"]["changed"] == {
        "colour": {"before": "red", "after": "blue"}
    }
    opened = events[newest - 1]
    assert opened.changes["placements"]["dc1:3"]["added"] > 0
    assert "plans" not in opened.changes["transitions"]["added"][0]
    before = await site.writer.history.image_at(newest - 1)
    after = await site.writer.history.image_at(newest)
    whole = json.loads(msgspec.json.encode(diff(before, after)))
    assert opened.changes["nodes"] == whole["nodes"]


async def test_stream_does_not_continue_in_another_history(site: Site) -> None:
    """The caller saw an epoch that was lost when the log was recovered."""
    newest, state_id = site.writer.image.epoch, site.writer.image.state_id.hex()
    resumed = {"from": str(newest + 1), "state_id": state_id}
    task = asyncio.create_task(_events(site, 1, resumed))
    accept = {"accept": "text/event-stream"}
    later = {"from": str(newest + 2), "state_id": "0a" * 16}
    async with site.http.stream("GET", "/v1/epochs", params=later, headers=accept) as ends:
        assert ends.status_code == 200, "it is not known before the epoch is here"
        await change(site, "red")
        (event,) = await asyncio.wait_for(task, 240)
        assert event.epoch == newest + 1
        assert b"data:" not in await asyncio.wait_for(ends.aread(), 240)
    for path in ("/v1/changes", "/v1/epochs"):
        for first in (newest + 1, newest + 2):
            params = {"from": str(first), "state_id": "0a" * 16}
            refused = await site.http.get(path, params=params, headers=accept)
            assert (refused.status_code, refused.json()["code"]) == (410, "other_history")
    bad = await site.http.get("/v1/changes", params={"state_id": "red"})
    assert (bad.status_code, bad.json()["code"]) == (400, "invalid_request")


async def test_writer_that_read_lost_epochs_refuses_streams_as_stopped(site: Site) -> None:
    """Otherwise a caller that follows the present log would restart with the state of a lost one."""
    accept = {"accept": "text/event-stream"}
    params = {"from": str(site.writer.image.epoch), "state_id": "0a" * 16}
    site.writer._fail(LostWinnersError(7, "they are gone"))
    refused = await site.http.get("/v1/epochs", params=params, headers=accept)
    assert (refused.status_code, refused.json()["code"]) == (503, "reader_stopped")
    assert refused.json()["details"]["lasting"] is True


@pytest.mark.parametrize("path", ("/v1/epochs", "/v1/changes"))
async def test_stream_of_a_stopped_reader_is_refused(site: Site, path: str) -> None:
    """A stream that ended at once would be reopened repeatedly."""
    site.writer._fail(LostWinnersError(7, "they are gone"))
    image, accept = site.writer.image, {"accept": "text/event-stream"}
    for behind in (0, 5):
        headers = {**accept, "last-event-id": str(image.epoch - behind)}
        state = {} if behind else {"state_id": image.state_id.hex()}
        refused = await site.http.get(path, params=state, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (503, "reader_stopped")


@pytest.mark.parametrize("path", ("/v1/epochs", "/v1/changes"))
async def test_stream_ends_at_an_epoch_that_the_reader_refuses(
    site: Site, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """The image has the epoch and the history does not. The stream must not loop."""
    history, asked = site.writer.history, count(1)
    winners = history.winners

    def refuses(_: int) -> None:
        raise OtherHistoryError(7, "a catch-up replica holds another epoch")

    def counted(first: int, limit: int) -> AsyncGenerator[Winner, None]:
        assert next(asked) < 100, "it goes round, and the test would not end"
        return winners(first, limit)

    monkeypatch.setattr(history, "winners", counted)
    headers = {"accept": "text/event-stream", "last-event-id": str(site.writer.image.epoch)}
    async with site.http.stream("GET", path, headers=headers) as stream:
        assert stream.status_code == 200
        monkeypatch.setattr(site.writer._known_end, "check_read", refuses)
        await site.http.post("/v1/commands", json={"command": {"type": "noop"}})
        assert site.writer.image.epoch == history.newest + 1
        async with asyncio.timeout(240):
            async for _ in stream.aiter_lines():
                pass
    assert isinstance(site.writer.failure, OtherHistoryError)
    assert next(asked) < 100


async def test_closed_stream_leaves_no_waiting_task(site: Site) -> None:
    def waiting() -> list[asyncio.Task[object]]:
        return [task for task in asyncio.all_tasks() if "Event.wait" in repr(task.get_coro())]

    idle, headers = len(waiting()), {"last-event-id": str(site.writer.image.epoch)}
    async with site.http.stream("GET", "/v1/changes", headers=headers):
        await until(lambda: len(waiting()) > idle, "the stream to wait for an epoch")
    await until(lambda: len(waiting()) == idle, "it to wait no more")


async def test_restarting_reader_is_reported_as_temporary(site: Site) -> None:
    site.writer._fail(OffsetGoneError(7, "the topic begins at 9"))
    refused = await site.http.post("/v1/commands", json={"command": {"type": "noop"}})
    assert (refused.status_code, refused.json()["code"]) == (503, "reader_stopped")
    assert refused.json()["details"]["lasting"] is False


@pytest.mark.parametrize("was_read", [True, False])
async def test_missing_topic_is_lasting_only_after_the_log_was_read(
    site: Site, monkeypatch: pytest.MonkeyPatch, was_read: bool
) -> None:
    """Before the first read the topic may not be created yet."""

    async def gone(_: object) -> Image:
        missing = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        raise TopicMissingError("stele.demo.epochs", missing)

    monkeypatch.setattr(site.writer, "barrier", gone)
    if not was_read:
        monkeypatch.setattr(Writer, "image", EMPTY)
    refused = await site.http.get("/v1/topology", params={"level": "barrier"})
    body = refused.json()
    assert (refused.status_code, body["code"]) == (503, "topic_missing")
    assert body["message"] == "Nothing is decided: the topic stele.demo.epochs is not there."
    assert body["details"]["lasting"] is was_read
    assert ("stele recover --dry-run" in body["hint"]) is was_read


async def test_every_answer_matches_its_documented_type(site: Site) -> None:
    document = openapi()
    types: dict[str, type[msgspec.Struct]] = {
        "/v1/topology": answers.TopologyAnswer,
        "/v1/nodes": answers.NodesPage,
        "/v1/services": answers.ServicesPage,
        "/v1/requests": answers.RequestsPage,
        "/v1/requests/join-n4": answers.RequestAnswer,
        "/v1/keyspaces": answers.KeyspacesPage,
        "/v1/placements?placement=dc1:3": answers.PlacementsPage,
        "/v1/transitions/join-n4": answers.TransitionPage,
        "/v1/settings": answers.SettingsPage,
        "/v1/cdc/generations": answers.CdcGenerationsPage,
        "/v1/cdc/streams": answers.CdcStreamsPage,
        "/v1/epochs/1": EpochAnswer,
        "/v1/diff?from=1&to=2": DiffAnswer,
    }
    for path, kind in types.items():
        raw = (await site.http.get(path)).content
        msgspec.json.decode(raw, type=kind, dec_hook=column_of)
        fields = {field.name for field in msgspec.structs.fields(kind)}
        assert {*json.loads(raw)} == fields, path
        assert kind.__name__ in document["components"]["schemas"]


async def _events(site: Site, count: int, params: dict[str, str]) -> list[ChangesAnswer]:
    found = list[ChangesAnswer]()
    async with site.http.stream("GET", "/v1/changes", params=params) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                found.append(msgspec.json.decode(line[6:], type=ChangesAnswer))
                if len(found) == count:
                    break
    return found
