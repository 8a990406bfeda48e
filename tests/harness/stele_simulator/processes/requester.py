"""Somebody who asks for all that changes the topology, as a program does it: by the commands topic.

The scenario says when what kind of request is made; what it is about is chosen by its own chance from the state
of the log then. It may be refused, come to nothing, or be in the way of what others ask.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException

from stele.domain import commands
from stele.domain.commands import AnyCommand, Envelope, Outcome
from stele.domain.image import Image
from stele.domain.model.operations import TabletMove
from stele.domain.model.schema import (
    AnyChange,
    ColumnDefinition,
    TableAlteration,
    TypeAlteration,
)
from stele.domain.model.schema_objects import ColumnKind, TypeField
from stele.domain.ring.partitioner import token_of
from stele.domain.ring.ranges import RangeReplicas, contains, range_of
from stele.log.commander import Commander, NotTakenError
from stele.runtime.request_ids import new_request_id
from stele_simulator.processes.data import (
    COLUMNS_TABLES,
    COLUMNS_TYPES,
    DC,
    HOT_KEY,
    KEYSPACE_TRUNCATED,
    OTHER_TABLE,
    TABLE,
    TABLE_TRUNCATED,
    TABLETS,
)
from stele_simulator.processes.deaths import Deaths
from stele_simulator.processes.disaster import BURY, CLEANED, COLUMNS, DEAD
from stele_simulator.processes.machine import Machine
from stele_simulator.processes.members import BROKERS, CLUSTER
from stele_simulator.scenario import Action

if TYPE_CHECKING:
    from stele_simulator.processes.world import World

SUBMIT_S: Final = 20.0
MOVED_S: Final = 20.0
"""So long it is waited until a tablet has moved, before it is to move back."""
LOOK_S: Final = 0.5
MOST_TABLETS: Final = 16
LEAST_TABLETS: Final = 2
OFF_S: Final = 10.0
DELETED_SHARE: Final = 0.2
"""Share of deletions among the requests about existing snapshots."""
CLEANED_SLOW_S: Final = 10.0
CLEANED_PAUSE_S: Final = 2.0
WITHIN_SHARE: Final = 0.25
"""Share of moves to another shard of the same node, where it has several."""
TRUNCATED_SHARE: Final = 0.04
EXPIRE_S: Final = 10
"""A snapshot of a table is deleted again after that."""
MADE: Final = ("q0", "q1")
"""Keyspaces that it makes and drops; each has a table, and another one that is co-located with it."""

Choose = Callable[["RequesterMachine", Image, Random], AnyCommand | None]


class RequesterMachine(Machine):
    """The client that sends requests. Its process never fails, and it repeats requests of unknown outcome."""

    def __init__(self, name: str, world: "World") -> None:
        super().__init__(name, world)
        self.applied = 0
        self._deaths = Deaths(self)

    async def main(self) -> None:
        loop, kernel = asyncio.get_running_loop(), self.world.kernel
        asked = list[asyncio.Task[None]]()
        async with Commander(BROKERS, CLUSTER) as commander:
            for action in self.world.scenario.requests:
                await asyncio.sleep(max(0.0, action.at_s - kernel.now_s))
                if not self.world.callers_work:
                    break
                asked.append(loop.create_task(self._carry_out(commander, action)))
            await asyncio.gather(*asked)
        await loop.create_future()

    async def _carry_out(self, commander: Commander, action: Action) -> None:
        chance = Random(f"{action.kind}/{action.number}")
        if action.kind in (BURY, DEAD):
            await self._deaths.come(commander, chance, together=action.kind == DEAD)
        elif action.kind == CLEANED:
            await self._clean_what_comes(commander, chance)
        elif action.kind == "to_and_fro":
            await self._to_and_fro(commander, chance)
        else:
            command = KINDS[action.kind](self, self.world.witness.image, chance)
            if command is not None:
                await self.submit(commander, command)

    async def submit(self, commander: Commander, command: AnyCommand) -> Outcome | None:
        log_id = self.world.witness.image.log_id.hex()
        envelope = Envelope(
            request_id=new_request_id(horizon_ms=commander.horizon_ms),
            command=command,
            actor=self.name,
            log_id=log_id,
        )
        with suppress(TimeoutError, NotTakenError, KafkaException):
            outcome = await commander.submit(envelope, SUBMIT_S)
            self.applied += outcome.applied
            said = "applied" if outcome.rejection is None else outcome.rejection.code
            self.world.trace(f"{self.name} asks for {command}: {said}"[:300])
            return outcome
        return None

    async def _to_and_fro(self, commander: Commander, chance: Random) -> None:
        """A tablet goes to another node, and back as soon as it is there."""
        move = some_move(self.world.witness.image, chance, TABLE)
        if move is None or await self.submit(commander, commands.MoveTablets((move,))) is None:
            return
        await self.until(lambda: self._is_at(move), MOVED_S)
        back = TabletMove(
            table=move.table, tablet=move.tablet, from_node=move.to_node, to_node=move.from_node
        )
        await self.submit(commander, commands.MoveTablets((back,)))

    async def _clean_what_comes(self, commander: Commander, chance: Random) -> None:
        """Move a tablet to a node during its cleanup."""
        image, node = self.world.witness.image, chance.choice(self.world.nodes)
        rows = _rows_of(image, TABLE)
        foreign = [at for at, row in enumerate(rows) if node.node_id not in row.writes]
        if not foreign or node.node_id not in image.membership.normal():
            return
        tablet = chance.choice(foreign)
        move = TabletMove(
            table=TABLE,
            tablet=tablet,
            from_node=chance.choice(sorted(rows[tablet].reads)),
            to_node=node.node_id,
        )
        node.slow(CLEANED_SLOW_S)
        asks = (commands.Cleanup(node_id=node.node_id), commands.MoveTablets((move,)))
        pauses = (0.0, CLEANED_PAUSE_S * chance.random())
        await asyncio.gather(*map(partial(self._submit_later, commander), asks, pauses))

    async def _submit_later(
        self, commander: Commander, command: AnyCommand, pause_s: float
    ) -> None:
        await asyncio.sleep(pause_s)
        await self.submit(commander, command)

    def _is_at(self, move: TabletMove) -> bool:
        rows = _rows_of(self.world.witness.image, move.table)
        return len(rows) <= move.tablet or (
            move.to_node in rows[move.tablet].reads
            and move.from_node not in rows[move.tablet].writes
        )

    async def until(self, found: Callable[[], bool], limit_s: float) -> None:
        """Not longer than somebody waits, nor than the faults last."""
        for _ in range(int(limit_s / LOOK_S)):
            if found() or not self.world.callers_work:
                return
            await asyncio.sleep(LOOK_S)

    # -- what it asks for

    @property
    def racks(self) -> list[str]:
        """Return the racks of the first dc."""
        return sorted({node.rack for node in self.world.nodes if node.dc == DC})

    def now_ms(self) -> int:
        return self.clock.wall_ms()


def _rows_of(image: Image, table: str) -> tuple[RangeReplicas, ...]:
    data = image.schema.serving(table)
    return () if data is None else tuple(image.ring.placements[data.placement].rows)


def some_move(image: Image, chance: Random, table: str, key: str = "") -> TabletMove | None:
    """Return a move of the tablet of this key, or of any."""
    rows, members = _rows_of(image, table), sorted(image.membership.normal())
    if not rows or not members:
        return None
    tablet = chance.randrange(len(rows))
    if key:
        token = token_of(key.encode())
        (tablet,) = (at for at, row in enumerate(rows) if contains(range_of(row), token))
    others = sorted({*members} - {*rows[tablet].reads}) or members
    from_node, to_node = chance.choice(sorted(rows[tablet].reads)), chance.choice(others)
    if image.membership.nodes[from_node].shards > 1 and chance.random() < WITHIN_SHARE:
        to_node = from_node
    shards = image.membership.nodes[to_node].shards
    is_named = shards > 1 and (to_node == from_node or chance.random() < 0.5)
    return TabletMove(
        table=table,
        tablet=tablet,
        from_node=from_node,
        to_node=to_node,
        to_shard=chance.randrange(shards) if is_named else -1,
    )


def moved(move: TabletMove | None) -> AnyCommand | None:
    """Return the request for a move."""
    return None if move is None else commands.MoveTablets((move,))


def _migrate(_: RequesterMachine, image: Image, chance: Random) -> AnyCommand | None:
    table = chance.choice((TABLE, TABLE, f"{chance.choice(MADE)}.t"))
    return moved(some_move(image, chance, table))


def _resized(image: Image, chance: Random, table: str) -> AnyCommand | None:
    count, twice = len(_rows_of(image, table)), chance.random() < 0.5
    if not count:
        return None
    wanted = 2 * count if twice else count // 2
    return commands.ResizeTable(table, min(MOST_TABLETS, max(LEAST_TABLETS, wanted)))


def _alter(asking: RequesterMachine, _: Image, chance: Random) -> AnyCommand:
    """Another number of replicas, or racks that have one each."""
    name, listed = chance.choice((TABLETS, *MADE)), _some_racks(asking, chance)
    if listed and name != TABLETS:
        return commands.KeyspaceRfChange(name, {}, racks=listed)
    return commands.KeyspaceRfChange(name, {DC: chance.choice((2, 3))})


def _some_racks(asking: RequesterMachine, chance: Random) -> dict[str, tuple[str, ...]]:
    racks = asking.racks
    if len(racks) == 1 or chance.random() < 0.5:
        return {}
    return {DC: tuple(sorted(chance.sample(racks, chance.choice((1, len(racks))))))}


def _keyspace(asking: RequesterMachine, image: Image, chance: Random) -> AnyCommand:
    name, listed = chance.choice(MADE), _some_racks(asking, chance)
    count = max(asking.world.scenario.least_copies, chance.choice((1, 2)))
    copies = {} if listed else {DC: count}
    if image.schema.named(name) is not None:
        return commands.DropKeyspace(name)
    return commands.CreateKeyspace(name, copies, tablets=True, initial_tablets=2, racks=listed)


def _table(_: RequesterMachine, image: Image, chance: Random) -> AnyCommand:
    name = f"{chance.choice(MADE)}.t"
    if image.schema.serving(name) is None:
        return commands.CreateTable(name)
    return commands.DropTable(name)


def _colocated_table(_: RequesterMachine, image: Image, chance: Random) -> AnyCommand:
    keyspace = chance.choice(MADE)
    if image.schema.serving(f"{keyspace}.u") is None:
        return commands.CreateTable(f"{keyspace}.u", colocated_with=f"{keyspace}.t")
    return commands.DropTable(f"{keyspace}.u")


def _truncate(_: RequesterMachine, __: Image, chance: Random) -> AnyCommand:
    return commands.Truncate(f"{chance.choice(MADE)}.{chance.choice('tu')}")


def _truncate_written(_: RequesterMachine, __: Image, chance: Random) -> AnyCommand:
    return commands.Truncate(chance.choice((TABLE_TRUNCATED, TABLE_TRUNCATED, KEYSPACE_TRUNCATED)))


def _move(_: RequesterMachine, image: Image, chance: Random) -> AnyCommand | None:
    members = sorted(image.membership.normal())
    return commands.MoveNode(node_id=chance.choice(members)) if members else None


def _rebuild(_: RequesterMachine, image: Image, chance: Random) -> AnyCommand | None:
    members = sorted(image.membership.normal())
    force = chance.random() < 0.5
    return commands.Rebuild(node_id=chance.choice(members), force=force) if members else None


def _cancel(_: RequesterMachine, image: Image, chance: Random) -> AnyCommand | None:
    unfinished = image.requests.unfinished()
    return commands.Cancel(chance.choice(unfinished).request_id) if unfinished else None


def _switch(asking: RequesterMachine, _: Image, chance: Random) -> AnyCommand:
    name = chance.choice(("", TABLETS, TABLE))
    if chance.random() < 0.3:
        return commands.SwitchBalancingOn(name)
    until_ms = asking.now_ms() + int(OFF_S * 1000) if chance.random() < 0.5 else 0
    return commands.SwitchBalancingOff(name, until_ms)


def _snapshot(asking: RequesterMachine, _: Image, chance: Random) -> AnyCommand:
    table = chance.choice((TABLE, TABLE, OTHER_TABLE))
    expire_s = EXPIRE_S if chance.random() < 0.25 else 0
    tag = f"s{asking.now_ms()}"
    return commands.SnapshotTable(name=table, snapshot=tag, expire_s=expire_s)


def _restore(_: RequesterMachine, image: Image, chance: Random) -> AnyCommand | None:
    """Restore a table without writers from a snapshot of another table or of its own. Sometimes a snapshot is
    deleted instead.
    """
    found = sorted(image.table_snapshots.snapshots.values(), key=lambda each: each.snapshot_id)
    if not found:
        return None
    chosen, draw = chance.choice(found), chance.random()
    if draw < DELETED_SHARE:
        return commands.DeleteTableSnapshot(chosen.name)
    names = (chosen.table, *(f"{keyspace}.{table}" for keyspace in MADE for table in "tu"))
    there = [name for name in names if image.schema.serving(name) is not None]
    return commands.RestoreTable(name=chance.choice(there), snapshot=chosen.name)


def _exclude_well(_: RequesterMachine, image: Image, chance: Random) -> AnyCommand | None:
    """Somebody takes a node for dead that is not."""
    members = sorted(image.membership.normal())
    return commands.Exclude((chance.choice(members),)) if members else None


def _taken_tokens(_: RequesterMachine, image: Image, chance: Random) -> AnyCommand | None:
    """A member is to move to the tokens of another, or a new node to join with them."""
    members = sorted(image.membership.normal())
    if len(members) < 2:
        return None
    one, two = chance.sample(members, 2)
    return commands.MoveNode(node_id=one, tokens=image.membership.nodes[two].tokens)


def _change_columns(_: RequesterMachine, image: Image, chance: Random) -> AnyCommand | None:
    """Change a table with columns, or the type that it uses. Sometimes the table is truncated."""
    name = chance.choice(COLUMNS_TABLES)
    table = image.schema.table_named(name)
    columns = None if table is None else image.schema.schemas.get(table.table_id)
    if columns is None:
        return None
    if chance.random() < TRUNCATED_SHARE:
        return commands.Truncate(name)
    there = {column.name: column for column in columns.columns}
    person = f"{name.partition('.')[0]}.person"
    if chance.random() < 0.2:
        number = chance.randrange(100)
        change: AnyChange = TypeAlteration(name=person, add=(TypeField(f"f{number}", "int"),))
        return commands.AlterSchema((change,))
    if chance.random() < 0.1:
        (key,) = columns.of_kind(ColumnKind.PARTITION_KEY)
        new = f"id{chance.randrange(100)}"
        return commands.AlterSchema((TableAlteration(name=name, rename={key.name: new}),))
    changed = chance.choice(sorted(COLUMNS_TYPES))
    if changed in there:
        change = TableAlteration(name=name, drop=(changed,))
    else:
        added = ColumnDefinition(name=changed, type=COLUMNS_TYPES[changed])
        change = TableAlteration(name=name, add=(added,))
    again = TableAlteration(name=name, add=(ColumnDefinition(name=changed, type="text"),))
    both = changed in there and COLUMNS_TYPES[changed] == "text" and chance.random() < 0.5
    return commands.AlterSchema((change, again) if both else (change,))


def _snapshot_columns(asking: RequesterMachine, _: Image, __: Random) -> AnyCommand:
    tag = f"c{asking.now_ms()}"
    return commands.SnapshotTable(name=COLUMNS_TABLES[0], snapshot=tag, expire_s=EXPIRE_S)


def _resize_columns(_: RequesterMachine, image: Image, chance: Random) -> AnyCommand | None:
    return _resized(image, chance, COLUMNS_TABLES[0])


def _move_columns(_: RequesterMachine, image: Image, chance: Random) -> AnyCommand | None:
    return moved(some_move(image, chance, COLUMNS_TABLES[0]))


def _change_or_move(asking: RequesterMachine, image: Image, chance: Random) -> AnyCommand | None:
    others: tuple[Choose, ...] = (_snapshot_columns, _resize_columns, _move_columns, _move_columns)
    choose = chance.choice((*(_change_columns for _ in range(6)), *others))
    return choose(asking, image, chance)


KINDS: Final[dict[str, Choose]] = {
    "migrate": _migrate,
    "migrate_hot": lambda _, image, chance: moved(some_move(image, chance, TABLE, HOT_KEY)),
    "resize": lambda _, image, chance: _resized(image, chance, TABLE),
    "alter": _alter,
    "keyspace": _keyspace,
    "table": _table,
    "colocated_table": _colocated_table,
    "truncate": _truncate,
    "truncate_written": _truncate_written,
    "move": _move,
    "rebuild": _rebuild,
    "repair": lambda *_: commands.RepairTable(TABLE),
    "cleanup": lambda *_: commands.Cleanup(),
    "cancel": _cancel,
    "switch": _switch,
    "snapshot": _snapshot,
    "restore": _restore,
    "noop": lambda *_: commands.NoopRequest(),
    "quiesce": lambda *_: commands.Quiesce(),
    "cdc_generation": lambda *_: commands.NewCdcGeneration(force=True),
    "exclude_well": _exclude_well,
    "taken_tokens": _taken_tokens,
    COLUMNS: _change_or_move,
}
