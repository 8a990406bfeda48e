"""What agents are put through, one scene after another; each goes on where the one before ended."""

import asyncio
import os
import uuid
from typing import Final

import msgspec

from stele.conformance.company import Company
from stele.conformance.data_scenes import (
    a_keyspace_is_truncated,
    a_session_closes,
    a_tablet_moves,
    the_log_is_recovered,
)
from stele.conformance.playing import (
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
from stele.conformance.rules import Wrong
from stele.domain.commands import CreateKeyspace, Leave
from stele.domain.messages import Order
from stele.domain.names import NodeState, OrderKind, ReportStatus

WIPED_S: Final = 8.0

replace = msgspec.structs.replace


async def three_join(company: Company) -> None:
    """Three nodes join an empty cluster, and a keyspace is made."""
    names = ("a1", "a2", "a3")
    for name in names:
        company.start_agent(name)
    for name in names:
        await is_member(company, name)
    await company.command(CreateKeyspace(KEYSPACE, {"dc1": 3}))


async def a_fourth_joins(company: Company) -> None:
    """A node joins, streams what it gains, and the others clean up."""
    await have(company, "a4")
    await at_rest(company, "a4", "a3")


async def one_is_killed_and_comes_back(company: Company) -> None:
    """kill -9, and a start with the same directory."""
    await have(company, "a4")
    company.kill_agent("a4")
    company.start_agent("a4")
    await acknowledges(company, "a4")


async def orders_are_judged(company: Company) -> None:
    """A node joins, the coordinator dies, and orders come that are old, foreign, repeated, of no session."""
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


async def requests_are_judged(company: Company) -> None:
    """Requests that are stale, newer, foreign, of no session, of another log; where it can be asked."""
    await have(company, "a4", "a5")
    await asyncio.gather(_is_judged(company, "a4", "a5"), _is_judged(company, "a5", "a4"))
    company.kill_agent("a5")
    company.start_agent("a5")
    await acknowledges(company, "a5")
    await _is_judged(company, "a5", "a4")


async def one_leaves(company: Company) -> None:
    """A member hands its ranges over."""
    await have(company, "a4")
    await company.command(Leave("a1"))
    left = lambda: company.state_of("a1") is NodeState.LEFT  # noqa: E731
    await company.until(left, "leaves", "a1", "end of its membership", JOIN_S)
    company.watch.expect_nothing("a1")


async def one_is_replaced(company: Company) -> None:
    """A member dies for good, and another one takes its place."""
    company.kill_agent("a2")
    company.start_agent("a8", replace_node="a2")  # in the rack of the dead one
    await is_member(company, "a8", "replaces")


async def a_disk_is_wiped(company: Company) -> None:
    """A member is started with an empty directory, and then with its own again."""
    company.kill_agent("a3")
    company.start_agent("a3", folder="wiped")
    end_s = asyncio.get_running_loop().time() + WIPED_S
    while asyncio.get_running_loop().time() < end_s:
        await company.pause()
        if company.has_spoken("a3"):
            raise Wrong("wiped-disk-is-refused", "a3", "it acknowledges with an empty directory")
        if company.has_ended("a3"):
            break
    company.kill_agent("a3")
    company.start_agent("a3")
    await acknowledges(company, "a3")


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
    await ask(
        company,
        name,
        {
            "current-request-is-served": (current, ""),
            "stale-request-is-refused": (
                replace(current, version=own.version - 1),
                "stale_version",
            ),
            "newer-request-waits": (later, "behind"),
            "foreign-request-is-refused": (foreign, "not_a_replica"),
            "request-of-a-closed-session": (replace(current, session="none"), "session_closed"),
            "request-of-another-log": (replace(current, log_id="0a" * 16), "other_log"),
        },
    )


SCENES: Final[tuple[Scene, ...]] = (
    three_join,
    a_fourth_joins,
    one_is_killed_and_comes_back,
    orders_are_judged,
    requests_are_judged,
    one_leaves,
    one_is_replaced,
    a_disk_is_wiped,
    a_tablet_moves,
    a_keyspace_is_truncated,
    a_session_closes,
    the_log_is_recovered,
)
"""Each can be played right after the first. Tablets come late: nobody would move those of who leaves."""
