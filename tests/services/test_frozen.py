"""A frozen log with real processes: no state changes, no process ends, and work continues after the thaw."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stele.cli.main import run
from stele.domain.base import Rejection
from stele.domain.commands import Advance, Envelope, Outcome, SetSetting
from stele.domain.model.requests import named
from stele.domain.names import NodeState
from stele.domain.not_taken import FROZEN
from stele.log.brokers import Brokers
from stele.log.commander import Commander, NotTakenError
from stele.log.record_builder import Pending
from tests.deployment.process import Start
from tests.deployment.processes import HTTP_OK, Deployment, nodes_of
from tests.services.world import LogWriter, fake_nodes, settle, until

pytestmark = pytest.mark.broker

REASON = "moving the brokers"
LOCKED = 423
NOT_TAKEN = 2


async def stele(
    cluster: Deployment, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str, str]:
    """Return the exit code and the output of a command line."""
    capsys.readouterr()
    code = await asyncio.to_thread(run, (*words, "--url", cluster.log_url))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


async def post(cluster: Deployment, name: str, actor: str = "bob") -> tuple[int, dict[str, Any]]:
    command = {"type": "set_setting", "name": name, "value": "v"}
    body = {"request_id": named(name), "actor": actor, "command": command}
    async with cluster.http.post(f"{cluster.log_url}/v1/commands", json=body) as answer:
        return answer.status, await answer.json()


async def test_frozen_cluster_changes_nothing_and_continues_after_the_thaw(
    kafka: str,
    topics: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("STELE_URL", raising=False)
    monkeypatch.setenv("STELE_ACTOR", "ada")
    async with nodes_of(kafka, topics, tmp_path, "n1", "n2", "n3") as cluster:
        monkeypatch.setenv("STELE_COORDINATOR_URLS", cluster.coordinator.url)
        code, out, err = await stele(cluster, capsys, "log", "freeze", "--reason", REASON)
        assert code == 0, err
        assert f"by order of ada: {REASON}; `stele log thaw` opens it" in " ".join(out.split())
        await until(lambda: cluster.image.commits.since_epoch, "the freeze")
        epoch = cluster.image.epoch

        status, told = await post(cluster, "early")
        assert (status, told["code"]) == (LOCKED, FROZEN)
        assert told["details"]["by"] == "ada" and "`stele log thaw`" in told["hint"]
        async with Commander(Brokers(kafka), topics) as commander:
            envelope = Envelope(request_id=named("k"), command=SetSetting("k", "v"), actor="bob")
            with pytest.raises(NotTakenError, match=REASON):
                await commander.submit(envelope, 20)

        await cluster.start_node("n4")
        await cluster.coordinator.restart()
        assert (await cluster.put("n1", "key", b"value"))[0] == HTTP_OK
        for service in (cluster.nodes["n1"], cluster.nodes["n4"], cluster.coordinator):
            await service.until("/healthz", lambda h: REASON in h["reason"] and h["ok"], "health")
        await cluster.coordinator.until(
            "/v1/progress", lambda p: any(REASON in w["waiting_for"] for w in p["waits"]), "why"
        )
        await asyncio.sleep(2)
        assert cluster.image.epoch == epoch, "a frozen log does not grow"
        for words in ("status", "why"):
            _, out, err = await stele(cluster, capsys, words)
            assert f"the log is frozen since epoch {epoch}" in " ".join(out.split()), err

        single = ("log", "single-user", "carol", "--reason", REASON)
        assert (await stele(cluster, capsys, *single))[0] == 0
        assert (await post(cluster, "hers", "carol"))[0] == HTTP_OK
        assert (await post(cluster, "early"))[1]["code"] == "single_user"

        code, out, _ = await stele(cluster, capsys, "log", "thaw")
        assert code == 0 and "open to all since epoch" in out
        assert (await post(cluster, "early"))[0] == HTTP_OK
        await cluster.normal("n4")
        assert cluster.node_state("n4") == NodeState.NORMAL
        history = (await stele(cluster, capsys, "epochs", "--from", str(epoch), "--last", "1"))[1]
        assert "the log is frozen" in " ".join(history.split())


async def test_coordinator_resends_its_command_after_a_freeze(
    kafka: str, writer: LogWriter, start: Start
) -> None:
    """The freeze and the command were in flight together. Nothing was decided, so no new plan is needed."""
    told: list[str] = []
    plain = writer.pipeline.submit

    def submit(
        envelope: Envelope, problem: Rejection | None = None, digest: bytes = b""
    ) -> Pending:
        if len(told) == NOT_TAKEN or not isinstance(envelope.command, Advance):
            return plain(envelope, problem, digest)
        told.append(envelope.request_id)
        image = writer.image
        pending: Pending = asyncio.get_running_loop().create_future()
        pending.set_result(
            Outcome(
                request_id=envelope.request_id,
                applied=False,
                epoch=image.epoch,
                state_id=image.state_id,
                rejection=Rejection(FROZEN, "frozen"),
                taken=False,
                log_id=image.log_id,
            )
        )
        return pending

    writer.pipeline.submit = submit  # type: ignore[method-assign]
    await start("coordinator", resend_s=0.3)
    async with fake_nodes(kafka, writer, "n1") as nodes:
        await nodes["n1"].join()
        await until(lambda: settle(writer.image) and len(told) == NOT_TAKEN, "the join")
    assert len({*told}) == 1
