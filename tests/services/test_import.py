"""A cluster that begins with an imported legacy cluster: the real process on a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stele.cli import dumps
from stele.cli.client import Client
from stele.cli.main import run
from stele.cli.places import find_places
from stele.domain.legacy import import_cluster
from stele.domain.model.membership import is_unclaimed, unclaimed
from stele.domain.names import NodeState
from tests.deployment.metadata_log import Start, instances
from tests.deployment.processes import following, is_refused
from tests.domain.legacy.samples import EXAMPLE, example
from tests.polling import until
from tests.services.test_overrides import stele

pytestmark = pytest.mark.broker


@pytest.fixture
def start(kafka: str, cluster: str, tmp_path: Path) -> Iterator[Start]:
    with instances(tmp_path, kafka, cluster) as started:
        yield started


def test_cluster_begins_with_nodes_and_placements_of_a_legacy_cluster(
    start: Start, tmp_path: Path, cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    dump, wanted = tmp_path / "shop.json", import_cluster(example()).image
    assert wanted is not None
    assert run(["import", "read", f"--file={EXAMPLE}", f"--output={dump}"]) == 0
    service = start("m1", STELE_FOUND="no")
    url = str(service.http.base_url)
    assert not service.get("/v1/topology")["cluster"], "reading writes to no log"
    assert run(["status", f"--url={url}"]) == 0
    assert "there is no cluster yet. `stele found` creates it." in capsys.readouterr().out
    assert run(["found", f"--from={dump}", f"--url={url}"]) == 0
    assert run(["found", f"--from={dump}", f"--url={url}"]) == 1
    assert "the cluster is there already, and waits for no dump" in capsys.readouterr().err
    service.wait_healthy()
    client = Client(find_places((url,), tmp_path, {}), timeout_s=15, retry_for_s=15)
    image = dumps.of_cluster(client)
    client.close()
    assert image.cluster == cluster
    assert image.schema.ids == wanted.schema.ids
    assert image.schema.table_named("orders.customers"), "its schema comes too"
    for name, placement in wanted.ring.placements.items():
        assert image.ring.placements[name] == placement
    assert {*image.membership.nodes} == {*wanted.membership.nodes}
    for node_id, node in image.membership.nodes.items():
        assert node.state is NodeState.NORMAL
        assert node.tokens == wanted.membership.nodes[node_id].tokens
    created = service.command(type="create_keyspace", name="later", replication={"east": 2})
    assert created.status_code == 200, created.text


async def test_imported_nodes_claim_their_rows_by_host_id(
    kafka: str, topics: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = tmp_path / "shop.json"
    assert run(["import", "read", f"--file={EXAMPLE}", f"--output={dump}"]) == 0
    redis = "redis://127.0.0.1:1/0"
    async with following(kafka, topics, redis, tmp_path) as cluster:
        log = await cluster.start("metadata_log", found="no")
        cluster.log_url = log.url
        code, _, err = await stele(cluster, capsys, "found", "--from", str(dump))
        assert code == 0, err
        await until(lambda: cluster.image.overrides.begun_with, "the first state")
        members = cluster.image.membership.nodes
        name, another = sorted(members)[:2]
        row = members[name]
        assert row.host_id == unclaimed(name)
        here = {"node_id": name, "dc": row.dc, "rack": row.rack}
        for number, claims in enumerate(("", another)):
            starting = cluster.start(
                "node",
                f"refused-{number}",
                data_dir=tmp_path / f"refused-{number}",
                claim_host_id=claims,
                **here,
            )
            await is_refused(starting, "host_id_mismatch")
        node = await cluster.start(
            "node", "taken", data_dir=tmp_path / "taken", claim_host_id=name, **here
        )
        await node.until("/healthz", lambda h: h["ok"], "the node is well", 40)
        await until(
            lambda: not is_unclaimed(cluster.image.membership.nodes[name].host_id), "it is taken"
        )
        taken = cluster.image.membership.nodes[name]
        assert (taken.state, taken.tokens) == (NodeState.NORMAL, row.tokens)
        assert taken.address == node.url
        await node.restart(STELE_CLAIM_HOST_ID="")
        await node.until("/healthz", lambda h: h["ok"], "it has its place", 40)
        late = cluster.start("node", "late", data_dir=tmp_path / "late", claim_host_id=name, **here)
        await is_refused(late, "host_id_mismatch")
