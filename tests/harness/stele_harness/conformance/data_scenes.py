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
from stele_harness.conformance.cluster import KitCluster
from stele_harness.conformance.rules import Wrong
from stele_harness.conformance.scene_steps import (
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


async def a_tablet_moves(cluster: KitCluster) -> None:
    """A tablet moves from one node to another, which streams it. Then the table is split."""
    source, target = await _table(cluster)
    move = TabletMove(table=TABLE, tablet=0, from_node=source, to_node=target)
    async with cluster.values.under_load(TABLE):
        await cluster.command(MoveTablets((move,)))
        moved = lambda: target in _tablets(cluster)[0].reads  # noqa: E731
        await _done(cluster, moved, "tablets-move", target, "replica of the tablet")
    await at_rest(cluster, source, target)
    await cluster.values.check(TABLE, after=f"a tablet has moved from {source} to {target}")
    await cluster.values.check_deleted(TABLE)
    request = routed(cluster, _data(cluster, TABLE).data_id, _tablets(cluster)[0], "a3")
    await ask(cluster, target, {"tablets-move": (request, "")})
    await ask(cluster, source, {"tablets-move": (request, "not_a_replica")})
    wanted = 2 * len(_tablets(cluster))
    async with cluster.values.under_load(TABLE):
        await cluster.command(ResizeTable(TABLE, tablets=wanted))
        split = lambda: len(_tablets(cluster)) == wanted  # noqa: E731
        await _done(cluster, split, "resize-is-prepared", "a3", f"{wanted} tablets")
    await cluster.values.check(TABLE, after="its tablets were split")


async def columns_change(cluster: KitCluster) -> None:
    """A table gets a column and loses one. Agents that keep no columns are skipped."""
    data = _data(cluster, KEYSPACE)
    if await ask_row(cluster, ROW_OF, _row_request(cluster, data, 0)) is None:
        return
    older = await _changed(cluster, f"CREATE TABLE {COLUMNED} (name text PRIMARY KEY, author text)")
    newer = await _changed(cluster, f"ALTER TABLE {COLUMNED} ADD pages int")
    data = _data(cluster, COLUMNED)
    # The agent may not have read the column yet. It reads the log first, or answers ``behind``.
    rule, end_s = "newer-columns-are-read", time.monotonic() + ANSWER_S * cluster.patience
    answer = await _judged(cluster, data, newer, "pages")
    while answer.code == Code.BEHIND and time.monotonic() < end_s:
        await cluster.pause()
        answer = await _judged(cluster, data, newer, "pages")
    _expect(rule, answer, answer.code == "", "served")
    answer = await _judged(cluster, data, cluster.image.epoch + 100, "author")
    _expect(rule, answer, answer.code == Code.BEHIND, f"refused as '{Code.BEHIND}'")
    answer = await _judged(cluster, data, older, "author")
    is_told = (answer.code, answer.table_version) == ("", newer)
    _expect("newer-version-is-answered", answer, is_told, f"served with version {newer}")
    dropped = await _changed(cluster, f"ALTER TABLE {COLUMNED} DROP author")
    for column in ("author", "nowhere"):
        answer = await _judged(cluster, data, dropped, column)
        is_refused = (answer.status, answer.table_version) == (BAD_REQUEST, dropped)
        wanted = f"refused with {BAD_REQUEST} and version {dropped}"
        _expect("missing-column-is-refused", answer, is_refused, wanted)


async def _changed(cluster: KitCluster, cql: str) -> int:
    """Change the table of ``columns_change``. Return its version, which is the change's epoch."""
    await cluster.command(AlterSchema(parse_cql(cql)))
    columns = cluster.image.schema.columns_of(_data(cluster, COLUMNED).data_id)
    assert columns is not None
    return columns.version


def _row_request(cluster: KitCluster, data: Data, version: int) -> Routed:
    rows = cluster.image.ring.placements[data.placement].rows
    row = next(row for row in rows if ROW_OF in row.reads)
    return replace(routed(cluster, data.data_id, row, ROW_OF), table_version=version)


async def _judged(cluster: KitCluster, data: Data, version: int, column: str) -> Judged:
    answer = await ask_row(cluster, ROW_OF, _row_request(cluster, data, version), column)
    assert answer is not None, "it has answered before"
    return answer


def _expect(rule: str, answer: Judged, holds: bool, wanted: str) -> None:
    if not holds:
        found = f"'{answer.code or 'served'}' with version {answer.table_version}"
        raise Wrong(rule, ROW_OF, f"a row is answered {found}, not {wanted}")


async def a_keyspace_is_truncated(cluster: KitCluster) -> None:
    """The data of a keyspace gets another id, and the data of the old id is deleted."""
    before = _data(cluster, KEYSPACE)
    await cluster.command(Truncate(KEYSPACE))

    def is_truncated() -> bool:
        still = not cluster.image.topology.transitions
        return still and _data(cluster, KEYSPACE).data_id != before.data_id

    await _done(cluster, is_truncated, "truncates", "a3", "end of the truncation")
    await at_rest(cluster, "a3")
    await cluster.values.check_truncated(KEYSPACE, before.data_id)
    await cluster.values.write(KEYSPACE)
    await cluster.values.check(KEYSPACE, after="it was written after a truncation")
    now = _data(cluster, KEYSPACE)
    row = next(r for r in cluster.image.ring.placements[now.placement].rows if "a3" in r.reads)
    await ask(
        cluster,
        "a3",
        {
            "current-request-is-served": (routed(cluster, now.data_id, row, "a3"), ""),
            "truncated-data-is-refused": (
                routed(cluster, before.data_id, row, "a3"),
                "stale_version",
            ),
        },
    )


async def a_session_closes(cluster: KitCluster) -> None:
    """A tablet's source hangs during streaming, and the migration is cancelled meanwhile."""
    source, target = await _table(cluster)
    known = len(cluster.orders)
    cluster.pause_agent(source)
    move = TabletMove(table=TABLE, tablet=0, from_node=source, to_node=target)
    await cluster.command(MoveTablets((move,)))

    def ordered() -> str:
        found = (o for o in cluster.orders[known:] if o.node_id == target)
        return next((o.session for o in found if o.kind is OrderKind.STREAM), "")

    await cluster.until(ordered, "kit", target, "order to stream", JOIN_S)
    session = ordered()

    def in_use() -> bool:
        return session in cluster.watch.sessions_of(target)

    await cluster.until(in_use, "session-is-reported", target, "session in use", ANSWER_S)
    requests = cluster.image.requests.unfinished_by_id.values()
    moving = next(r for r in requests if r.moves_replica)
    await cluster.command(Cancel(moving.request_id))
    closed = lambda: session not in cluster.image.topology.sessions()  # noqa: E731
    await cluster.until(closed, "kit", target, "end of the session", JOIN_S)
    ended = lambda: session not in cluster.watch.sessions_of(target)  # noqa: E731
    await cluster.until(ended, "session-ends", target, "end of its work", LEAVES_SESSION_S)
    cluster.resume_agent(source)
    await at_rest(cluster, source, target)
    await cluster.values.check(TABLE, after="the move of a tablet was cancelled")


async def the_log_is_recovered(cluster: KitCluster) -> None:
    """The log continues as a new incarnation. No agent may acknowledge by the old one any more."""
    names = [name for name in cluster.agents if cluster.watch.expects(name)]
    for name in names:
        cluster.watch.expect_nothing(name)
    await cluster.recover()
    await cluster.pause(RECOVERED_S * cluster.patience)
    since_s = time.monotonic()
    await cluster.pause(SILENT_S)
    for name in names:
        if cluster.watch.heard_at_s(name) > since_s:
            what = "it acknowledges by a log that goes on under another id"
            raise Wrong("recovered-log-is-left", name, what)


async def _done(
    cluster: KitCluster, condition: Callable[[], bool], rule: str, name: str, what: str
) -> None:
    """Wait until the requested state is reached.

    Raises Wrong when it is not reached in time, or when the request ended without it.
    """
    ended = lambda: condition() or not cluster.image.requests.unfinished_by_id  # noqa: E731
    await cluster.until(ended, rule, name, what, WORK_S)
    if not condition():
        raise Wrong(rule, name, f"no {what}: the request for it was given up")


async def _table(cluster: KitCluster) -> tuple[str, str]:
    """Create a table of tablets. Return a node that has the first tablet, and a possible target."""
    await have(cluster, *IN_ONE_RACK)
    if cluster.image.schema.serving(TABLE) is None:
        await cluster.command(CreateKeyspace(TABLETS, {"dc1": 3}, tablets=True, initial_tablets=2))
        await cluster.command(CreateTable(TABLE))
    await at_rest(cluster, *IN_ONE_RACK)
    await cluster.values.write(TABLE)
    reads, nodes = _tablets(cluster)[0].reads, cluster.image.membership.nodes
    target = next(name for name in IN_ONE_RACK if name not in reads)
    return next(name for name in reads if nodes[name].rack == nodes[target].rack), target


def _data(cluster: KitCluster, name: str) -> Data:
    data = cluster.image.schema.serving(name)
    assert data is not None
    return data


def _tablets(cluster: KitCluster) -> tuple[RangeReplicas, ...]:
    return tuple(cluster.image.ring.placements[_data(cluster, TABLE).placement].rows)
