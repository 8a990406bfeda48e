"""The coordinator as a process on a real broker: it drives, it is killed, another takes over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stele.domain.commands import Cancel, CreateKeyspace, Leave
from stele.domain.image import Image
from stele.domain.names import NodeState, OrderKind, ReportStatus, RequestStatus, TransitionState
from stele.domain.requests.ids import named
from tests.services.processes import Service, Start, services
from tests.services.world import (
    LogWriter,
    RemoteLog,
    fake_nodes,
    remote_log,
    settle,
    until,
)

pytestmark = pytest.mark.broker

PATIENT = {"resend_s": 0.5}


@pytest.fixture
async def start(kafka: str, topics: str, tmp_path: Path) -> AsyncIterator[Start]:
    async with services(kafka, topics, "redis://127.0.0.1:1/0", tmp_path) as found:
        yield found


def state_of(writer: LogWriter | RemoteLog, node_id: str) -> NodeState:
    node = writer.image.node(node_id)
    assert node is not None
    return node.state


def replicas(image: Image, keyspace: str) -> list[tuple[int, tuple[str, ...]]]:
    """The replicas of each range by its end; ranges whose neighbours have the same are one."""
    placement = image.placement_of(keyspace)
    assert placement is not None
    found = [(row.end, row.reads) for row in placement.rows]
    following = [*found[1:], found[0]]
    return [a for a, b in zip(found, following, strict=True) if a[1] != b[1]]


def is_streaming(writer: LogWriter) -> bool:
    topology = writer.image.topology
    return topology.settled() and TransitionState.WRITE_BOTH_READ_OLD in {
        transition.state for transition in topology.open()
    }


async def test_a_node_joins_and_leaves_and_progress_is_told(
    kafka: str, writer: LogWriter, start: Start
) -> None:
    coordinator = await start("coordinator", **PATIENT)
    async with fake_nodes(kafka, writer, "n1 n2") as nodes:
        await nodes["n1"].join()
        await until(lambda: state_of(writer, "n1") is NodeState.NORMAL, "n1 to be normal")
        await until(lambda: settle(writer.image), "the first join")
        assert (await writer.submit(CreateKeyspace("ks", {"dc1": 1}))).applied
        nodes["n2"].streams = False
        await nodes["n2"].join()
        await until(lambda: is_streaming(writer) and nodes["n2"].orders, "n2 to stream")
        shown = await coordinator.until(
            "/v1/progress",
            lambda p: any("n2" in t["waiting_for"] and t["bytes_done"] for t in p["transitions"]),
            "the progress of n2, which told what it has",
        )
        assert shown["active"] is True and shown["term"] == 1
        (transition,) = shown["transitions"]
        assert transition["state"] == "write_both_read_old"
        assert transition["request_ids"] == [named("join-n2")]
        assert transition["bytes_done"] == 50 and transition["bytes_total"] == 100
        assert [b["node_id"] for b in transition["blockers"]] == ["n2"]
        nodes["n2"].streams = True
        nodes["n2"].report(nodes["n2"].orders[-1], ReportStatus.SUCCESS, 100)
        await until(lambda: state_of(writer, "n2") is NodeState.NORMAL, "n2 to be normal")
        await until(lambda: OrderKind.CLEANUP in {o.kind for o in nodes["n1"].orders}, "cleanup")
        await until(lambda: settle(writer.image), "the second join")
        assert (await writer.submit(Leave("n1"))).applied
        await until(lambda: state_of(writer, "n1") is NodeState.LEFT, "n1 to have left")
        await until(lambda: settle(writer.image), "the leave")
        placement = writer.image.placement_of("ks")
        assert placement is not None
        assert {row.reads for row in placement.rows} == {("n2",)}
        position = await coordinator.until(
            "/v1/position", lambda p: p["epoch"] == writer.image.epoch, "the log's end"
        )
        assert position["state_id"] == writer.image.state_id.hex()


async def test_a_killed_coordinator_comes_back_and_goes_on(
    kafka: str, writer: LogWriter, start: Start
) -> None:
    coordinator = await start("coordinator", **PATIENT)
    async with fake_nodes(kafka, writer, "n1 n2") as nodes:
        await nodes["n1"].join()
        await until(lambda: settle(writer.image), "the first join")
        await writer.submit(CreateKeyspace("ks", {"dc1": 1}))
        nodes["n2"].streams = False
        await nodes["n2"].join()
        await until(lambda: nodes["n2"].orders, "the order to n2")
        coordinator.kill()
        nodes["n2"].streams = True
        await coordinator.start()
        await until(lambda: writer.image.topology.coordinator.term == 2, "a new term")
        await until(lambda: settle(writer.image), "the second join")
        assert state_of(writer, "n2") is NodeState.NORMAL
        assert {order.term for order in nodes["n2"].orders} == {1, 2}


async def test_of_two_coordinators_one_is_active_and_the_other_takes_over(
    kafka: str, writer: LogWriter, start: Start
) -> None:
    pair = [await start("coordinator", f"c{n}", **PATIENT) for n in (1, 2)]
    async with fake_nodes(kafka, writer, "n1 n2") as nodes:
        await nodes["n1"].join()
        await until(lambda: settle(writer.image), "the first join")
        await writer.submit(CreateKeyspace("ks", {"dc1": 1}))
        active, standby = await who_is_active(pair)
        assert (await standby.get("/v1/progress"))["waits"][0]["waiting_for"]
        nodes["n2"].streams = False
        await nodes["n2"].join()
        await until(lambda: nodes["n2"].orders, "the order to n2")
        term = writer.image.topology.coordinator.term
        active.kill()
        nodes["n2"].streams = True
        await standby.until("/v1/progress", lambda p: p["active"], "the standby to take over")
        await until(lambda: settle(writer.image), "the second join")
        assert writer.image.topology.coordinator.term == term + 1
        assert state_of(writer, "n2") is NodeState.NORMAL


async def who_is_active(pair: list[Service]) -> tuple[Service, Service]:
    shown = [await each.get("/v1/progress") for each in pair]
    assert sorted(each["active"] for each in shown) == [False, True]
    return (pair[0], pair[1]) if shown[0]["active"] else (pair[1], pair[0])


async def test_a_cancelled_join_is_rolled_back(kafka: str, writer: LogWriter, start: Start) -> None:
    await start("coordinator", **PATIENT)
    async with fake_nodes(kafka, writer, "n1 n2") as nodes:
        await nodes["n1"].join()
        await until(lambda: settle(writer.image), "the first join")
        await writer.submit(CreateKeyspace("ks", {"dc1": 1}))
        before = replicas(writer.image, "ks")
        nodes["n2"].streams = False
        await nodes["n2"].join()
        await until(lambda: nodes["n2"].orders, "the order to n2")
        assert (await writer.submit(Cancel(named("join-n2")))).applied
        await until(lambda: settle(writer.image), "the way back")
        request = writer.image.request(named("join-n2"))
        assert request is not None
        assert request.status is RequestStatus.CANCELLED
        assert state_of(writer, "n2") is NodeState.LEFT
        assert replicas(writer.image, "ks") == before


async def test_a_request_that_needs_a_dead_node_is_turned_down(
    kafka: str, writer: LogWriter, start: Start
) -> None:
    await start("coordinator", **PATIENT, dead_node_patience_s=1.5, heartbeat_timeout_s=1)
    async with fake_nodes(kafka, writer, "n1") as nodes:
        nodes["n1"].alive = False
        await nodes["n1"].join()
        await until(lambda: settle(writer.image), "the request to end")
        request = writer.image.request(named("join-n1"))
        assert request is not None
        assert request.status is RequestStatus.FAILED
        assert "Dead nodes: n1" in request.error


async def test_it_works_with_the_metadata_log_through_crashes_of_both(
    kafka: str, topics: str, start: Start
) -> None:
    metadata_log = await start("metadata_log")
    coordinator = await start("coordinator", **PATIENT)
    async with remote_log(kafka, topics) as log, fake_nodes(kafka, log, "n1 n2") as nodes:
        assert (await nodes["n1"].join()).applied
        joined = lambda: "n1" in log.image.membership.normal() and settle(log.image)  # noqa: E731
        await until(joined, "the first join, which is told sooner than it is read here")
        assert (await log.submit(CreateKeyspace("ks", {"dc1": 1}))).applied
        nodes["n2"].streams = False
        assert (await nodes["n2"].join()).applied
        await until(lambda: nodes["n2"].orders, "the order to n2")
        metadata_log.kill()
        coordinator.kill()
        nodes["n2"].streams = True
        await metadata_log.start()
        await coordinator.start()
        await until(lambda: settle(log.image), "the second join")
        assert state_of(log, "n2") is NodeState.NORMAL
        await coordinator.until(
            "/v1/position", lambda p: p["epoch"] == log.image.epoch, "the log's end"
        )
        mine, theirs = [await s.get("/v1/position") for s in (coordinator, metadata_log)]
        assert mine["hash"] == theirs["hash"]


@pytest.mark.parametrize("module", ["catch_up", "tablet_balancer"])
async def test_services_whose_work_comes_later_follow_the_log(
    writer: LogWriter, start: Start, module: str, tmp_path: Path
) -> None:
    service = await start(module, data_dir=tmp_path / module)
    await service.until("/healthz", lambda h: h["ok"], "to be well")
    position = await service.until(
        "/v1/position", lambda p: p["epoch"] == writer.image.epoch, "the log's end"
    )
    assert position["service"] == module.replace("_", "-")
    assert len(position["hash"]) == 64
    assert (await service.stop()) == 0


async def test_two_of_one_name_do_not_fight_and_the_first_says_why_it_stopped(
    writer: LogWriter, start: Start
) -> None:
    first = await start("coordinator", "c1", **PATIENT)
    await first.until("/v1/progress", lambda p: p["active"], "the first to act")
    second = await start("coordinator", "c1", **PATIENT)
    told = await first.until("/healthz", lambda h: not h["ok"], "the first to give up")
    assert "STELE_INSTANCE_ID" in told["reason"]
    await second.until("/v1/progress", lambda p: p["active"], "the second to act")
    assert writer.image.topology.coordinator.term < 10
