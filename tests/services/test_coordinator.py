"""The coordinator as a process on a real broker: it drives operations, is killed, and another takes over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stele.domain.commands import CreateKeyspace
from stele.domain.names import NodeState
from tests.deployment.process import Service, Start, services
from tests.polling import until
from tests.services.world import LogWriter, fake_nodes, settle

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
