"""Scenes about tablets, truncated data, work whose session closes, and a recovered log."""

import time
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from stele.agent.judging import Code
from stele.domain.commands import (
    AlterSchema,
    Cancel,
    CreateKeyspace,
    CreateTable,
    MoveTablets,
    ResizeTable,
    Truncate,
)
from stele.domain.model.operations import TabletMove
from stele.domain.model.schema import Data
from stele.domain.names import OrderKind
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.routed import Routed
from stele.words.cql_parser import parse_cql
from stele_harness.conformance.company import Company
from stele_harness.conformance.playing import (
    ANSWER_S,
    JOIN_S,
    KEYSPACE,
    Judged,
    ask,
    ask_row,
    at_rest,
    have,
    routed,
)
from stele_harness.conformance.rules import Wrong

TABLETS: Final = "spread"
TABLE: Final = "spread.books"
IN_ONE_RACK: Final = ("a5", "a8")
"""Nodes of one rack. A tablet's replica in this rack can move to at least one of them."""
COLUMNED: Final = f"{KEYSPACE}.columned"
ROW_OF: Final = "a3"
"""A node that stays a member in all scenes."""
BAD_REQUEST: Final = 400
WORK_S: Final = 25.0
LEAVES_SESSION_S: Final = 7.0
RECOVERED_S: Final = 2.0
"""Time after which an agent has read the recovery of its log."""
SILENT_S: Final = 2.0


async def a_tablet_moves(company: Company) -> None:
    """A tablet moves from one node to another, which streams it. Then the table is split."""
    source, target = await _table(company)
    move = TabletMove(table=TABLE, tablet=0, from_node=source, to_node=target)
    async with company.values.under_load(TABLE):
        await company.command(MoveTablets((move,)))
        moved = lambda: target in _tablets(company)[0].reads  # noqa: E731
        await _done(company, moved, "tablets-move", target, "replica of the tablet")
    await at_rest(company, source, target)
    await company.values.check(TABLE, after=f"a tablet has moved from {source} to {target}")
    await company.values.check_deleted(TABLE)
    request = routed(company, _data(company, TABLE).data_id, _tablets(company)[0], "a3")
    await ask(company, target, {"tablets-move": (request, "")})
    await ask(company, source, {"tablets-move": (request, "not_a_replica")})
    wanted = 2 * len(_tablets(company))
    async with company.values.under_load(TABLE):
        await company.command(ResizeTable(TABLE, tablets=wanted))
        split = lambda: len(_tablets(company)) == wanted  # noqa: E731
        await _done(company, split, "resize-is-prepared", "a3", f"{wanted} tablets")
    await company.values.check(TABLE, after="its tablets were split")


async def columns_change(company: Company) -> None:
    """A table gets a column and loses one. Agents that keep no columns are skipped."""
    data = _data(company, KEYSPACE)
    if await ask_row(company, ROW_OF, _row_request(company, data, 0)) is None:
        return
    older = await _changed(company, f"CREATE TABLE {COLUMNED} (name text PRIMARY KEY, author text)")
    newer = await _changed(company, f"ALTER TABLE {COLUMNED} ADD pages int")
    data = _data(company, COLUMNED)
    # The agent may not have read the column yet. It reads the log first, or answers ``behind``.
    rule, end_s = "newer-columns-are-read", time.monotonic() + ANSWER_S * company.patience
    answer = await _judged(company, data, newer, "pages")
    while answer.code == Code.BEHIND and time.monotonic() < end_s:
        await company.pause()
        answer = await _judged(company, data, newer, "pages")
    _expect(rule, answer, answer.code == "", "served")
    answer = await _judged(company, data, company.image.epoch + 100, "author")
    _expect(rule, answer, answer.code == Code.BEHIND, f"refused as '{Code.BEHIND}'")
    answer = await _judged(company, data, older, "author")
    is_told = (answer.code, answer.table_version) == ("", newer)
    _expect("newer-version-is-answered", answer, is_told, f"served with version {newer}")
    dropped = await _changed(company, f"ALTER TABLE {COLUMNED} DROP author")
    for column in ("author", "nowhere"):
        answer = await _judged(company, data, dropped, column)
        is_refused = (answer.status, answer.table_version) == (BAD_REQUEST, dropped)
        wanted = f"refused with {BAD_REQUEST} and version {dropped}"
        _expect("missing-column-is-refused", answer, is_refused, wanted)


async def _changed(company: Company, cql: str) -> int:
    """Change the table of ``columns_change``. Return its version, which is the change's epoch."""
    await company.command(AlterSchema(parse_cql(cql)))
    columns = company.image.schema.columns_of(_data(company, COLUMNED).data_id)
    assert columns is not None
    return columns.version


def _row_request(company: Company, data: Data, version: int) -> Routed:
    rows = company.image.ring.placements[data.placement].rows
    row = next(row for row in rows if ROW_OF in row.reads)
    return replace(routed(company, data.data_id, row, ROW_OF), table_version=version)


