"""The coordinator as a process on a real broker: it drives operations, is killed, and another takes over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stele.domain.commands import CreateKeyspace, Leave
from stele.domain.model.requests import named
from stele.domain.names import NodeState, OrderKind, ReportStatus, TransitionState
from tests.deployment.process import Service, Start, services
from tests.services.world import (
    LogWriter,
    fake_nodes,
    settle,
    until,
)

pytestmark = pytest.mark.broker

PATIENT = {"resend_s": 0.5}


@pytest.fixture
async def start(kafka: str, topics: str, tmp_path: Path) -> AsyncIterator[Start]:
    async with services(kafka, topics, "redis://127.0.0.1:1/0", tmp_path) as found:
        yield found


def state_of(writer: LogWriter, node_id: str) -> NodeState:
    node = writer.image.node(node_id)
    assert node is not None
    return node.state


def is_streaming(writer: LogWriter) -> bool:
    topology = writer.image.topology
    return topology.settled() and TransitionState.WRITE_BOTH_READ_OLD in {
        transition.state for transition in topology.open()
    }


async def test_node_joins_and_leaves_with_reported_progress(
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


async def test_standby_coordinator_takes_over(kafka: str, writer: LogWriter, start: Start) -> None:
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


@pytest.mark.parametrize("module", ["catch_up", "tablet_balancer"])
async def test_idle_services_follow_the_log(
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


async def test_first_of_two_coordinators_with_one_instance_id_stops(
    writer: LogWriter, start: Start
) -> None:
    first = await start("coordinator", "c1", **PATIENT)
    await first.until("/v1/progress", lambda p: p["active"], "the first to act")
    second = await start("coordinator", "c1", **PATIENT)
    told = await first.until("/healthz", lambda h: not h["ok"], "the first to give up")
    assert "STELE_INSTANCE_ID" in told["reason"]
    await second.until("/v1/progress", lambda p: p["active"], "the second to act")
    assert writer.image.topology.coordinator.term < 10
