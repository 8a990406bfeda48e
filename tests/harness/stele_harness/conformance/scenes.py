"""The scenes in order. Each continues where the one before ended."""

import asyncio
import os
import uuid
from typing import Final

import msgspec

from stele.domain.commands import CreateKeyspace, Leave
from stele.domain.messages import Order
from stele.domain.names import NodeState, OrderKind, ReportStatus
from stele_harness.conformance.cluster import KitCluster
from stele_harness.conformance.data_scenes import (
    a_keyspace_is_truncated,
    a_session_closes,
    a_tablet_moves,
    columns_change,
    the_log_is_recovered,
)
from stele_harness.conformance.rules import Wrong
from stele_harness.conformance.scene_steps import (
    JOIN_S,
    KEYSPACE,
    SILENCE_S,
    Scene,
    acknowledges,
    answered,
    ask,
    at_rest,
    forbid,
    have,
    is_member,
    routed,
    token_of,
)

REFUSED_S: Final = 8.0

replace = msgspec.structs.replace


async def three_join(cluster: KitCluster) -> None:
    """Three nodes join an empty cluster, a keyspace is created, and values are written.

    They are written twice, and then older ones are written.
    """
    names = ("a1", "a2", "a3")
    for name in names:
        cluster.start_agent(name)
    for name in names:
        await is_member(cluster, name)
    await cluster.command(CreateKeyspace(KEYSPACE, {"dc1": 3}))
    await at_rest(cluster, *names)
    await cluster.values.write(KEYSPACE)
    await cluster.values.write(KEYSPACE)
    await cluster.values.write_older(KEYSPACE)


async def a_fourth_joins(cluster: KitCluster) -> None:
    """A node joins under load, streams what it gains, and the others clean up."""
    async with cluster.values.under_load(KEYSPACE):
        await have(cluster, "a4")
    await at_rest(cluster, "a1", "a2", "a3", "a4")
    await cluster.values.check(KEYSPACE, after="a4 has joined")
    await cluster.values.check_deleted(KEYSPACE)


async def one_is_killed_and_comes_back(cluster: KitCluster) -> None:
    """A node is killed with SIGKILL and started with the same directory."""
    await have(cluster, "a4")
    await at_rest(cluster, "a4")
    await cluster.values.write(KEYSPACE)
    cluster.kill_agent("a4")
    cluster.start_agent("a4")
    await acknowledges(cluster, "a4")
    await cluster.values.check(KEYSPACE, after="a4 was killed and has come back")


async def orders_are_judged(cluster: KitCluster) -> None:
    """A node joins, the coordinator is killed, and orders arrive that the agent must judge.

    They are old, foreign, repeated, or name a session that is not open.
    """
    cluster.start_agent("a5")

    def ordered() -> list[Order]:
        kind = OrderKind.STREAM
        return [o for o in cluster.orders if (o.node_id, o.kind) == ("a5", kind)]

    await cluster.until(ordered, "joins", "a5", "order to stream", JOIN_S)
    cluster.kill_service("coordinator")
    await cluster.pause(0.5)
    order = ordered()[-1]
    await answered(cluster, order, ReportStatus.SUCCESS, "order-is-answered")
    anew = replace(order, index=order.index + 1000)
    cluster.send(anew)
    await answered(cluster, anew, ReportStatus.SUCCESS, "done-is-answered-again")
    forbid(cluster, replace(anew, index=anew.index - 1), "old-index-is-refused", "an old index")
    old_term = replace(anew, term=anew.term - 1, index=anew.index + 5000)
    forbid(cluster, old_term, "old-term-is-refused", "an old term")
    foreign = replace(anew, log_id=os.urandom(16), index=anew.index + 7000)
    forbid(cluster, foreign, "other-log-is-ignored", "an order of another log")
    await cluster.pause(SILENCE_S)
    closed = replace(anew, session=str(uuid.uuid4()), index=anew.index + 1)
    cluster.watch.never_done(closed)
    cluster.send(closed)
    await answered(cluster, closed, ReportStatus.FAILED, "closed-session-is-refused")
    cluster.start_service("coordinator")
    await is_member(cluster, "a5")
    await at_rest(cluster, "a5")
    await cluster.values.check(KEYSPACE, after="a5 has joined")


async def requests_are_judged(cluster: KitCluster) -> None:
    """Requests that are stale, newer, foreign, of no session or of another log are judged.

    Agents without the path for it are skipped.
    """
    await have(cluster, "a4", "a5")
    await asyncio.gather(_is_judged(cluster, "a4", "a5"), _is_judged(cluster, "a5", "a4"))
    cluster.kill_agent("a5")
    cluster.start_agent("a5")
    await acknowledges(cluster, "a5")
    await _is_judged(cluster, "a5", "a4")


