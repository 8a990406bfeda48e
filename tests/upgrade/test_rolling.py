"""Upgrade and downgrade of a cluster under writes, one process after the other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stele.domain.registry import KNOWN_FEATURES
from stele.log.brokers import Brokers
from stele.log.flows import flow_topic
from stele.log.kafka import KafkaLog
from stele.log.schemas import HEADER_BYTES, load_schemas
from stele.runtime.service import EXIT_BAD_CONFIGURATION
from tests.deployment.load import Load, running
from tests.deployment.rolling import (
    LOGS,
    NEWCOMER,
    NODES,
    PAUSE_S,
    REPLICAS,
    Builds,
    Commands,
    builds_of,
    commands,
    make_and_drop,
)
from tests.upgrade.builds import (
    FEATURE,
    build_of_commit,
    build_with_one_more_fact,
    environment,
    features_of,
    form_commit,
)

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SET = {"type": "set_setting", "name": "late", "value": "1"}
NOTE = {"type": "write_note", "text": "seen"}
ENABLE = {"type": "enable_features", "features": [FEATURE]}
NEW_FEATURES = tuple(sorted({*KNOWN_FEATURES, FEATURE}))
"""Features of the present build and of its additional fact; the past build has none of them."""
WRITES = 10
COMMANDS = 5


async def test_cluster_upgrades_downgrades_and_upgrades_under_load(
    kafka: str, topics: str, redis_url: str, tmp_path: Path
) -> None:
    old = build_of_commit(form_commit(), tmp_path / "old")
    new, old_features = build_with_one_more_fact(tmp_path / "new"), features_of(old)
    async with builds_of(kafka, topics, redis_url, tmp_path, old) as builds:
        names = [*builds.processes]
        half = len(names) // 2
        async with (
            running(builds.cluster.load(pause_s=PAUSE_S)) as data,
            commands(builds) as client,
        ):
            await builds.known(dict.fromkeys(names, old_features))
            await roll(builds, names[:half], new, data, client)
            await check_mixed_builds(builds, names[:half], old_features)
            await builds.join(NEWCOMER)
            names.insert(half, NEWCOMER)
            await roll_in_lanes(builds, names[half:], new, data, client)
            await builds.known(dict.fromkeys(names, NEW_FEATURES))
            await check_rejected(builds, LOGS[0], NOTE, "feature_not_enabled")

            await roll_in_lanes(builds, names[::-1], old, data, client)
            await builds.known(dict.fromkeys(names, old_features))
            await make_and_drop(builds, "back")
            await builds.agree_on_a_snapshot()
        await check_all_keys_are_read(builds, data, client)
        assert await headers(kafka, topics) <= {header_of_form(old)}

        async with (
            running(builds.cluster.load(pause_s=PAUSE_S)) as data,
            commands(builds) as client,
        ):
            await roll_in_lanes(builds, names, new, data, client)
            await builds.known(dict.fromkeys(names, NEW_FEATURES))
            assert (await builds.ask(LOGS[1], ENABLE))[0] == 200
            await builds.processes[LOGS[0]].until(
                "/v1/state", lambda state: FEATURE in state["features"], "all to acknowledge it"
            )
            assert (await builds.ask(LOGS[0], NOTE))[0] == 200
            await data.go_on(WRITES)
            await client.go_on(COMMANDS)
        await check_all_keys_are_read(builds, data, client)
        assert (await builds.one_state())["notes"] == [NOTE["text"]]
        await asyncio.gather(*(check_old_build_stops(builds, n, old) for n in names[-3:]))


async def roll(builds: Builds, names: list[str], build: Path, data: Load, client: Commands) -> None:
    """Move one process after the other to the build. Reads and writes continue, and all stay healthy."""
    for name in names:
        await builds.roll(name, build)
        await data.go_on(WRITES)
        await client.go_on(COMMANDS)
    for name in names:
        assert (await builds.processes[name].get("/healthz"))["ok"], name


async def roll_in_lanes(
    builds: Builds, names: list[str], build: Path, data: Load, client: Commands
) -> None:
    """Roll nodes, catch-up replicas and the other services in parallel, each group one by one."""
    nodes = [name for name in names if name in NODES]
    replicas = [name for name in names if name in REPLICAS]
    others = [name for name in names if name not in (*NODES, *REPLICAS)]
    lanes = (nodes, replicas, others)
    await asyncio.gather(*(roll(builds, lane, build, data, client) for lane in lanes))


async def check_mixed_builds(
    builds: Builds, upgraded: list[str], old_features: tuple[str, ...]
) -> None:
    """Check that new commands are rejected with a hint, and that both builds read the rejections."""
    assert LOGS[0] in upgraded and LOGS[1] not in upgraded
    refused = await check_rejected(builds, LOGS[0], NOTE, "feature_not_enabled")
    assert f"stele features enable {FEATURE}" in refused["hint"]
    lacking = await check_rejected(builds, LOGS[0], ENABLE, "feature_not_supported")
    await builds.known(
        {name: NEW_FEATURES if name in upgraded else old_features for name in builds.processes}
    )
    for name in {*builds.processes} - {*upgraded}:
        assert name in lacking["message"]
    await check_rejected(builds, LOGS[1], ENABLE, "feature_not_supported")
    await make_and_drop(builds, "between")
    assert len({*REPLICAS} & {*upgraded}) == 1
    await builds.agree_on_a_snapshot()
    await builds.one_state()


async def check_rejected(
    builds: Builds, log: str, command: dict[str, Any], code: str
) -> dict[str, Any]:
    status, outcome = await builds.ask(log, command)
    assert (status, outcome["rejection"]["code"]) == (409, code), outcome
    assert outcome["rejection"]["hint"]
    rejection: dict[str, Any] = outcome["rejection"]
    return rejection


async def check_all_keys_are_read(builds: Builds, data: Load, client: Commands) -> None:
    """Read every acknowledged write through every node, and find every acknowledged command in its epoch."""
    assert data.acknowledged and client.epochs
    await data.is_read([*NODES])
    settings = (await builds.one_state())["settings"]
    assert {name: settings[name] for name in client.values} == client.values
    for log in LOGS:
        found = await builds.epochs(log)
        assert {request_id: found.get(request_id) for request_id in client.epochs} == client.epochs


async def check_old_build_stops(builds: Builds, name: str, old: Path) -> None:
    """Check that the old build stops where the feature was enabled and names it. A node does not start."""
    service = builds.processes[name]
    if name in NODES:
        with pytest.raises(AssertionError, match=f"has enabled {FEATURE}, which this build lacks"):
            await service.restart(**environment(old))
        assert service.process.poll() == EXIT_BAD_CONFIGURATION
        return
    await service.restart(**environment(old))
    health = await service.until(
        "/healthz", lambda h: "cannot be read" in h["reason"], f"{name} to stop reading"
    )
    assert not health["ok"]
    assert f"needs {FEATURE}" in health["reason"]
    assert "Upgrade this process" in health["reason"]
    if name in LOGS:
        status, _ = await builds.ask(name, SET)
        assert status == 503


async def headers(kafka: str, topics: str) -> set[bytes]:
    """Return the headers of all records in the log."""
    log = KafkaLog(Brokers(kafka), flow_topic(topics, "epochs"))
    try:
        end, begin, found = (await log.ends()).end, 0, set[bytes]()
        while begin < end:
            records = await log.read(begin, end - begin)
            found |= {value[:HEADER_BYTES] for _, value in records}
            begin = records[-1][0] + 1
        return found
    finally:
        await log.close()


def header_of_form(build: Path) -> bytes:
    return load_schemas(build / "schemas").headers["Epoch"]
