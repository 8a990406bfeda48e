"""The data of a state for the page, and its alerts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from stele.console.alerts import (
    ClusterStatus,
    ProcessStatus,
    RangeHealth,
    alerts,
    clusters_of,
    range_health,
)
from stele.console.caches import SharedQueries
from stele.console.history import DroppedNames
from stele.console.maps import TOKENS
from stele.console.mirror import NEWEST, OLDER, Images
from stele.console.reads import BALANCER, Reads
from stele.console.throughput import Throughput
from stele.console.upstream import AwayError
from stele.console.views import (
    overview,
    range_summary,
    request_summaries,
    rows_of_node,
    wait_report,
)
from stele.domain.image import EMPTY_FOR_FOLLOWERS, Image
from stele.domain.model.ring import RingImage
from stele.domain.model.schema import tablet_map
from stele.domain.ring.columns import Columns, Rows
from stele.domain.ring.placement import Placement
from stele.placements import metrics
from stele.placements.derived_tables import Reached
from stele.placements.job import Lag
from stele.runtime.answers.coordinator import Progress
from stele.runtime.answers.session_guard import Liveness, NodeLiveness
from stele.runtime.answers.tablet_balancer import LoadHistory
from stele.runtime.http import Health, build_app
from stele.runtime.transport import HttpReply
from stele.words.facts import EpochRow
from tests.console.generated import TABLE, large_image
from tests.console.test_packed_map import grown, images
from tests.domain.history import joining

KEYSPACE_ID, TABLE_ID, LOST_ID = (f"0000000{n}-0000-0000-0000-000000000000" for n in range(3))
IDLE = Progress(
    term=1, active=True, version=1, fence_version=1, waits=(), transitions=(), cleanups={}
)


def test_overview_has_every_node_map_and_request() -> None:
    image = images(grown())[-1]
    found = overview(image)
    assert [node.node_id for node in found.nodes] == ["n1", "n2", "n3", "n4"]
    assert found.nodes[0].number == image.ring.nodes.numbers["n1"]
    assert {each.placement for each in found.maps} == {TOKENS, *image.ring.placements}
    assert "shop.orders" in {each.name for each in found.maps}
    assert {each.kind for each in found.requests} == {"join"}
    assert msgspec.json.encode(found, enc_hook=str)


def test_overview_of_an_unfounded_log_is_empty() -> None:
    found = overview(EMPTY_FOR_FOLLOWERS)
    assert (found.epoch, found.nodes, found.maps) == (0, (), ())


def test_only_running_requests_can_be_cancelled() -> None:
    (new, *old) = request_summaries(joining())
    assert new.what == "join n4"
    assert new.state
    assert new.can_cancel
    assert not any(each.can_cancel for each in old)


def test_request_has_its_states_and_the_present_one() -> None:
    (new, *old) = request_summaries(joining())
    assert new.steps == (
        *("pending", "join_group0", "commit_cdc_generation", "write_both_read_old"),
        *("write_both_read_new", "finishing", "done"),
    )
    assert new.steps[new.step] == new.state
    assert all(each.step == len(each.steps) for each in old if each.status == "done")


def test_range_health_counts_missing_replicas_and_majorities() -> None:
    image = large_image(nodes=9, tablets=64)
    (placement,) = image.ring.placements.values()
    rows = [{*row.reads} for row in placement.rows]
    for down in (frozenset[str](), {"n0"}, {"n0", "n7"}):
        lost = [len(reads & down) for reads in rows]
        expected = (64, sum(n > 0 for n in lost), sum(n > 1 for n in lost))
        found = range_health(image, down)
        assert (found.total, found.under_replicated, found.unavailable) == expected


def test_range_has_its_replicas_and_open_transitions() -> None:
    image = joining()
    (transition,) = image.topology.open()
    (name,) = image.ring.placements
    rows = image.ring.placements[name].rows
    changing = {(row.start, row.end) for row in transition.plans[name].rows}
    for place, row in enumerate(rows):
        shown = range_summary(image, name, place)
        assert shown is not None
        assert (shown.start, shown.end, shown.writes) == (str(row.start), str(row.end), row.writes)
        if (row.start, row.end) in changing:
            assert shown.transitions == (transition.transition_id,)
    assert range_summary(image, name, len(rows)) is None
    assert range_summary(image, "nothing", 0) is None


def test_node_holds_the_rows_that_name_it() -> None:
    image = images(grown())[-1]
    for node_id in ("n1", "n4"):
        for name, held in rows_of_node(image, node_id).items():
            rows = image.ring.placements[name].rows
            assert held["places"] == [at for at, row in enumerate(rows) if node_id in row.writes]
            assert (held["of"], held["rows"]) == (len(rows), len(held["places"]))
    assert rows_of_node(image, "n9") == {}


def test_wait_report_has_the_text_of_the_command_line() -> None:
    image = joining()
    found = wait_report(image, IDLE)
    (request_id,) = found.by_request
    assert any("join n4" in text for text, _ in found.lines)
    assert any(f"stele cancel {request_id}" in text for text in found.by_request[request_id])
    alone = wait_report(image, None)
    assert any("No coordinator answers" in text for text, _ in alone.lines)


def test_worst_alerts_come_first_with_hints() -> None:
    image = images(grown())[-1]
    processes = [
        ProcessStatus(service="catch-up", url="http://x", up=True, ok=True, lag=5000),
        ProcessStatus(service="coordinator", url="http://y", up=False, ok=False, reason="gone"),
        ProcessStatus(
            service="placements",
            url="http://z",
            up=True,
            ok=False,
            reason="why",
            clusters=(ClusterStatus(cluster="blue", quarantine="why"),),
        ),
    ]
    down = NodeLiveness(node_id="n2", liveness=Liveness.DOWN, silent_for_s=9.0)
    found = alerts(image, "", processes, [down], IDLE, RangeHealth())
    assert [alert.level for alert in found] == ["bad", "bad", "bad", "bad", "warning"]
    assert all(alert.do for alert in found)
    assert not any("stele exclude" in alert.do for alert in found), "it may be starting"
    down = NodeLiveness(node_id="n2", liveness=Liveness.DOWN, silent_for_s=90.0)
    found = alerts(image, "", processes, [down], IDLE, RangeHealth())
    assert any("stele exclude n2" in alert.do for alert in found)
    assert any("blue" in alert.text for alert in found)
    back = NodeLiveness("n2", Liveness.DOWN, silent_for_s=0.5, returning=True)
    found = alerts(image, "", [], [back], IDLE, RangeHealth())
    assert [alert.do for alert in found] == ["Wait."], "it needs no start"
    assert alerts(image, "", [], [], IDLE, RangeHealth()) == ()
    assert "No coordinator" in alerts(image, "", [], [], None, RangeHealth())[0].text


def test_placements_status_has_the_epoch_and_quarantine_of_each_cluster() -> None:
    """The metrics are in the form of a real process."""
    clusters, registry = metrics.Clusters(), CollectorRegistry()
    job: Any = SimpleNamespace(
        reached={"blue": Reached(40, ""), "green": Reached(7, "")},
        lags={"green": Lag(12, 0)},
        strays={"blue": 3},
        unreadable={},
        summaries_stopped={},
        topics_stopped={},
    )
    clusters.job = job
    registry.register(clusters)
    text = generate_latest(registry).decode()
    found = clusters_of(text, {"red": "Cluster red: upgrade this process."})
    assert found == (
        ClusterStatus(cluster="blue", epoch=40, strays=3),
        ClusterStatus(cluster="green", epoch=7, not_judged=12),
        ClusterStatus(cluster="red", quarantine="Cluster red: upgrade this process."),
    )
    assert clusters_of("", {}) == ()


async def test_dropped_object_is_named_by_its_creation_and_searched_once() -> None:
    image, asked = images(grown())[-1], list[str]()
    keyspace = {
        "keyspace_id": KEYSPACE_ID,
        "name": "archive",
        "replication": {"dc1": 1},
        "placement": "",
    }
    table = {"table_id": TABLE_ID, "keyspace_id": KEYSPACE_ID, "name": "old", "placement": ""}
    made: dict[str, dict[str, object]] = {
        KEYSPACE_ID: {"type": "KeyspaceChanged", "keyspace": keyspace},
        TABLE_ID: {"type": "TableChanged", "table": table},
    }

    async def find(question: dict[str, object]) -> dict[str, object] | None:
        asked.append(str(question["about"]))
        return made.get(asked[-1])

    gone = DroppedNames(find)
    rows = [
        EpochRow(1, "drop_table", facts=({"type": "TableDropped", "table_id": each},))
        for each in (TABLE_ID, LOST_ID)
    ]
    for _ in range(2):
        names = await gone.names(image, rows)
        assert names.named(f"{TABLE_ID} of {LOST_ID}") == f"archive.old of {LOST_ID}"
    assert sorted(asked) == sorted([KEYSPACE_ID, TABLE_ID, LOST_ID])


def test_newest_states_and_a_few_past_ones_are_kept() -> None:
    kept = Images()
    for epoch in range(1, NEWEST + 11):
        kept.add(msgspec.structs.replace(EMPTY_FOR_FOLLOWERS, epoch=epoch))
    assert kept.get(10) is None
    assert kept.get(11) is not None
    for epoch in range(1, OLDER + 2):
        kept.keep(msgspec.structs.replace(EMPTY_FOR_FOLLOWERS, epoch=epoch))
    assert kept.get(1) is None
    near = kept.before(14, 3)
    assert near is not None
    assert near.epoch == 13
    assert kept.before(9_000, 3) is None


def test_kept_states_are_limited_in_bytes_and_shared_parts_count_once() -> None:
    image = large_image(4, 1 << 14)
    placement = image.ring.placements[tablet_map(TABLE)]
    kept = Images()
    kept.add(image)
    alone = kept.newest.bytes
    assert alone > (1 << 14) * 8
    for epoch in range(2, 12):
        kept.add(msgspec.structs.replace(image, epoch=epoch))
    assert kept.newest.bytes == alone
    rows = placement.table.all()

    def copied(epoch: int) -> Image:
        own = Placement(Columns.of(Rows(rows.keys.copy(), rows.values)), placement.nodes)
        ring = RingImage(image.ring.placements.set(tablet_map(TABLE), own), image.ring.nodes)
        return msgspec.structs.replace(image, ring=ring, epoch=epoch)

    small = Images(most_bytes=4 * alone)
    for epoch in range(1, 21):
        small.add(copied(epoch))
        small.keep(copied(epoch))
    for limited in (small.newest, small.older):
        assert [*limited] == [17, 18, 19, 20]
        assert limited.bytes <= 4 * alone
    least = Images(most_bytes=1)
    for epoch in range(1, 5):
        least.keep(copied(epoch))
    assert [*least.older] == [3, 4]


async def test_concurrent_queries_share_one_request_and_failures_are_retried() -> None:
    shared, asked = SharedQueries(most=2), list[str]()

    async def ask() -> bytes:
        asked.append("")
        await asyncio.sleep(0)
        if len(asked) == 1:
            raise AwayError("metadata-log", "it is away")
        return b"x"

    failed = await asyncio.gather(*(shared.get("a", ask) for _ in range(5)), return_exceptions=True)
    assert all(isinstance(each, AwayError) for each in failed)
    assert await asyncio.gather(*(shared.get("a", ask) for _ in range(5))) == [b"x"] * 5
    assert len(asked) == 2
    for key in ("b", "a", "c", "a", "b"):
        await shared.get(key, ask)
    assert len(asked) == 5, "the answer that was used last is kept"


# Only valid answers of the tablet-balancer reach the page.


class Balancer:
    def __init__(self, body: bytes) -> None:
        self._body = body

    async def ask(self, service: str, path: str, params: object) -> HttpReply:
        return HttpReply(200, self._body)


async def asked(body: bytes, path: str) -> httpx.Response:
    reads = Reads(None, Balancer(body), Throughput(), {})  # type: ignore[arg-type]
    app = build_app("console", reads.routes(), lambda: Health(ok=True))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://console") as client:
        return await client.get(path)


@pytest.mark.parametrize("path", BALANCER)
@pytest.mark.parametrize("body", [b"", b"<html>", b"[1,2,3]", b"null", b'{"nodes": 3}', b"\0" * 99])
async def test_invalid_answer_of_the_balancer_is_502(path: str, body: bytes) -> None:
    answer = await asked(body, path)
    assert answer.status_code == 502
    assert answer.json()["code"] == "not_understood"


async def test_valid_answer_of_the_balancer_is_forwarded_unchanged() -> None:
    body = msgspec.json.encode(LoadHistory(span_ms=1, every_ms=1, samples=()))
    assert (await asked(body, "/api/balance/history")).content == body