async def one_leaves(cluster: KitCluster) -> None:
    """A member leaves and hands over its ranges, under load."""
    await have(cluster, "a4")
    async with cluster.values.under_load(KEYSPACE):
        await cluster.command(Leave("a1"))
        left = lambda: cluster.state_of("a1") is NodeState.LEFT  # noqa: E731
        await cluster.until(left, "leaves", "a1", "end of its membership", JOIN_S)
        cluster.watch.expect_nothing("a1")
    await at_rest(cluster, "a3", "a4")
    await cluster.values.check(KEYSPACE, after="a1 has left")


async def one_is_replaced(cluster: KitCluster) -> None:
    """A dead member is replaced by another node."""
    cluster.kill_agent("a2")
    cluster.start_agent("a8", replace_node="a2")  # in the rack of the dead one
    await is_member(cluster, "a8", "replaces")
    await at_rest(cluster, "a8")
    await cluster.values.check(KEYSPACE, after="a8 has replaced a2")


async def a_disk_is_wiped(cluster: KitCluster) -> None:
    """A member is started with an empty directory, and then with its own again."""
    cluster.kill_agent("a3")
    await _is_refused(cluster, "a3", "wiped", "wiped-disk-is-refused", "an empty directory")


async def a_copy_is_put_back(cluster: KitCluster) -> None:
    """A member is started with an older copy of its directory, then with the newest.

    The copy is from before its last start.
    """
    cluster.kill_agent("a3")
    cluster.copy_directory("a3", "older")
    cluster.start_agent("a3")
    await acknowledges(cluster, "a3")
    cluster.kill_agent("a3")
    await _is_refused(
        cluster, "a3", "older", "older-copy-is-refused", "an older copy of its directory"
    )


async def _is_refused(cluster: KitCluster, name: str, folder: str, rule: str, what: str) -> None:
    """Check that the process sends no acks with this directory, and sends them with its own."""
    cluster.start_agent(name, folder=folder)
    end_s = asyncio.get_running_loop().time() + REFUSED_S
    while asyncio.get_running_loop().time() < end_s:
        await cluster.pause()
        if cluster.has_spoken(name):
            raise Wrong(rule, name, f"it acknowledges with {what}")
        if cluster.has_ended(name):
            break
    cluster.kill_agent(name)
    cluster.start_agent(name)
    await acknowledges(cluster, name)
    await cluster.values.check(KEYSPACE, after=f"{name} has its own directory again")


async def _is_judged(cluster: KitCluster, name: str, coordinating: str) -> None:
    await at_rest(cluster, name)
    image = cluster.image
    data = image.schema.serving(KEYSPACE)
    assert data is not None
    rows = image.ring.placements[data.placement].rows
    own = max((row for row in rows if name in row.reads), key=lambda row: row.version)
    other = next(row for row in rows if name not in row.writes)
    current = routed(cluster, data.data_id, own, coordinating)
    later = replace(current, version=current.version + 5, epoch=current.epoch + 100)
    foreign = replace(current, token=token_of(other))
    asked = {
        "current-request-is-served": (current, ""),
        "stale-request-is-refused": (replace(current, version=own.version - 1), "stale_version"),
        "newer-request-waits": (later, "behind"),
        "foreign-request-is-refused": (foreign, "not_a_replica"),
        "request-of-a-closed-session": (replace(current, session="none"), "session_closed"),
        "request-for-another-node": (replace(current, replica="another"), "other_node"),
        "request-of-another-log": (replace(current, log_id="0a" * 16), "other_log"),
    }
    await ask(cluster, name, asked)
    refused = [(rule, request, code) for rule, (request, code) in asked.items() if code]
    await cluster.values.refused(name, refused)


SCENES: Final[tuple[Scene, ...]] = (
    three_join,
    a_fourth_joins,
    one_is_killed_and_comes_back,
    orders_are_judged,
    requests_are_judged,
    one_leaves,
    one_is_replaced,
    a_disk_is_wiped,
    a_copy_is_put_back,
    a_tablet_moves,
    columns_change,
    a_keyspace_is_truncated,
    a_session_closes,
    the_log_is_recovered,
)
"""The scenes. Each can be played right after the first.

Tablets come late: otherwise the tablets of a node that leaves would have to move.
"""
