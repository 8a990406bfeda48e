"""The shell around ``proposal``: feeds it the log and who is heard, and asks the log for what it says."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from confluent_kafka import KafkaException

from stele.domain.acks import AckTable
from stele.domain.base import Rejection
from stele.domain.commands import AnyCommand, Envelope, MoveTablets, RepairTablets
from stele.domain.commits.restricted import restricted_text, takes_from
from stele.domain.evolve import Delta
from stele.domain.image import Image
from stele.domain.names import BALANCER
from stele.domain.schema.switches import all_off
from stele.domain.tablets.conditions import Conditions
from stele.domain.tablets.copies import recounting
from stele.domain.tablets.largest import largest
from stele.domain.tablets.load import NO_LOADS, LoadTable
from stele.domain.tablets.look import shards_of, to_the_end, why_there
from stele.domain.tablets.proposals import Proposal, proposal
from stele.domain.tablets.switched import standing_still
from stele.log.codec import DecodeError, decode_ack
from stele.log.commander import Commander, NotTakenError
from stele.log.flows import FlowReader, flow_topic
from stele.runtime.answers.tablet_balancer import (
    BalanceAnswer,
    BalancePlan,
    BalanceState,
    LoadHistory,
    PlannedTabletMove,
    SwitchedOff,
    TabletWhy,
)
from stele.runtime.answers.tablet_sizes import SizesAnswer
from stele.runtime.follow import Followed
from stele.runtime.logs import get_logger
from stele.runtime.metrics import foreign_messages
from stele.runtime.request_ids import new_request_id
from stele.runtime.service import wait_at_most
from stele.tablet_balancer import metrics
from stele.tablet_balancer.described import described
from stele.tablet_balancer.failures import Failures
from stele.tablet_balancer.load_history import Span
from stele.tablet_balancer.loads import Loads
from stele.tablet_balancer.settings import BalancerSettings

GATHER_S: Final = 0.2
"""Epochs this close together are answered by one look: many tablets go on in one."""
SUBMIT_TIMEOUT_S: Final = 10.0
LOADS_TIMEOUT_S: Final = 10.0
"""After which it balances by what it knows; else a topic that is gone would stop it."""

log = get_logger(__name__)


class Balancer:
    """What one process knows, and its loop."""

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
        self._listening_since_s = time.monotonic()
        self._asked: Envelope | None = None
        """What the log has not answered yet: it is asked again, under its id."""
        self._last = Proposal()
        self._failures = Failures()
        self._wake = asyncio.Event()
        followed.follower.listen(self._on_epoch)

    @property
    def image(self) -> Image:
        return self._followed.follower.image

    def on_ack(self, value: bytes) -> None:
        """Raises DecodeError."""
        ack = decode_ack(value)
        if ack.log_id != self.image.log_id:
            foreign_messages.labels("acks").inc()
            return
        self._acks = self._acks.with_ack(ack, time.monotonic())

    def on_unreadable(self, error: DecodeError) -> None:
        metrics.unreadable.inc()
        log.warning("left out a record", error=str(error))

    def answer(self) -> BalanceAnswer:
        """How things stand by the newest image and the last look."""
        image, conditions = self.image, self._conditions()
        found = described(image, conditions, time.monotonic())
        under_way = [r for r in image.requests.unfinished() if r.moves_replica]
        stuck = {each.request_id: each.why for each in self._last.stuck}
        recounted = recounting(image, standing_still(image, conditions.now_ms).keys())
        return BalanceAnswer(
            epoch=image.epoch,
            state_id=image.state_id.hex(),
            state=self._state(found.to_leave, conditions, recounted),
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
            avoided=tuple(sorted(conditions.avoided)),
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
        self, to_leave: int, conditions: Conditions, recounted: Sequence[str]
    ) -> BalanceState:
        image, last = self.image, self._last
        goes_on = image.requests.resizing() or last.moves or last.resizes
        if not image.schema.with_tablets():
            return BalanceState.NO_TABLETS
        if goes_on or any(request.moves_replica for request in image.requests.open.values()):
            return BalanceState.BALANCING
        if last.stuck or to_leave:
            return BalanceState.STALLED
        if any(
            not off.name and not off.expired(conditions.now_ms) for off in all_off(image.schema)
        ):
            return BalanceState.OFF
        if conditions.shut():
            return BalanceState.WAITING
        return BalanceState.STALLED if recounted else BalanceState.BALANCED

    async def plan(self) -> BalancePlan:
        """All moves that are left to make; in a thread, since where there is much to move it takes seconds."""
        image = self.image
        plan = await asyncio.to_thread(to_the_end, image, self._conditions())
        return BalancePlan(epoch=image.epoch, state_id=image.state_id.hex(), plan=plan)

    def history(self, span: Span) -> LoadHistory:
        self._known_loads()  # with what has just come
        return self._loads.histories.answer(span)

    def why(self, table: str, tablet: int) -> TabletWhy | Rejection:
        """Why a tablet is where it is."""
        image = self.image
        found = why_there(image, table, tablet, self._conditions())
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

    def sizes(self, table: str, limit: int, *, hottest: bool) -> SizesAnswer | Rejection:
        """The largest tablets of a table, or the hottest."""
        image = self.image
        found = largest(image, self._conditions(), table, limit, hottest=hottest)
        if isinstance(found, Rejection):
            return found
        return SizesAnswer(epoch=image.epoch, state_id=image.state_id.hex(), sizes=found)

    async def run(self) -> None:
        """Balance until cancelled."""
        await self._followed.caught_up.wait()
        await wait_at_most(self._loads.read, LOADS_TIMEOUT_S)
        while True:
            await self._look()
            await wait_at_most(self._wake, self._interval_s)
            await asyncio.sleep(GATHER_S)
            self._wake.clear()

    async def _look(self) -> None:
        image = self.image
        can = self._followed.follower.failure is None and takes_from(image.commits, BALANCER)
        if not can or not image.cluster or not image.schema.with_tablets():
            return
        if self._asked is not None:
            await self._submit(self._asked)
            return
        if time.monotonic() - self._listening_since_s < self._down_after_s:
            return  # nobody has had the time to be heard
        began_s = time.monotonic()
        self._last = found = proposal(image, self._conditions())
        metrics.look_seconds.observe(time.monotonic() - began_s)
        for command, why in found.commands():
            await self._ask(command, why)

    def _conditions(self) -> Conditions:
        now_ms = time.time_ns() // 1_000_000
        paused = self._failures.paused(time.monotonic())
        return Conditions(self._down(), self._avoided(), self._known_loads(), now_ms, paused)

    def _known_loads(self) -> LoadTable:
        """Which of them count is not known before the log has been read."""
        read = self._followed.caught_up.is_set()
        return self._loads.table(self.image) if read else NO_LOADS

    def _down(self) -> frozenset[str]:
        now_s = time.monotonic()
        members = self.image.membership.taking_part()
        late = (n for n in members if self._acks.silent_for_s(n, now_s) > self._down_after_s)
        return frozenset(late)

    def _avoided(self) -> frozenset[str]:
        """Members to which moves have failed just now."""
        return self._failures.avoided(time.monotonic()) & self.image.membership.taking_part().keys()

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
        """Ask, and read on to where the answer is in the log: the next look starts from there."""
        self._asked = envelope
        try:
            outcome = await self._commander.submit(envelope, SUBMIT_TIMEOUT_S)
        except NotTakenError as error:
            self._asked = None
            log.warning("the log does not take it", why=str(error))
            return
        except (TimeoutError, KafkaException) as error:
            log.warning("the metadata log has not answered yet", why=str(error))
            return
        self._asked = None
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
    """A balancer with what it reads and asks by; ``run`` is the caller's to start."""
    commander = Commander(settings.brokers, settings.cluster)
    balancer = Balancer(settings, followed, commander, loads)
    topic = flow_topic(settings.cluster, "acks")
    acks = FlowReader(settings.brokers, topic, balancer.on_ack, balancer.on_unreadable)
    try:
        await acks.start()
        await commander.start()
        yield balancer
    finally:
        await asyncio.gather(acks.close(), commander.close(), return_exceptions=True)