async def _judged(company: Company, data: Data, version: int, column: str) -> Judged:
    answer = await ask_row(company, ROW_OF, _row_request(company, data, version), column)
    assert answer is not None, "it has answered before"
    return answer


def _expect(rule: str, answer: Judged, holds: bool, wanted: str) -> None:
    if not holds:
        found = f"'{answer.code or 'served'}' with version {answer.table_version}"
        raise Wrong(rule, ROW_OF, f"a row is answered {found}, not {wanted}")


async def a_keyspace_is_truncated(company: Company) -> None:
    """The data of a keyspace gets another id, and the data of the old id is deleted."""
    before = _data(company, KEYSPACE)
    await company.command(Truncate(KEYSPACE))

    def is_truncated() -> bool:
        still = not company.image.topology.transitions
        return still and _data(company, KEYSPACE).data_id != before.data_id

    await _done(company, is_truncated, "truncates", "a3", "end of the truncation")
    await at_rest(company, "a3")
    await company.values.check_truncated(KEYSPACE, before.data_id)
    await company.values.write(KEYSPACE)
    await company.values.check(KEYSPACE, after="it was written after a truncation")
    now = _data(company, KEYSPACE)
    row = next(r for r in company.image.ring.placements[now.placement].rows if "a3" in r.reads)
    await ask(
        company,
        "a3",
        {
            "current-request-is-served": (routed(company, now.data_id, row, "a3"), ""),
            "truncated-data-is-refused": (
                routed(company, before.data_id, row, "a3"),
                "stale_version",
            ),
        },
    )


async def a_session_closes(company: Company) -> None:
    """A tablet's source hangs during streaming, and the migration is cancelled meanwhile."""
    source, target = await _table(company)
    known = len(company.orders)
    company.pause_agent(source)
    move = TabletMove(table=TABLE, tablet=0, from_node=source, to_node=target)
    await company.command(MoveTablets((move,)))

    def ordered() -> str:
        found = (o for o in company.orders[known:] if o.node_id == target)
        return next((o.session for o in found if o.kind is OrderKind.STREAM), "")

    await company.until(ordered, "kit", target, "order to stream", JOIN_S)
    session = ordered()

    def in_use() -> bool:
        return session in company.watch.sessions_of(target)

    await company.until(in_use, "session-is-reported", target, "session in use", ANSWER_S)
    requests = company.image.requests.unfinished_by_id.values()
    moving = next(r for r in requests if r.moves_replica)
    await company.command(Cancel(moving.request_id))
    closed = lambda: session not in company.image.topology.sessions()  # noqa: E731
    await company.until(closed, "kit", target, "end of the session", JOIN_S)
    ended = lambda: session not in company.watch.sessions_of(target)  # noqa: E731
    await company.until(ended, "session-ends", target, "end of its work", LEAVES_SESSION_S)
    company.resume_agent(source)
    await at_rest(company, source, target)
    await company.values.check(TABLE, after="the move of a tablet was cancelled")


async def the_log_is_recovered(company: Company) -> None:
    """The log continues as a new incarnation. No agent may acknowledge by the old one any more."""
    names = [name for name in company.agents if company.watch.expects(name)]
    for name in names:
        company.watch.expect_nothing(name)
    await company.recover()
    await company.pause(RECOVERED_S * company.patience)
    since_s = time.monotonic()
    await company.pause(SILENT_S)
    for name in names:
        if company.watch.heard_at_s(name) > since_s:
            what = "it acknowledges by a log that goes on under another id"
            raise Wrong("recovered-log-is-left", name, what)


async def _done(
    company: Company, condition: Callable[[], bool], rule: str, name: str, what: str
) -> None:
    """Wait until the requested state is reached.

    Raises Wrong when it is not reached in time, or when the request ended without it.
    """
    ended = lambda: condition() or not company.image.requests.unfinished_by_id  # noqa: E731
    await company.until(ended, rule, name, what, WORK_S)
    if not condition():
        raise Wrong(rule, name, f"no {what}: the request for it was given up")


async def _table(company: Company) -> tuple[str, str]:
    """Create a table of tablets. Return a node that has the first tablet, and a possible target."""
    await have(company, *IN_ONE_RACK)
    if company.image.schema.serving(TABLE) is None:
        await company.command(CreateKeyspace(TABLETS, {"dc1": 3}, tablets=True, initial_tablets=2))
        await company.command(CreateTable(TABLE))
    await at_rest(company, *IN_ONE_RACK)
    await company.values.write(TABLE)
    reads, nodes = _tablets(company)[0].reads, company.image.membership.nodes
    target = next(name for name in IN_ONE_RACK if name not in reads)
    return next(name for name in reads if nodes[name].rack == nodes[target].rack), target


def _data(company: Company, name: str) -> Data:
    data = company.image.schema.serving(name)
    assert data is not None
    return data


def _tablets(company: Company) -> tuple[RangeReplicas, ...]:
    return tuple(company.image.ring.placements[_data(company, TABLE).placement].rows)
