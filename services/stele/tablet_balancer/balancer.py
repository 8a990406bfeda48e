"""The shell around ``proposal``: provides the image and the live nodes, and sends its commands."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, TypeVar

import msgspec
import numpy as np
from confluent_kafka import KafkaException

from stele.domain.balancer.load import NO_LOADS, Conditions, LoadTable, Measure
from stele.domain.balancer.proposals import (
    Proposal,
    plan_to_end,
    planner_input,
    proposal,
    shards_of,
    switched_off,
    tablet_verdicts,
    waits_for,
)
from stele.domain.balancer.resizing import largest
from stele.domain.base import Rejection
from stele.domain.commands import AnyCommand, Envelope, MoveTablets, RepairTablets
from stele.domain.evolve import Delta
from stele.domain.image import Image
from stele.domain.names import BALANCER
from stele.domain.not_taken import restricted_text, takes_from
from stele.domain.observed_time import NEVER, ObservedTime
from stele.domain.planner.offline import evenness
from stele.domain.planner.planned import TableSpread
from stele.domain.planner.state import LEAVING, BalanceColumns
from stele.domain.rules.schema import all_off
from stele.domain.tablets.copies import recounting
from stele.domain.tablets.maps import held_by
from stele.domain.topology.barriers import AckTable
from stele.log.codec import DecodeError, decode_ack
from stele.log.commander import Commander, NotTakenError
from stele.log.flows import FlowReader, flow_topic, start_across_outage
from stele.runtime.answers.tablet_balancer import (
    BalanceAnswer,
    BalancedNode,
    BalancedShard,
    BalancePlan,
    BalanceState,
    LoadHistory,
    PlannedTabletMove,
    SizesAnswer,
    SwitchedOff,
    TabletWhy,
)
from stele.runtime.follow import Followed
from stele.runtime.logs import get_logger
from stele.runtime.metrics import foreign_messages
from stele.runtime.request_ids import new_request_id
from stele.runtime.service import wait_at_most
from stele.tablet_balancer import metrics
from stele.tablet_balancer.failures import Failures
from stele.tablet_balancer.loads import HistorySpan, Loads
from stele.tablet_balancer.settings import BalancerSettings

GATHER_S: Final = 0.2
"""Delay before a look, in seconds. Epochs within it share one look, because many tablets proceed in
one epoch.
"""
SUBMIT_TIMEOUT_S: Final = 10.0
LOADS_TIMEOUT_S: Final = 10.0
"""Seconds after which the balancer uses the loads that it has. A missing topic would otherwise stop
it.
"""

T = TypeVar("T")

log = get_logger(__name__)


class Balancer:
    """The balancer's state in one process, and its loop."""

    def __init__(
        self,
        settings: BalancerSettings,
        followed: Followed,
        commander: Commander,
        loads: Loads,
    ) -> None:
        self._followed = followed
        self._loads = loads
        self._commander = commander
        self._down_after_s = settings.heartbeat_timeout_s
        self._interval_s = settings.balance_interval_s
        self._acks = AckTable()
        self._reading = ObservedTime(self._down_after_s)
        """Times at which acks were read. Each ack confirms that reading works."""
        self._undecided: Envelope | None = None
        """The command without an outcome yet. It is sent again under its id."""
        self._last = Proposal()
        self._failures = Failures()
        self._wake = asyncio.Event()
        self._folding = asyncio.Lock()
        """Held by the thread that folds reports."""
        self._viewing = asyncio.Lock()
        """One view is computed at a time, so that requests cannot take all threads."""
        followed.follower.listen(self._on_epoch)

    @property
    def image(self) -> Image:
        return self._followed.follower.image

    def on_ack(self, value: bytes) -> None:
        """Note one ack. Raises DecodeError."""
        ack = decode_ack(value)
        # Acks of another log are no evidence on members of this one (docs/design.md, rule 13).
        if ack.log_id != self.image.log_id:
            foreign_messages.labels("acks").inc()
            return
        now_s = time.monotonic()
        self._acks = self._acks.with_ack(ack, now_s)
        self._reading = self._reading.confirmed(now_s)

    def on_unreadable(self, error: DecodeError) -> None:
        metrics.unreadable.inc()
        log.warning("left out a record", error=str(error))

    async def answer(self) -> BalanceAnswer:
        """Return the state of balance by the newest image and the last look."""
        return await self._view(self.answer_for)

    async def _view(self, of: Callable[[Image, Conditions], T]) -> T:
        """Return a view of the newest image.

        It is computed in a thread, because it examines each table, which takes seconds with
        thousands of tables.
        """
        async with self._viewing:
            conditions = await self._conditions()
            return await asyncio.to_thread(of, self.image, conditions)

    def answer_for(self, image: Image, conditions: Conditions) -> BalanceAnswer:
        found = described(image, conditions, time.monotonic())
        under_way = [r for r in image.requests.unfinished() if r.moves_replica]
        stuck = {each.request_id: each.why for each in self._last.stuck}
        recounted = recounting(image, switched_off(image, conditions.now_ms).keys())
        return BalanceAnswer(
            epoch=image.epoch,
            state_id=image.state_id.hex(),
            state=self._state(image, found.to_leave, conditions, recounted),
            under_way=tuple(request.request_id for request in under_way),
            resizing=image.requests.resizing(),
            planned=tuple(
                PlannedTabletMove(
                    table=each.move.table,
                    tablet=each.move.tablet,
                    from_node=each.move.from_node,
                    to_node=each.move.to_node,
                    to_shard=each.move.to_shard,
                    kind=each.kind,
                    why=each.move.why,
                )
                for each in self._last.moves
            ),
            stuck=stuck,
            balanced_by=found.measure.by,
            rate_weight=found.measure.rate_weight,
            why=found.measure.why,
            nodes=found.nodes,
            tables=found.tables,
            down=tuple(sorted(conditions.down)),
            avoided=tuple(sorted(conditions.avoided | conditions.failing)),
            full=tuple(sorted(conditions.loads.full())),
            recounting=tuple(recounted),
            off=tuple(
                SwitchedOff(off.name, off.balancing, off.expired(conditions.now_ms))
                for off in all_off(image.schema)
            ),
            restricted=restricted_text(image.commits),
            repairing=tuple(r.request_id for r in image.requests.unfinished() if r.stays_in_place),
        )

    def _state(
        self, image: Image, to_leave: int, conditions: Conditions, recounted: Sequence[str]
    ) -> BalanceState:
        last = self._last
        goes_on = image.requests.resizing() or last.moves or last.resizes
        if not image.schema.with_tablets():
            return BalanceState.NO_TABLETS
        if goes_on or any(
            request.moves_replica for request in image.requests.unfinished_by_id.values()
        ):
            return BalanceState.BALANCING
        if last.stuck or to_leave:
            return BalanceState.STALLED
        if any(
            not off.name and not off.expired(conditions.now_ms) for off in all_off(image.schema)
        ):
            return BalanceState.OFF
        if waits_for(image, conditions):
            return BalanceState.WAITING
        return BalanceState.STALLED if recounted else BalanceState.BALANCED

    async def plan(self) -> BalancePlan:
        """Return all remaining moves."""

        def planned(image: Image, conditions: Conditions) -> BalancePlan:
            plan = plan_to_end(image, conditions)
            return BalancePlan(epoch=image.epoch, state_id=image.state_id.hex(), plan=plan)

        return await self._view(planned)

    async def history(self, span: HistorySpan) -> LoadHistory:
        await self._loads_now()  # includes reports that have just arrived
        async with self._folding:
            return await asyncio.to_thread(self._loads.histories.answer, span)

    async def why(self, table: str, tablet: int) -> TabletWhy | Rejection:
        """Return the verdict of each node on a tablet: the reason for its place."""

        def verdicts(image: Image, conditions: Conditions) -> TabletWhy | Rejection:
            found = tablet_verdicts(image, table, tablet, conditions)
            if isinstance(found, Rejection):
                return found
            return TabletWhy(
                epoch=image.epoch,
                state_id=image.state_id.hex(),
                table=table,
                tablet=tablet,
                verdicts=tuple(found),
                shards=shards_of(image, table, tablet),
            )

        return await self._view(verdicts)

    async def sizes(self, table: str, limit: int, *, hottest: bool) -> SizesAnswer | Rejection:
        """Return the largest tablets of a table, or the hottest."""

        def sizes(image: Image, conditions: Conditions) -> SizesAnswer | Rejection:
            found = largest(image, conditions, table, limit, hottest=hottest)
            if isinstance(found, Rejection):
                return found
            return SizesAnswer(epoch=image.epoch, state_id=image.state_id.hex(), sizes=found)

        return await self._view(sizes)

    async def run(self) -> None:
        """Balance until cancelled."""
        await self._followed.caught_up.wait()
        await wait_at_most(self._loads.read, LOADS_TIMEOUT_S)
        while True:
            await self._round()
            await wait_at_most(self._wake, self._interval_s)
            await asyncio.sleep(GATHER_S)
            self._wake.clear()

    async def _round(self) -> None:
        image = self.image
        can = self._followed.follower.failure is None and takes_from(image.commits, BALANCER)
        if not can or not image.cluster or not image.schema.with_tablets():
            return
        # A command with an unknown outcome may have been applied. A new look could then request the
        # same work under another id (docs/design.md, rule 3).
        if self._undecided is not None:
            await self._submit(self._undecided)
            return
        began_s = time.monotonic()
        if self._reading.elapsed_s(NEVER, began_s) < self._down_after_s:
            return  # acks of live nodes may be unread since the last gap in reading
        # In a thread: it examines each table, which takes seconds with thousands of tables.
        conditions = await self._conditions()
        self._last = found = await asyncio.to_thread(proposal, self.image, conditions)
        metrics.look_seconds.observe(time.monotonic() - began_s)
        for command, why in found.commands():
            await self._ask(command, why)
            # One command at a time has an unknown outcome, so that its id is kept (rule 3).
            if self._has_unknown_outcome():
                return

    def _has_unknown_outcome(self) -> bool:
        # A method, because mypy does not see that ``_ask`` changes the field.
        return self._undecided is not None

    async def _conditions(self) -> Conditions:
        return self.conditions(await self._loads_now())

    def conditions(self, loads: LoadTable) -> Conditions:
        """Return the loads, the members that are down, and the pauses after failures."""
        now_s, failures = time.monotonic(), self._failures
        members = self.image.membership.taking_part()
        return Conditions(
            frozenset(self._acks.silent_for_longer(members, self._down_after_s, now_s)),
            failures.avoided(now_s) & members.keys(),
            loads,
            time.time_ns() // 1_000_000,
            failures.paused(now_s),
            failures.failing(now_s) & members.keys(),
        )

    async def _loads_now(self) -> LoadTable:
        """Return the loads that count, none before the log has been read.

        New reports are folded in a thread: one of them changes the heat of all tablets.
        """
        if not self._followed.caught_up.is_set():
            return NO_LOADS
        async with self._folding:
            return await asyncio.to_thread(self._loads.table, self.image)

    async def _ask(self, command: AnyCommand, why: str) -> None:
        await self._submit(
            Envelope(
                request_id=new_request_id(self.image.state_id, self._commander.horizon_ms),
                command=command,
                actor=BALANCER,
                reason=why,
                log_id=self.image.log_id.hex(),
            )
        )

    async def _submit(self, envelope: Envelope) -> None:
        """Send a command and read the log up to its outcome, where the next look starts."""
        self._undecided = envelope
        try:
            outcome = await self._commander.submit(envelope, SUBMIT_TIMEOUT_S)
        # The log has decided nothing, so the next look may plan differently.
        except NotTakenError as error:
            self._undecided = None
            log.warning("the log does not take it", why=str(error))
            return
        except (TimeoutError, KafkaException) as error:
            log.warning("the metadata log has not answered yet", why=str(error))
            return
        self._undecided = None
        if outcome.rejection is not None:
            metrics.refused.labels(outcome.rejection.code).inc()
            log.info("refused", why=outcome.rejection.message)
            return
        if isinstance(envelope.command, MoveTablets):
            metrics.moves.inc(len(envelope.command.moves))
            for move in envelope.command.moves:
                log.info("asked for", move=msgspec.to_builtins(move))
        elif isinstance(envelope.command, RepairTablets):
            metrics.repairs.inc(len(envelope.command.repairs))
        try:
            await self._followed.follower.wait_for_epoch(outcome.epoch, SUBMIT_TIMEOUT_S)
        except TimeoutError as error:
            log.warning("still reading the log", why=str(error))

    def _on_epoch(self, image: Image, delta: Delta) -> None:
        self._failures.follow(delta, time.monotonic())
        self._wake.set()


