"""Known bugs of what nodes keep for clients, in whole nodes: the store, requests, streams."""

from collections.abc import Callable
from typing import Final

from stele.agent import judging
from stele.agent.cleanup import Cleaner
from stele.agent.judging import Judge
from stele.domain.fencing import StaleVersion
from stele.domain.image import Image
from stele.domain.ring.ranges import RangeReplicas
from stele.log import reader
from stele.node import cells, store, votes
from stele.node.cells import Cell, Row
from stele.node.coordinate import Coordination, _Attempt
from stele.node.streaming import Streamer
from stele.node.votes import Consistency, Enough
from stele.sim.patching import Patch


def rows_are_not_synced(patch: Patch) -> None:
    """A write is answered once it is committed: a power failure takes it back."""
    unsynced = tuple(p.replace("synchronous=full", "synchronous=normal") for p in store.PRAGMAS)
    patch.attribute(store, "PRAGMAS", unsynced)


def writes_are_timed_by_the_nodes_clock(patch: Patch) -> None:
    """A write does not ask what the newest one is: where clocks differ, an earlier one may beat it."""

    async def own(self: Coordination, attempt: _Attempt, consistency: Consistency) -> int:
        return int(vars(reader)["time"].time_ns()) // 1000

    patch.attribute(Coordination, "_timestamp", own)


def streamed_rows_are_dropped(patch: Patch) -> None:
    """What is pulled from others is counted, and not kept."""

    def none(self: Streamer, reading: object, rows: list[Row], place: int) -> bool:
        return False

    patch.attribute(Streamer, "_may_keep", none)


def refused_writes_may_stand(patch: Patch) -> None:
    """Of a write that too few replicas took, its client is told that it was surely not done."""
    patch.attribute(votes.Vote, "may_be_done", lambda self: False)


def one_ack_is_a_quorum(patch: Patch) -> None:
    """A write is done once one replica has it, at whatever consistency."""

    def enough(consistency: Consistency, row: RangeReplicas) -> Enough:
        return lambda done: not done.isdisjoint(row.writes)

    patch.function(votes.enough_writes, enough)


def reads_do_not_settle(patch: Patch) -> None:
    """What a read has met at too few replicas it gives without putting it where it lacks."""

    async def nothing(self: Coordination, attempt: _Attempt, cell: Cell, have: set[str]) -> None:
        return None

    patch.attribute(Coordination, "_settle", nothing)


def older_rows_win(patch: Patch) -> None:
    """Of the rows of several replicas a read takes the oldest."""

    def oldest(cells: list[Cell]) -> Cell:
        return min(cells)

    patch.function(cells.newest, oldest)


def rows_are_overwritten(patch: Patch) -> None:
    """A replica keeps what came last, and not what is the newest."""
    plain = vars(store)["_WRITE"]
    patch.attribute(store, "_WRITE", plain[: plain.index("where")])


def replicas_ask_for_no_fence(patch: Patch) -> None:
    """A replica serves what it has a row for, whatever version is fenced out, and whoever asks."""
    patch.attribute(Judge, "fenced", lambda self, request: None)


def replicas_serve_fenced_versions(patch: Patch) -> None:
    """A replica serves members by rows of whatever version, as long as the data is there."""
    plain = vars(judging)["check_token"]

    def truncated(image: Image, data_id: str, token: int, version: int) -> StaleVersion | None:
        is_there = image.schema.of_data(data_id) is not None
        return None if is_there else plain(image, data_id, token, version)

    patch.attribute(judging, "check_token", truncated)


def cleaners_do_not_look_again(patch: Patch) -> None:
    """What was not a node's own when its cleanup began, it deletes although it has become that meanwhile."""
    patch.attribute(Cleaner, "_may_delete", lambda self, order, span: True)


ROW_MUTANTS: Final[tuple[Callable[[Patch], None], ...]] = (
    rows_are_not_synced,
    writes_are_timed_by_the_nodes_clock,
    streamed_rows_are_dropped,
    refused_writes_may_stand,
    one_ack_is_a_quorum,
    reads_do_not_settle,
    older_rows_win,
    rows_are_overwritten,
    replicas_ask_for_no_fence,
    cleaners_do_not_look_again,
)
ROW_STORY_MUTANTS: Final = (replicas_serve_fenced_versions,)
