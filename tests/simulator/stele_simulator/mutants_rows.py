"""Known bugs of what nodes keep for clients, in whole nodes: the store, requests, streams."""

from stele.agent import judging
from stele.agent.cleanup import Cleaner
from stele.agent.judging import Judge
from stele.domain.fencing import StaleVersion
from stele.domain.image import Image
from stele.domain.ring.ranges import RangeReplicas
from stele.log import reader
from stele.node import cells, coordinate, store
from stele.node.cells import Cell, StoredCell
from stele.node.coordinate import Consistency, Coordination, Enough, _Attempt
from stele.node.streaming import Streamer
from stele_simulator.patching import Patch
from stele_simulator.planting import RUN, STORY, planted


@planted(RUN, rule="I14")
def rows_are_not_synced(patch: Patch) -> None:
    """A write is answered once it is committed: a power failure takes it back."""
    unsynced = tuple(p.replace("synchronous=full", "synchronous=normal") for p in store.PRAGMAS)
    patch.attribute(store, "PRAGMAS", unsynced)


@planted(RUN)
def writes_are_timed_by_the_nodes_clock(patch: Patch) -> None:
    """A write does not ask what the newest one is: where clocks differ, an earlier one may beat it."""

    async def own(self: Coordination, attempt: _Attempt, consistency: Consistency) -> int:
        return int(vars(reader)["time"].time_ns()) // 1000

    patch.attribute(Coordination, "_timestamp", own)


@planted(RUN)
def streamed_rows_are_dropped(patch: Patch) -> None:
    """Streamed rows are counted, but not stored."""

    def none(self: Streamer, reading: object, rows: list[StoredCell], place: int) -> bool:
        return False

    patch.attribute(Streamer, "_may_keep", none)


@planted(RUN, rule="3")
def refused_writes_may_stand(patch: Patch) -> None:
    """A write with too few acknowledgements is reported as not done."""
    patch.attribute(coordinate.Vote, "may_be_done", lambda self: False)


@planted(RUN, rule="I14")
def one_ack_is_a_quorum(patch: Patch) -> None:
    """A write is done once one replica has it, at whatever consistency."""

    def enough(consistency: Consistency, row: RangeReplicas) -> Enough:
        return lambda done: not done.isdisjoint(row.writes)

    patch.function(coordinate.enough_writes, enough)


@planted(RUN, rule="I14")
def reads_do_not_settle(patch: Patch) -> None:
    """A read returns a value of too few replicas without repairing the others."""

    async def nothing(self: Coordination, attempt: _Attempt, cell: Cell, have: set[str]) -> None:
        return None

    patch.attribute(Coordination, "_settle", nothing)


@planted(RUN)
def older_rows_win(patch: Patch) -> None:
    """A read returns the oldest row of its replicas."""

    def oldest(cells: list[Cell]) -> Cell:
        return min(cells)

    patch.function(cells.newest, oldest)


@planted(RUN)
def rows_are_overwritten(patch: Patch) -> None:
    """A replica keeps what came last, and not what is the newest."""
    plain = vars(store)["_WRITE"]
    patch.attribute(store, "_WRITE", plain[: plain.index("where")])


@planted(RUN)
def replicas_ask_for_no_fence(patch: Patch) -> None:
    """A replica serves any row that it has, whatever is fenced."""
    patch.attribute(Judge, "fenced", lambda self, request: None)


@planted(STORY, rule="I6")
def replicas_serve_fenced_versions(patch: Patch) -> None:
    """A replica serves members by rows of whatever version, as long as the data is there."""
    plain = vars(judging)["check_token"]

    def truncated(image: Image, data_id: str, token: int, version: int) -> StaleVersion | None:
        is_there = image.schema.of_data(data_id) is not None
        return None if is_there else plain(image, data_id, token, version)

    patch.attribute(judging, "check_token", truncated)


@planted(RUN)
def cleaners_do_not_look_again(patch: Patch) -> None:
    """A cleanup deletes ranges that became the node's own after the cleanup began."""
    patch.attribute(Cleaner, "_may_delete", lambda self, order, span: True)
