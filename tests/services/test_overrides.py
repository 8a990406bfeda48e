"""Overrides on real processes: a state is replaced while nodes serve, and all followers continue."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from msgspec.structs import replace
from redis.asyncio import Redis

from stele.cli.main import run
from stele.domain.model.membership import is_unclaimed
from stele.domain.names import NodeState
from stele.session_guard.check import read_guard
from stele_harness.stack.ports import free_port
from tests.deployment.load import running
from tests.deployment.process import Service
from tests.deployment.processes import HTTP_OK, Deployment, following, is_refused
from tests.polling import until, wait_until

pytestmark = pytest.mark.broker

WHY = ("--reason", "a mistake")
WORD = "--i-know-what-this-does"
ROWS = 40


async def stele(
    cluster: Deployment, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str, str]:
    """Return the exit code and the output of a command line."""
    capsys.readouterr()
    code = await asyncio.to_thread(run, (*words, "--url", cluster.log_url))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


async def put(cluster: Deployment, table: str, key: str, value: bytes) -> None:
    url = f"{cluster.nodes['n1'].url}/v1/data/{table}/{key}"
    async with cluster.http.put(url, data=value) as answer:
        assert answer.status == HTTP_OK, await answer.text()


async def serves(cluster: Deployment, node_id: str) -> None:
    """Wait until the node serves. It is healthy and in the log before it has read its admission."""
    async with asyncio.timeout(240):
        while True:
            status, body = await cluster.get(node_id, "k0")
            if status == HTTP_OK:
                return
            assert json.loads(body)["code"] == "not_admitted", body
            await asyncio.sleep(0.05)


async def get(cluster: Deployment, table: str, key: str, node: str = "n2") -> tuple[int, bytes]:
    async with cluster.http.get(f"{cluster.nodes[node].url}/v1/data/{table}/{key}") as answer:
        return answer.status, await answer.read()


async def at_rest(cluster: Deployment) -> int:
    """Return the epoch, once no operation is open and all processes have the version."""

    def settled() -> bool:
        image = cluster.image
        return (
            not (image.topology.transitions or image.requests.unfinished_by_id)
            and image.topology.settled()
        )

    await cluster.newest_image()
    await until(settled, "nothing is under way")
    return cluster.image.epoch


async def follows(service: Service, path: str, epoch: int) -> Any:
    return await service.until(path, lambda a: a["epoch"] >= epoch, f"{path} at epoch {epoch}", 60)


async def test_state_is_reverted_while_nodes_serve(
    kafka: str,
    topics: str,
    redis_url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("STELE_URL", raising=False)
    monkeypatch.setenv("STELE_ACTOR", "ada")
    replica_url = f"http://127.0.0.1:{(port := free_port())}"
    async with following(
        kafka, topics, redis_url, tmp_path, STELE_CATCH_UP_URLS=replica_url
    ) as cluster:

        async def say(*words: str, code: int = 0) -> str:
            found, out, err = await stele(cluster, capsys, *words)
            assert found == code, (words, out, err)
            return " ".join((out + err).split())

        log = await cluster.start("metadata_log", replicas_patience_s=0)
        cluster.log_url = log.url
        replica = await cluster.start(
            "catch_up", "cu-1", http_port=port, data_dir=tmp_path / "archive"
        )
        guard = await cluster.start("session_guard")
        balancer = await cluster.start("tablet_balancer")
        cluster.coordinator = await cluster.start("coordinator", resend_s=0.5)
        await asyncio.gather(*(cluster.start_node(name) for name in ("n1", "n2", "n3")))
        await cluster.serve_keyspace("n1", "n2", "n3")
        tablets = {"tablets": True, "initial_tablets": 4}
        await cluster.command(
            type="create_keyspace", name="shop", replication={"dc1": 2}, **tablets
        )
        await cluster.command(type="create_table", name="shop.orders")
        for number in range(ROWS):
            await put(cluster, "shop.orders", f"k{number}", b"%d" % number)
        good = await at_rest(cluster)
        before = cluster.image

        async with running(cluster.load()) as writers:
            await writers.go_on(50)
            await cluster.command(type="create_keyspace", name="wrong", replication={"dc1": 2})
            await put(cluster, "wrong", "k", b"v")
            await cluster.command(type="create_table", name="shop.wrong")
            await cluster.command(type="set_setting", name="colour", value="wrong")
            bad = await at_rest(cluster)
            dump = tmp_path / "bad.json"
            await say("state", "export", str(dump))
            to = ("unsafe", "revert", "--to", str(good), *WHY)
            assert "Freeze it first" not in await say(*to, "--dry-run")
            said = await say(*to, WORD, "--accept-loss", code=1)
            assert "stele log freeze" in said
            await say("log", "freeze", *WHY)
            said = await say(*to, WORD, code=1)
            assert "LOST: wrong is dropped with its rows" in said
            said = await say(*to, "--accept-loss", code=2)
            assert "Nothing was done" in said
            assert (await cluster.newest_image()).epoch == bad + 1, "nothing was decided so far"
            said = await say(*to, WORD, "--accept-loss")
            assert "was replaced by" in said
            await until(lambda: cluster.image.overrides.last, "the override")
            now = cluster.image
            override = now.overrides.last
            assert override is not None
            assert override.of_epoch == good
            assert now.topology.version > before.topology.version
            assert now.schema.ids == before.schema.ids
            assert {*now.schema.table_ids} == {"shop.orders"}
            assert "colour" not in now.features.settings
            assert [*now.ring.placements["dc1:3"].rows] == [*before.ring.placements["dc1:3"].rows]
            await say("log", "thaw")
            await writers.go_on(100)
            for node in cluster.nodes.values():
                version = now.topology.version
                await node.until(
                    "/v1/node",
                    lambda v, version=version: v["version"] >= version,  # type: ignore[misc]
                    "the node has applied it",
                )
            cluster.nodes["n2"].kill()
            await cluster.nodes["n2"].stop()
            await cluster.nodes["n2"].start()
            await writers.go_on(50)
        await writers.is_read(["n1", "n2", "n3"])
        for number in range(ROWS):
            assert await get(cluster, "shop.orders", f"k{number}") == (HTTP_OK, b"%d" % number)
        assert (await get(cluster, "wrong", "k"))[0] != HTTP_OK

        epoch = override.epoch
        await follows(guard, "/v1/barrier", epoch)
        async with Redis.from_url(redis_url) as redis:
            seen = await read_guard(redis, topics)
            assert seen.fence_version >= now.topology.version
        await follows(balancer, "/v1/position", epoch)
        await follows(cluster.coordinator, "/v1/position", epoch)
        await say("log", "snapshot", "--no-wait")
        await replica.until(
            "/v1/archive", lambda a: a["spans"][-1]["last"] >= epoch, "the archive has it"
        )
        second = await cluster.start("metadata_log", "ml-2", replicas_patience_s=0)
        await second.until("/healthz", lambda h: h["ok"], "another metadata-log is well")
        at = (await cluster.newest_image()).epoch
        one, two = [await each.get(f"/v1/state?epoch={at}") for each in (log, second)]
        assert one["hash"] == two["hash"]
        replayed = json.loads(
            (
                await stele(
                    cluster, capsys, "log", "replay", "--json", f"--bootstrap={kafka}",
                    f"--cluster={topics}", f"--epoch={at}",
                )
            )[1]
        )  # fmt: skip
        assert replayed["hash"] == one["hash"]

        history = await say("epochs", "--epoch", str(epoch))
        assert f"the state is that of epoch {good} again" in history
        assert "a mistake" in history and "ada" in history
        assert "revert_state" in await say("log", "search", "--command", "revert_state")
        shown = await say("epoch", "show", str(epoch))
        assert override.hash_before[:16] in shown and override.hash_after[:16] in shown

        await cluster.start_node("n4")
        await cluster.normal("n4")
        assert cluster.image.membership.nodes["n4"].state is NodeState.NORMAL
        await writers.is_read(["n1", "n2", "n3"])

        await at_rest(cluster)
        file = tmp_path / "now.json"
        await say("state", "export", str(file))
        text = file.read_text()
        assert '"initial_tablets":4' in text
        file.write_text(text.replace('"initial_tablets":4', '"initial_tablets":16'))
        await say("log", "single-user", "ada", *WHY)
        await say("unsafe", "load", str(file), *WHY, WORD)

        def initial_tablets() -> int:
            shop = cluster.image.schema.named("shop")
            return 0 if shop is None else shop.initial_tablets

        await until(lambda: initial_tablets() == 16, "the file's keyspace is there")
        await say("log", "thaw")
        await writers.is_read(["n1", "n2", "n3"])
        await at_rest(cluster)


def lose_all_topics(bootstrap: str, cluster: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    names = [name for name in admin.list_topics(timeout=240).topics if f".{cluster}." in name]
    assert names
    for done in admin.delete_topics(names).values():
        done.result(20)
    gone = {*names}
    wait_until(
        lambda: not gone & {*admin.list_topics(timeout=240).topics}, "the topics to be gone", 30
    )


async def test_nodes_keep_their_data_in_a_cluster_that_begins_with_a_dump(
    kafka: str,
    topics: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The brokers and the archive are lost. Only a dump is left."""
    monkeypatch.delenv("STELE_URL", raising=False)
    monkeypatch.setenv("STELE_ACTOR", "ada")
    file, nowhere = tmp_path / "dump.json", "redis://127.0.0.1:1/0"
    async with following(kafka, topics, nowhere, tmp_path) as cluster:
        log = await cluster.start("metadata_log")
        cluster.log_url = log.url
        cluster.coordinator = await cluster.start("coordinator", resend_s=0.5)
        await asyncio.gather(*(cluster.start_node(name) for name in ("n1", "n2", "n3")))
        await cluster.serve_keyspace("n1", "n2", "n3")
        for number in range(ROWS):
            assert (await cluster.put("n1", f"k{number}", b"%d" % number))[0] == HTTP_OK
        await at_rest(cluster)
        assert (await stele(cluster, capsys, "state", "export", str(file)))[0] == 0
        old = cluster.image
    await asyncio.to_thread(lose_all_topics, kafka, topics)

    async with following(kafka, topics, nowhere, tmp_path) as cluster:
        log = await cluster.start("metadata_log", found="no")
        cluster.log_url = log.url
        code, out, err = await stele(
            cluster, capsys, "found", "--from", str(file), "--reason", "it burnt"
        )
        assert code == 0, err
        assert "3 nodes have yet to come" in " ".join(out.split())
        await until(lambda: cluster.image.overrides.begun_with, "the first state")
        new = cluster.image
        assert new.cluster_id != old.cluster_id and new.log_id > old.log_id
        # The version names the epoch of the new log that set the schema.
        assert new.schema.version.epoch == new.epoch
        assert replace(new.schema, version=old.schema.version) == old.schema
        again = await stele(cluster, capsys, "found", "--from", str(file), "--reason", "again")
        assert again[0] != 0 and "not empty" in again[2]

        cluster.coordinator = await cluster.start("coordinator", resend_s=0.5)
        await is_refused(cluster.start_node("n1"), "STELE_ACCEPT_LOST_EPOCHS")
        keeps = {"accept_lost_epochs": old.log_id.hex()}
        for name in ("n1", "n2"):
            await cluster.start_node(name, **keeps)
        await is_refused(cluster.start_node("n3", data_dir=tmp_path / "empty"), "host_id_mismatch")
        await cluster.start_node(
            "n3", data_dir=tmp_path / "empty-too", claim_host_id=old.membership.nodes["n3"].host_id
        )
        await until(
            lambda: all(
                not is_unclaimed(n.host_id) for n in cluster.image.membership.nodes.values()
            ),
            "all places are taken",
            60,
        )
        hosts = {name: node.host_id for name, node in cluster.image.membership.nodes.items()}
        assert hosts["n1"] == old.membership.nodes["n1"].host_id
        assert hosts["n3"] != old.membership.nodes["n3"].host_id
        for node in cluster.nodes.values():
            await node.until("/healthz", lambda h: h["ok"], "the node is well", 40)
        for number in range(ROWS):
            assert await cluster.get("n2", f"k{number}") == (HTTP_OK, b"%d" % number)
        await serves(cluster, "n3")
        assert (await cluster.put("n3", "new", b"row"))[0] == HTTP_OK
        rebuilt = await stele(cluster, capsys, "rebuild", "n3", "--no-wait")
        assert rebuilt[0] == 0, rebuilt
        await at_rest(cluster)
        assert await cluster.keys("n3") == ROWS + 1
