"""The scenes in order. Each continues where the one before ended."""

import asyncio
import os
import uuid
from typing import Final

import msgspec

from stele.domain.commands import CreateKeyspace, Leave
from stele.domain.messages import Order
from stele.domain.names import NodeState, OrderKind, ReportStatus
from stele_harness.conformance.company import Company
from stele_harness.conformance.data_scenes import (
    a_keyspace_is_truncated,
    a_session_closes,
    a_tablet_moves,
    columns_change,
    the_log_is_recovered,
)
from stele_harness.conformance.playing import (
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
from stele_harness.conformance.rules import Wrong

REFUSED_S: Final = 8.0

replace = msgspec.structs.replace


async def three_join(company: Company) -> None:
    """Three nodes join an empty cluster, a keyspace is created, and values are written.

    They are written twice, and then older ones are written.
    """
    names = ("a1", "a2", "a3")
    for name in names:
        company.start_agent(name)
    for name in names:
        await is_member(company, name)
    await company.command(CreateKeyspace(KEYSPACE, {"dc1": 3}))
    await at_rest(company, *names)
    await company.values.write(KEYSPACE)
    await company.values.write(KEYSPACE)
    await company.values.write_older(KEYSPACE)


async def a_fourth_joins(company: Company) -> None:
    """A node joins under load, streams what it gains, and the others clean up."""
    async with company.values.under_load(KEYSPACE):
        await have(company, "a4")
    await at_rest(company, "a1", "a2", "a3", "a4")
    await company.values.check(KEYSPACE, after="a4 has joined")
    await company.values.check_deleted(KEYSPACE)


async def one_is_killed_and_comes_back(company: Company) -> None:
    """A node is killed with SIGKILL and started with the same directory."""
    await have(company, "a4")
    await at_rest(company, "a4")
    await company.values.write(KEYSPACE)
    company.kill_agent("a4")
    company.start_agent("a4")
    await acknowledges(company, "a4")
    await company.values.check(KEYSPACE, after="a4 was killed and has come back")


async def orders_are_judged(company: Company) -> None:
    """A node joins, the coordinator is killed, and orders arrive that the agent must judge.

    They are old, foreign, repeated, or name a session that is not open.
    """
    company.start_agent("a5")

    def ordered() -> list[Order]:
        kind = OrderKind.STREAM
        return [o for o in company.orders if (o.node_id, o.kind) == ("a5", kind)]

    await company.until(ordered, "joins", "a5", "order to stream", JOIN_S)
    company.kill_service("coordinator")
    await company.pause(0.5)
    order = ordered()[-1]
    await answered(company, order, ReportStatus.SUCCESS, "order-is-answered")
    anew = replace(order, index=order.index + 1000)
    company.send(anew)
    await answered(company, anew, ReportStatus.SUCCESS, "done-is-answered-again")
    forbid(company, replace(anew, index=anew.index - 1), "old-index-is-refused", "an old index")
    old_term = replace(anew, term=anew.term - 1, index=anew.index + 5000)
    forbid(company, old_term, "old-term-is-refused", "an old term")
    foreign = replace(anew, log_id=os.urandom(16), index=anew.index + 7000)
    forbid(company, foreign, "other-log-is-ignored", "an order of another log")
    await company.pause(SILENCE_S)
    closed = replace(anew, session=str(uuid.uuid4()), index=anew.index + 1)
    company.watch.never_done(closed)
    company.send(closed)
    await answered(company, closed, ReportStatus.FAILED, "closed-session-is-refused")
    company.start_service("coordinator")
    await is_member(company, "a5")
    await at_rest(company, "a5")
    await company.values.check(KEYSPACE, after="a5 has joined")


async def requests_are_judged(company: Company) -> None:
    """Requests that are stale, newer, foreign, of no session or of another log are judged.

    Agents without the path for it are skipped.
    """
    await have(company, "a4", "a5")
    await asyncio.gather(_is_judged(company, "a4", "a5"), _is_judged(company, "a5", "a4"))
    company.kill_agent("a5")
    company.start_agent("a5")
    await acknowledges(company, "a5")
    await _is_judged(company, "a5", "a4")


async def one_leaves(company: Company) -> None:
    """A member leaves and hands over its ranges, under load."""
    await have(company, "a4")
    async with company.values.under_load(KEYSPACE):
        await company.command(Leave("a1"))
        left = lambda: company.state_of("a1") is NodeState.LEFT  # noqa: E731
        await company.until(left, "leaves", "a1", "end of its membership", JOIN_S)
        company.watch.expect_nothing("a1")
    await at_rest(company, "a3", "a4")
    await company.values.check(KEYSPACE, after="a1 has left")


async def one_is_replaced(company: Company) -> None:
    """A dead member is replaced by another node."""
    company.kill_agent("a2")
    company.start_agent("a8", replace_node="a2")  # in the rack of the dead one
    await is_member(company, "a8", "replaces")
    await at_rest(company, "a8")
    await company.values.check(KEYSPACE, after="a8 has replaced a2")


async def a_disk_is_wiped(company: Company) -> None:
    """A member is started with an empty directory, and then with its own again."""
    company.kill_agent("a3")
    await _is_refused(company, "a3", "wiped", "wiped-disk-is-refused", "an empty directory")


async def a_copy_is_put_back(company: Company) -> None:
    """A member is started with an older copy of its directory, then with the newest.

    The copy is from before its last start.
    """
    company.kill_agent("a3")
    company.copy_directory("a3", "older")
    company.start_agent("a3")
    await acknowledges(company, "a3")
    company.kill_agent("a3")
    await _is_refused(
        company, "a3", "older", "older-copy-is-refused", "an older copy of its directory"
    )


async def _is_refused(company: Company, name: str, folder: str, rule: str, what: str) -> None:
    """Check that the process sends no acks with this directory, and sends them with its own."""
    company.start_agent(name, folder=folder)
    end_s = asyncio.get_running_loop().time() + REFUSED_S
    while asyncio.get_running_loop().time() < end_s:
        await company.pause()
        if company.has_spoken(name):
            raise Wrong(rule, name, f"it acknowledges with {what}")
        if company.has_ended(name):
            break
    company.kill_agent(name)
    company.start_agent(name)
    await acknowledges(company, name)
    await company.values.check(KEYSPACE, after=f"{name} has its own directory again")


async def _is_judged(company: Company, name: str, coordinating: str) -> None:
    await at_rest(company, name)
    image = company.image
    data = image.schema.serving(KEYSPACE)
    assert data is not None
    rows = image.ring.placements[data.placement].rows
    own = max((row for row in rows if name in row.reads), key=lambda row: row.version)
    other = next(row for row in rows if name not in row.writes)
    current = routed(company, data.data_id, own, coordinating)
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
    await ask(company, name, asked)
    refused = [(rule, request, code) for rule, (request, code) in asked.items() if code]
    await company.values.refused(name, refused)


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
