"""Steps around the load: its begin, its account, and what must hold of state, files and versions at the end."""

from __future__ import annotations

import asyncio
import hashlib
import sys
import time
from collections.abc import Iterator

import msgspec

from stele.agent.judging import Code
from stele.cli.commands.data import data_path
from stele.cli.errors import CliError, RefusedError, UnreachableError
from stele.domain.commands import AnyCommand, Join, Leave
from stele.domain.names import OWNS_TOKENS
from stele.domain.ring.partitioner import token_of
from stele.domain.ring.ranges import RangeReplicas
from stele.runtime.answers.common import Position
from stele.runtime.answers.metadata_log import KeyspacesPage, PlacementsPage
from stele_harness.demo.load import ask_until_answered
from stele_harness.demo.replica_writes import probe_write, send_probe
from stele_harness.demo.scene import KEYSPACE, Scene
from stele_harness.demo.site import Answers
from stele_harness.demo.timeline import Bar
from stele_harness.stack.folders import is_node

# Begin the load that lasts until the end, and follow who can be written through.


WARM_UP_WRITES = 100
LOAD_DEADLINE_S = 150.0
FOLLOW_S = 0.3


async def load(scene: Scene) -> None:
    addresses = tuple((await scene.members()).values())
    scene.load.start(addresses)

    async def warm() -> bool:
        return scene.load.account.writes_acknowledged >= WARM_UP_WRITES

    await scene.site.until(
        f"{WARM_UP_WRITES} acknowledged writes of the load", warm, LOAD_DEADLINE_S
    )
    keys = sum(len(keys) for keys in scene.load.keys)
    scene.timeline.note(
        f"{len(scene.load.keys)} workers write and read {keys} keys at QUORUM from now on, and "
        "keep account of every answer"
    )
    scene.background.append(asyncio.create_task(_follow_members(scene)))


async def _follow_members(scene: Scene) -> None:
    """A client goes by the newest metadata that it can get, and keeps what it has otherwise."""
    while scene.load.running:
        nodes = await scene.site.nodes_or_none()
        if nodes is not None:
            found = tuple(n.address for n in nodes if n.state in OWNS_TOKENS)
            scene.load.nodes = found or scene.load.nodes
        await asyncio.sleep(FOLLOW_S)


# Stop the load and go through its account.


async def settle(scene: Scene) -> None:
    await scene.load.stop()
    await asyncio.gather(*scene.background)
    scene.load.nodes = tuple((await scene.members()).values())
    account, timeline = scene.load.account, scene.timeline
    seconds = scene.load.ended - scene.load.began
    latencies = sorted(account.latencies_s)
    p50, p99 = (latencies[int(len(latencies) * q)] * 1000 for q in (0.50, 0.99))
    timeline.note(
        f"{account.writes_acknowledged} writes acknowledged and {account.reads_answered} reads "
        f"answered in {seconds:.0f} s; write p50 {p50:.1f} ms, p99 {p99:.1f} ms; longest time "
        f"without an acknowledgement {account.longest_gap_s:.2f} s"
    )
    timeline.note(
        f"{account.writes_refused} writes refused, {account.writes_unknown} of unknown outcome, "
        f"{account.reads_failed} reads failed, {account.tried_again} tried again through another "
        "node"
    )
    for text, times in account.failures.most_common(5):
        timeline.note(f"{times} x {text}", "yellow")
    for name, value in (
        ("load_s", seconds),
        ("writes_acknowledged", account.writes_acknowledged),
        ("writes_refused", account.writes_refused),
        ("writes_unknown", account.writes_unknown),
        ("tried_again", account.tried_again),
        ("reads_answered", account.reads_answered),
        ("reads_failed", account.reads_failed),
        ("write_p50_ms", p50),
        ("write_p99_ms", p99),
        ("longest_gap_s", account.longest_gap_s),
    ):
        timeline.figure(name, value)
    timeline.check(
        "no read went back behind an acknowledged write",
        not account.stale_reads and account.reads_answered > 0,
        "; ".join(account.stale_reads[:3]) or f"{account.reads_answered} reads",
    )
    lost = await scene.load.lost_writes()
    keys = sum(len(keys) for keys in scene.load.keys)
    timeline.check(
        "no acknowledged write is lost",
        not lost and account.writes_acknowledged > 0,
        "; ".join(lost[:3])
        or f"{account.writes_acknowledged} writes to {keys} keys, the last of each key read "
        f"through each of {len(scene.load.nodes)} nodes",
    )


