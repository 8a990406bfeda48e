"""Known bugs of what nodes keep for clients, in whole nodes: the store, requests, streams."""

from collections.abc import Callable
from typing import Final

from stele.log import reader
from stele.node import store, votes
from stele.node.cells import Row
from stele.node.coordinate import Coordination, _Attempt
from stele.node.streaming import Streamer
from stele.node.votes import Consistency
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


ROW_MUTANTS: Final[tuple[Callable[[Patch], None], ...]] = (
    rows_are_not_synced,
    writes_are_timed_by_the_nodes_clock,
    streamed_rows_are_dropped,
    refused_writes_may_stand,
)