@asynccontextmanager
async def balancing(
    settings: BalancerSettings, followed: Followed, loads: Loads
) -> AsyncIterator[Balancer]:
    """Yield a balancer with its reader of acks and its commander. The caller starts ``run``."""
    commander = Commander(settings.brokers, settings.cluster)
    balancer = Balancer(settings, followed, commander, loads)
    topic = flow_topic(settings.cluster, "acks")
    acks = FlowReader(settings.brokers, topic, balancer.on_ack, balancer.on_unreadable)
    try:
        await start_across_outage(acks, commander)
        yield balancer
    finally:
        # Both are closed, also if one of them fails to close.
        await asyncio.gather(acks.close(), commander.close(), return_exceptions=True)


# --- the description of an image's balance


class BalanceDescription(NamedTuple):
    """The measure of balance, the nodes, the replicas to move away, and the spread of each table.

    ``nodes`` are those that take tablets or hold some. ``to_leave`` is the number of replicas on
    nodes that must become empty.
    """

    measure: Measure
    nodes: dict[str, BalancedNode]
    to_leave: int
    tables: tuple[TableSpread, ...]


def described(image: Image, conditions: Conditions, now_s: float) -> BalanceDescription:
    """Describe the balance of an image. ``now_s`` is a time of the clock that stamped the loads."""
    tablets, loads = planner_input(image, conditions).tablets, conditions.loads
    spread = evenness(tablets.state, tablets.names)
    even = {node.id: node for node in spread.nodes}
    place = {node_id: at for at, node_id in enumerate(tablets.node_ids)}
    nodes = {
        node_id: BalancedNode(
            tablets=count,
            size_bytes=even[node_id].size_bytes if loads.by_node and node_id in even else None,
            capacity_bytes=loads.capacity_bytes(node_id),
            of_share=even[node_id].of_share if node_id in even else None,
            report_age_s=loads.age_s(node_id, now_s),
            rate=even[node_id].rate if loads.by_node and node_id in even else None,
            shards=_shards(tablets.state, place[node_id], known=bool(loads.by_node))
            if node_id in place
            else (),
        )
        for node_id, count in held_by(image).items()
    }
    leaving = np.isin(tablets.state.state, LEAVING)
    to_leave = int(tablets.state.count[:, leaving].sum())
    return BalanceDescription(tablets.measure, nodes, to_leave, spread.tables)


def _shards(state: BalanceColumns, node: int, *, known: bool) -> tuple[BalancedShard, ...]:
    """Return the shards of a node. Bytes are the sums of its tablets' sizes as reported."""
    replicas, shards = state.members(node), int(state.shards[node])
    shard = state.shard.ravel()[replicas]
    sizes = np.nan_to_num(state.size[replicas // state.width])
    held = np.bincount(shard, minlength=shards).tolist()
    total = np.bincount(shard, sizes, shards).tolist()
    return tuple(
        BalancedShard(tablets=tablets, size_bytes=int(size_bytes) if known else None)
        for tablets, size_bytes in zip(held, total, strict=True)
    )