# Every file, through every remaining node, by its SHA-256.


READERS = 12


async def read_back(scene: Scene) -> None:
    members = await scene.members()
    work = [(node, url, key) for node, url in members.items() for key in scene.digests]
    wrong: list[str] = []
    began = time.monotonic()
    with scene.timeline.progress("reading at QUORUM", None) as bar:
        read_bytes = await _read_all(scene, work, wrong, bar)
    took_s = time.monotonic() - began
    scene.timeline.figure("read_back_s", took_s)
    scene.timeline.figure("reads_per_s", len(work) / took_s)
    scene.timeline.figure("read_back_bytes", read_bytes)
    scene.timeline.check(
        "every file is read back with its SHA-256 through every node",
        not wrong and bool(scene.digests),
        "; ".join(wrong[:3])
        or f"{len(scene.digests)} files through each of {', '.join(sorted(members))} at QUORUM, "
        f"{len(work) / took_s:.0f} reads/s",
    )


async def _read_all(
    scene: Scene, work: list[tuple[str, str, str]], wrong: list[str], bar: Bar
) -> int:
    todo, read_bytes, done = iter(work), 0, 0

    async def read_some(mine: Iterator[tuple[str, str, str]]) -> None:
        nonlocal read_bytes, done
        for node, url, key in mine:
            row = url + data_path(KEYSPACE, key)
            found = await ask_until_answered(scene.site.http, "GET", row)
            content = found.body if found.status == 200 else b""
            if hashlib.sha256(content).hexdigest() != scene.digests[key]:
                why = f"{len(content)} other bytes" if content else found.why()
                wrong.append(f"{key} through {node}: {why}")
            read_bytes += len(content)
            done += 1
            bar.show(read_bytes, None, f"{done} of {len(work)} reads")

    async with asyncio.TaskGroup() as group:
        for _ in range(READERS):
            group.create_task(read_some(todo))
    return read_bytes


# Replica writes with a fenced-out version must be refused by every node; with the current one,
# not.


PROBES = 200


async def fences(scene: Scene) -> None:
    """Of a range that version ``c`` changed: all versions below it, once ``c`` is fenced (I3)."""
    topology = await scene.site.topology("barrier")
    key, row = await _probe(scene)
    members = await scene.members()
    data_id = await _data_id(scene)
    coordinating = min(members)
    newest, fence = topology.topology.version, topology.topology.fence_version
    accepted: list[str] = []
    refused = 0
    for node_id in row.writes:
        for version in range(1, row.version):
            op = probe_write(data_id, coordinating, key, topology.epoch, version)
            code = await send_probe(scene.site.http, node_id, members[node_id], op)
            if code is Code.STALE_VERSION:
                refused += 1
            else:
                accepted.append(f"{node_id} answered {code} to version {version}")
    op = probe_write(data_id, coordinating, key, topology.epoch, newest)
    current = [
        await send_probe(scene.site.http, node_id, members[node_id], op) for node_id in row.writes
    ]
    works = bool(current) and all(code is Code.OK for code in current)
    scene.timeline.check(
        "no write with a fenced-out version is accepted",
        not accepted and refused > 0 and works and row.version <= fence,
        "; ".join(accepted[:3])
        or f"{refused} writes with versions 1 to {row.version - 1} to a range that version "
        f"{row.version} changed were refused as stale by {', '.join(row.writes)}; the same writes "
        f"with version {newest} were {'accepted' if works else f'answered {current}'}",
    )


async def _probe(scene: Scene) -> tuple[bytes, RangeReplicas]:
    """A key, and its range, whose replicas have changed since the cluster began."""
    for number in range(PROBES):
        key = f"fence/probe-{number}".encode()
        (page,) = await scene.site.pages(
            "/v1/placements", PlacementsPage, keyspace=KEYSPACE, token=token_of(key)
        )
        if page.rows[0].version > 1:
            return key, page.rows[0]
    raise CliError(f"None of {PROBES} keys lies in a range that has ever changed.")


async def _data_id(scene: Scene) -> str:
    pages = await scene.site.pages("/v1/keyspaces", KeyspacesPage)
    return next(k.data_id for page in pages for k in page.keyspaces if k.name == KEYSPACE)


