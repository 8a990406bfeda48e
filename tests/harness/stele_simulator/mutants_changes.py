"""Known bugs of change logs and their generations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from stele.agent import pulling
from stele.domain.context import Context
from stele.domain.image import Image
from stele.domain.model.cdc import CdcFact, CdcGenerationCommitted
from stele.domain.model.cdc_streams import Generation
from stele.domain.rules import cdc
from stele.domain.rules.cdc import ChangeStream
from stele.domain.rules.ring import ring_now
from stele.domain.tablets.maps import range_of
from stele.domain.topology import steps
from stele.node import change_log
from stele.node.cells import StoredCell
from stele.node.change_log import Capture, ChangePage, LoggedChange, log_row
from stele.node.changes import Changes
from stele.node.coordinate import Consistency, Coordination, Enough, _Attempt, enough_reads
from stele.node.replica import LocalReplica
from stele.node.store import SqliteStore
from stele.node.wire import Answer, AnyOp, ReadChanges, Write
from stele_simulator.patching import Patch
from stele_simulator.planting import STORY, planted

# Known bugs of change logs: changes that are not logged, not streamed, in a wrong stream, or not
# read.


@planted(STORY, rule="D1")
def changes_are_logged_in_a_later_commit(patch: Patch) -> None:
    """The change of a write is logged by another transaction, after the write is acknowledged."""
    plain = SqliteStore.write
    later = set[asyncio.Task[Any]]()

    async def write(
        self: SqliteStore,
        rows: Sequence[StoredCell],
        permit: Callable[[int], bool] = lambda _: True,
        into: Callable[[int], Sequence[str]] | None = None,
        captures: Callable[[int], Capture | None] = lambda _: None,
    ) -> list[int | None]:
        logged = [log_row(row, None) for at, row in enumerate(rows) if captures(at) is not None]
        found = await plain(self, rows, permit, into)
        if logged:
            task = asyncio.create_task(plain(self, logged))
            later.add(task)
            task.add_done_callback(later.discard)
        return found

    patch.attribute(SqliteStore, "write", write)


@planted(STORY, rule="D1")
def coordinators_alone_log(patch: Patch) -> None:
    """A change is logged by the node that the client asked, and by no other replica."""
    plain = LocalReplica._capture

    def own(self: LocalReplica, op: Write) -> Capture | None:
        return plain(self, op) if op.coordinating == self._node_id else None

    patch.attribute(LocalReplica, "_capture", own)


@planted(STORY, rule="D2")
def streams_have_the_range_before(patch: Patch) -> None:
    """A stream of a generation has the changes of the range before its own."""
    plain = cdc._of_generation

    def before(generation: Generation, until_ms: int, place: int) -> ChangeStream:
        count = len(generation.streams) // 16
        other = plain(generation, until_ms, (place - 1) % count)
        return replace(plain(generation, until_ms, place), ranges=other.ranges)

    patch.function(plain, before)


@planted(STORY, rule="D2")
def tablets_share_a_stream(patch: Patch) -> None:
    """The stream of a tablet has the changes of the first one."""
    plain = cdc._of_tablet

    def first(table_id: str, count: int, tablet: int) -> ChangeStream:
        return replace(plain(table_id, count, tablet), ranges=(range_of(count, 0),))

    patch.function(plain, first)


@planted(STORY, rule="D2")
def old_generations_never_end(patch: Patch) -> None:
    """The streams of a generation continue after the next one has begun to hold."""

    def endless(image: Image) -> Iterable[tuple[Generation, int]]:
        return ((generation, 0) for generation in image.cdc.committed())

    patch.function(cdc._with_ends, endless)


class _AtOnce:
    """A coordination without a window in which writes may be late."""

    def __init__(self, plain: Coordination) -> None:
        self._plain = plain
        self.window_ms = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


@planted(STORY, rule="D3")
def readers_do_not_wait_for_late_writes(patch: Patch) -> None:
    """Changes are read up to now, while writes of earlier times are still on their way."""
    plain = Changes.__init__

    def init(self: Changes, coordination: Coordination, now_us: Callable[[], int]) -> None:
        plain(self, coordination, now_us)
        self._coordination = _AtOnce(coordination)  # type: ignore[assignment]

    patch.attribute(Changes, "__init__", init)


@planted(STORY, rule="D3")
def pages_are_as_complete_as_the_longest(patch: Patch) -> None:
    """A page goes up to the last change of any replica, although another one has more before it."""
    plain = change_log.merged

    def longest(pages: list[ChangePage], limit: int) -> tuple[list[LoggedChange], int]:
        found, _ = plain(pages, limit)
        return found, max(page.upto_us for page in pages)

    patch.function(plain, longest)


@planted(STORY, rule="D3")
def change_logs_are_not_streamed(patch: Patch) -> None:
    """A new replica gets the rows of a table, and not their changes."""

    def without_logs(image: Image, placement: str) -> tuple[str, ...]:
        found = (d.data_id for d in image.schema.using(placement) if not d.dropped_version)
        return tuple(sorted(found))

    patch.function(pulling._data_ids, without_logs)


@planted(STORY, rule="D3")
def one_replica_answers_for_changes(patch: Patch) -> None:
    """Changes are read from the first replica that answers, which may lack some."""
    plain = Coordination._ask

    async def ask(
        self: Coordination,
        attempt: _Attempt,
        nodes: Iterable[str],
        op_for: Callable[[str], AnyOp],
        enough: Enough,
        already: Iterable[str] = (),
        sent: Any = None,
    ) -> dict[str, Answer]:
        nodes = [*nodes]
        if nodes and isinstance(op_for(nodes[0]), ReadChanges):
            enough = enough_reads(Consistency.ONE, attempt.row)
        return await plain(self, attempt, nodes, op_for, enough, already, sent)

    patch.attribute(Coordination, "_ask", ask)


@planted(STORY, rule="D3")
def late_writes_are_accepted(patch: Patch) -> None:
    """A write whose time readers have passed is acknowledged."""
    patch.function(cdc.check_time, lambda image, data_id, token, write_ms, now_ms, window_ms: None)


@planted(STORY, rule="D3")
def streams_begin_when_they_are_read(patch: Patch) -> None:
    """A stream that is read for the first time begins now, and not when it began to hold."""
    plain = Changes._after_us

    def now(self: Changes, after: str, options: Any, stream: ChangeStream, image: Image) -> int:
        return plain(self, after, options, stream, image) if after else self._now_us()

    patch.attribute(Changes, "_after_us", now)


@planted(STORY, rule="D4")
def pages_are_read_backwards(patch: Patch) -> None:
    """The changes of a page come with the newest one first."""
    plain = change_log.merged

    def backwards(pages: list[ChangePage], limit: int) -> tuple[list[LoggedChange], int]:
        found, upto_us = plain(pages, limit)
        return found[::-1], upto_us

    patch.function(plain, backwards)


# Planted bugs of CDC generations: what they count, when they are committed, and what is left
# behind.


@planted(STORY)
def generation_forgets_who_joins(patch: Patch) -> None:
    """A CDC generation counts only the tokens of the ring before the join that it is made for."""
    patch.attribute(steps, "tokens_of_streams", lambda image: {*ring_now(image).tokens})


@planted(STORY)
def generation_is_committed_unseen(patch: Patch) -> None:
    """A CDC generation is committed by the epoch that writes it: no barrier comes between."""
    plain = cdc.written

    def at_once(context: Context, transition_id: str, tokens: Iterable[int]) -> Iterator[CdcFact]:
        facts = [*plain(context, transition_id, tokens)]
        yield from facts
        yield CdcGenerationCommitted(facts[0].generation_id, context.at_ms, context.epoch)

    patch.attribute(steps, "written", at_once)


@planted(STORY)
def undone_generation_is_left(patch: Patch) -> None:
    """The generation of an undone operation stays."""
    patch.attribute(steps, "abandoned", lambda image, transition_id: ())