# Every process must stand at the same epoch with the same state, by its own fold.


POSITIONS_DEADLINE_S = 150.0
NO_POSITION = frozenset({"placements", "console"})
"""placements answers for its tables, which have a check of their own; the console keeps no state."""


async def positions(scene: Scene) -> None:
    members = await scene.members()
    services = [
        s
        for s in scene.site.stack().services
        if s.name not in NO_POSITION and (not is_node(s.name) or s.name in members)
    ]
    found: dict[str, Position] = {}
    silent: dict[str, str] = {}

    async def agree() -> bool:
        found.clear()
        silent.clear()
        for service in services:
            try:
                url = f"{service.url}/v1/position"
                found[service.name] = await scene.site.get(url, Position)
            except (*Answers, CliError) as error:
                silent[service.name] = str(error) or repr(error)
        return not silent and len({(p.epoch, p.state_id, p.hash) for p in found.values()}) == 1

    try:
        await scene.site.until("every process to agree", agree, POSITIONS_DEADLINE_S)
    except UnreachableError:
        detail = "; ".join(
            [
                *(f"{n}: epoch {p.epoch} {p.hash[:12]}" for n, p in found.items()),
                *(f"{n}: {why[:80]}" for n, why in silent.items()),
            ]
        )
        scene.timeline.check(POSITIONS_NAME, False, detail)
        return
    position = next(iter(found.values()))
    scene.timeline.figure("epochs", position.epoch)
    scene.timeline.check(
        POSITIONS_NAME,
        True,
        f"{', '.join(sorted(found))}: epoch {position.epoch}, hash {position.hash[:16]}...",
    )


POSITIONS_NAME = "every process has the same state at the same epoch"


# The whole log, folded from offset 0 by a process of its own, must give the same state.


REPLAY_DEADLINE_S = 300.0


class Replayed(msgspec.Struct, frozen=True):
    """What ``stele log replay --json`` prints."""

    epoch: int
    state_id: str
    hash: str
    records: int
    losers: int
    took_s: float
    epochs_per_s: int


async def replay(scene: Scene) -> None:
    url = f"{scene.site.service('metadata-log').url}/v1/position"
    position = await scene.site.get(url, Position)
    arguments = ("log", "replay", "--json", "--epoch", str(position.epoch))
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "stele.cli", *arguments, "--dir", str(scene.directory)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, errors = await asyncio.wait_for(child.communicate(), REPLAY_DEADLINE_S)
    except TimeoutError:
        child.kill()
        await child.wait()
        scene.timeline.check(
            REPLAY_NAME, False, f"the replay took more than {REPLAY_DEADLINE_S:.0f} s"
        )
        return
    if child.returncode != 0:
        scene.timeline.check(REPLAY_NAME, False, errors.decode()[-500:])
        return
    found = msgspec.json.decode(out, type=Replayed)
    same = (found.epoch, found.state_id, found.hash) == (
        position.epoch,
        position.state_id,
        position.hash,
    )
    scene.timeline.figure("replay_epochs_per_s", found.epochs_per_s)
    scene.timeline.figure("log_records", found.records)
    scene.timeline.check(
        REPLAY_NAME,
        same,
        f"{found.epoch} epochs from {found.records} records in {found.took_s:.2f} s, "
        f"hash {found.hash[:16]}... {'equals' if same else 'is not'} {position.hash[:16]}...",
    )


REPLAY_NAME = "a replay of the whole log gives the same state"


# Operations that must be refused, before anything happens.


async def refusals(scene: Scene) -> None:
    stranger = Join(
        node_id="n5", cluster="another", address="http://127.0.0.1:9", dc="dc1", rack="r2"
    )
    await _refused(scene, "a node of another cluster", stranger, "wrong_cluster")
    remaining = max(await scene.members())
    await _refused(scene, "a leave below the replication factor", Leave(remaining), "too_few_nodes")
    await _refused(scene, "a node that has left", Leave("n1"), "node_left")


async def _refused(scene: Scene, what: str, command: AnyCommand, code: str) -> None:
    try:
        outcome = await scene.site.submit(command, "the demo wants a refusal")
    except RefusedError as error:
        scene.timeline.check(f"{what} is refused", error.code == code, error.line())
    else:
        scene.timeline.check(f"{what} is refused", False, f"accepted at epoch {outcome.epoch}")
