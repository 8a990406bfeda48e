"""Random runs: nodes join and leave in parallel under random faults; then the faults end."""

import random

from stele.domain.commands import (
    AnyCommand,
    AskSnapshot,
    Cancel,
    Cleanup,
    CreateKeyspace,
    CreateTable,
    DeleteTableSnapshot,
    DropKeyspace,
    DropTable,
    Exclude,
    ForgetReplica,
    KeyspaceRfChange,
    Leave,
    MoveNode,
    MoveTablets,
    NewCdcGeneration,
    NoopRequest,
    Quiesce,
    Rebuild,
    ReconfigureCatchUp,
    Remove,
    RepairTable,
    RepairTablets,
    ResizeTable,
    RestoreTable,
    SetSetting,
    SnapshotTable,
    SwitchBalancingOff,
    SwitchBalancingOn,
    Truncate,
    TruncateLog,
)
from stele.domain.model.operations import TabletMove, TabletRepair
from stele.domain.names import RequestKind, RequestStatus
from stele.domain.rules.retention import truncatable
from stele.domain.rules.schema import all_off
from tests.coordinator.world import Crash, empty_cluster

DCS = ("dc1", "dc2")
RACKS = ("r1", "r2", "r3")
REPLICATIONS: tuple[dict[str, int], ...] = (
    {"dc1": 1}, {"dc1": 2}, {"dc1": 3}, {"dc1": 1, "dc2": 1}, {"dc1": 2, "dc2": 2}, {"dc2": 1},
)  # fmt: skip
COPIES = ("1", "2", "3", "dc1=1,dc2=1", "")
"""Replication of the archive."""
MAX_DEAD = 2
MIN_MEMBERS = 4
CALM_S = 900.0
"""Virtual seconds in which everything must end once the faults have: every patience several times over."""
PATIENT_S = 300.0
"""After which an operator ends what waits for dead nodes that could not be excluded."""


class RandomRun:
    """One cluster and one stream of random choices."""

    def __init__(
        self, seed: int, *, faults: bool = True, nodes: int = 6, switches: bool = False
    ) -> None:
        self.chance = random.Random(seed)
        self._shards = random.Random(f"shards/{seed}")
        self._archive = random.Random(f"archive/{seed}")
        self.world = empty_cluster()
        self.most_open = 0
        self.dead: set[str] = set()
        """Nodes that never return."""
        self._faults = faults
        self._switches = switches
        self._names = iter(range(1000))
        self._keyspaces = iter(range(1000))
        self.world.history.on_image = self._count
        self.world.balances = self.chance.random() < 0.7
        self._racks = self.chance.sample(RACKS, self.chance.randint(1, 3))
        self._dcs = DCS[: self.chance.randint(1, 2)]
        for _ in range(self.chance.randint(2, nodes)):
            self.join()
        self.world.run()
        for _ in range(self.chance.randint(1, 2)):
            self.create()

    def go(self, actions: int) -> None:
        for _ in range(actions):
            self.act()
            if self._archive.random() < 0.3:
                self.archive()
            for _ in range(self.chance.choice((0, 1, 2, 4, 8))):
                self.world.tick()

    def act(self) -> None:
        plain = [self.join, self.join, self.leave, self.leave, self.create, self.drop]
        plain += [self.cancel] * 2
        plain += [self.remove, self.remove, self.replace, self.replace, self.exclude]
        plain += [self.move, self.move, self.rebuild, self.truncate, *[self.ask_of_all] * 2]
        plain += [
            self.alter,
            self.alter,
            *[self.create_table] * 2,
            self.drop_table,
            self.drop_table,
        ]
        plain += [self.alter, self.alter, *[self.alter_tablets] * 3]
        plain += [*[self.migrate] * 4, self.recount, self.resize, self.resize]
        plain += [self.repair] * 2 + [self.snapshot, *[self.restore] * 4]
        faults = [self.lag, self.silence, self.fail, self.replace_brain, self.lose, self.recover]
        plain += [self.switch] * 6 if self._switches else []
        self.chance.choice(plain + (faults if self._faults else []))()

    def join(self) -> None:
        name = f"n{next(self._names)}"
        new_rack = self.chance.random() < 0.15
        rack = f"rack-of-{name}" if new_rack else self.chance.choice(self._racks)
        none_yet = not self.world.image.membership.ring_tokens()
        num_tokens = 2 if none_yet or self.chance.random() < 0.85 else 0
        dc, shards = self.chance.choice(self._dcs), self._shards.choice((1, 1, 2, 3))
        self.world.add(name, dc, rack, num_tokens, shards)

    def leave(self) -> None:
        members = [*self.world.image.membership.normal()]
        if members:
            self.world.apply(Leave(self.chance.choice(members)))

    def remove(self) -> None:
        for dead in self._dies():
            self.world.apply(Remove(node_id=dead, force=self.chance.random() < 0.5))

    def replace(self) -> None:
        for dead in self._dies():
            forced = self.chance.random() < 0.5
            alike = bool(self.world.image.membership.nodes[dead].tokens)
            name = f"n{next(self._names)}"
            shards = self._shards.choice((1, 2, 3))
            self.world.replace(name, dead, force=forced, zero_token=not alike, shards=shards)

    def exclude(self) -> None:
        for dead in self._dies():
            self.world.apply(Exclude((dead,)))

    def _dies(self) -> list[str]:
        """Kill a member permanently. In a few cases it only seems dead."""
        members = [*self.world.image.membership.normal()]
        if len(members) < MIN_MEMBERS or len(self.dead) == MAX_DEAD:
            return []
        dead = self.chance.choice(members)
        if self.chance.random() < 0.8:
            self.dead.add(dead)
            self.world.nodes[dead].alive = False
        return [dead]

    def move(self) -> None:
        """Move to chosen tokens, or to others that may be in use."""
        members = [*self.world.image.membership.normal()]
        count = self.chance.choice((0, 0, 1, 2, 3))
        tokens = tuple(self.chance.randint(-(2**63), 2**63 - 1) for _ in range(count))
        if members:
            node = self.world.image.membership.nodes[self.chance.choice(members)]
            kept = node.tokens[:1] if tokens and self.chance.random() < 0.3 else ()
            self.world.apply(MoveNode(node_id=node.node_id, tokens=(*kept, *tokens)))

    def rebuild(self) -> None:
        members = [*self.world.image.membership.normal()]
        source_dc = self.chance.choice(("", "", *DCS))
        if members:
            force = self.chance.random() < 0.5
            asked = Rebuild(node_id=self.chance.choice(members), source_dc=source_dc, force=force)
            self.world.apply(asked)

    def cancel(self) -> None:
        unfinished = self.world.image.requests.unfinished()
        if unfinished:
            self.world.apply(Cancel(self.chance.choice(unfinished).request_id))

    def create(self) -> None:
        name = f"k{next(self._keyspaces) % 4}"
        self.world.apply(CreateKeyspace(name, self.chance.choice(REPLICATIONS)))

    def create_table(self) -> None:
        """Create a table, and its keyspace if it is missing."""
        replication = self.chance.choice(REPLICATIONS)
        self.world.apply(CreateKeyspace("music", replication, tablets=True, initial_tablets=4))
        self.world.apply(CreateTable(f"music.t{next(self._keyspaces) % 3}"))

    def switch(self) -> None:
        """Disable or enable balancing, for a while or permanently, with a grace period or without."""
        names = ["", "music", *sorted(self.world.image.schema.table_ids)]
        name, now_ms = self.chance.choice(names), self.world.now_ms
        if self.chance.random() < 0.3:
            self.world.apply(SwitchBalancingOn(name))
            return
        until_ms = self.chance.choice((0, now_ms + self.chance.randint(1, 60_000)))
        abort_at_ms = self.chance.choice((0, now_ms + self.chance.randint(0, 30_000)))
        self.world.apply(SwitchBalancingOff(name, until_ms, abort_at_ms))

    def drop_table(self) -> None:
        names = sorted(self.world.image.schema.table_ids)
        if names:
            self.world.apply(DropTable(self.chance.choice(names)))

    def migrate(self) -> None:
        """Migrate tablets as the balancer never would."""
        image = self.world.image
        members, tables = sorted(image.membership.normal()), image.schema.with_tablets()
        for _ in range(self.chance.randint(1, 4) if tables and members else 0):
            table = self.chance.choice(tables)
            rows = image.ring.placements[table.placement].rows
            tablet = self.chance.randrange(len(rows))
            row = rows[tablet]
            asked = TabletMove(
                table=image.schema.full_name(table),
                tablet=tablet,
                from_node=self.chance.choice(row.reads),
                to_node=self.chance.choice(members),
            )
            self.world.apply(MoveTablets((asked,)))

    def recount(self) -> None:
        """Add or remove one replica, as an operator may."""
        image = self.world.image
        members, tables = sorted(image.membership.normal()), image.schema.with_tablets()
        if tables and members:
            table = self.chance.choice(tables)
            rows = image.ring.placements[table.placement].rows
            tablet = self.chance.randrange(len(rows))
            more = self.chance.random() < 0.5
            asked = TabletMove(
                table=image.schema.full_name(table),
                tablet=tablet,
                from_node="" if more else self.chance.choice(rows[tablet].reads),
                to_node=self.chance.choice(members) if more else "",
                force=self.chance.random() < 0.3,
                beyond=self.chance.random() < 0.3,
            )
            self.world.apply(MoveTablets((asked,)))

    def repair(self) -> None:
        """Repair a table, some of its tablets, or rarely all by schedule."""
        image = self.world.image
        tables = image.schema.with_tablets()
        if not tables:
            return
        table = self.chance.choice(tables)
        name, count = image.schema.full_name(table), len(image.ring.placements[table.placement])
        tablets = self.chance.sample(range(count), self.chance.randint(1, count))
        some = tuple(TabletRepair(table=name, tablet=tablet) for tablet in tablets)
        self.world.apply(RepairTablets(some))
        if self.chance.random() < 0.7:
            self.world.apply(RepairTable(name))
        if self.chance.random() < 0.3:
            scheduled = self.chance.choice(("on", "off"))
            self.world.apply(SetSetting("auto_repair_enabled_default", scheduled))

    def snapshot(self) -> None:
        if not self.world.image.schema.table_ids:
            self.create_table()
        names = sorted(self.world.image.schema.table_ids)
        if names:
            tag, expire_s = self.chance.choice("xyz"), self.chance.choice((0, 60))
            name = self.chance.choice(names)
            self.world.apply(SnapshotTable(name=name, snapshot=tag, expire_s=expire_s))

    def restore(self) -> None:
        """Restore into its own table or another, or rarely delete the snapshot."""
        image = self.world.image
        names = sorted(image.schema.table_ids)
        tags = sorted(s.name for s in image.table_snapshots.snapshots.values())
        if not (names and tags):
            self.snapshot()
            return
        tag = self.chance.choice(tags)
        if self.chance.random() < 0.2:
            self.world.apply(DeleteTableSnapshot(snapshot=tag))
        else:
            self.world.apply(RestoreTable(name=self.chance.choice(names), snapshot=tag))

    def resize(self) -> None:
        tables = self.world.image.schema.with_tablets()
        for table in tables[:1]:
            count = len(self.world.image.ring.placements[table.placement])
            wanted = self.chance.choice((2 * count, 2 * count, count // 2, count // 2))
            self.world.apply(ResizeTable(self.world.image.schema.full_name(table), min(wanted, 32)))

    def alter(self) -> None:
        keyspaces = self.world.image.schema.by_id.values()
        names = [k.name for k in keyspaces if not k.tablets]
        if names:
            self._alter(self.chance.choice(sorted(names)))

    def alter_tablets(self) -> None:
        self._alter("music")

    def _alter(self, name: str) -> None:
        dcs = sorted({dc for each in REPLICATIONS for dc in each})
        replication = dict.fromkeys(dcs, 0) | self.chance.choice(REPLICATIONS)
        force = self.chance.random() < 0.3
        self.world.apply(KeyspaceRfChange(name, replication, force))

    def drop(self) -> None:
        names = [*self.world.image.schema.ids]
        if names and self.chance.random() < 0.5:
            self.world.apply(DropKeyspace(self.chance.choice(sorted(names))))

    def ask_of_all(self) -> None:
        generation = NewCdcGeneration(force=self.chance.random() < 0.5)
        asked = (NoopRequest(), Quiesce(), Cleanup(), generation)
        self.world.apply(self.chance.choice(asked))

    def truncate(self) -> None:
        names = sorted([*self.world.image.schema.ids, *self.world.image.schema.table_ids])
        if names:
            self.world.apply(Truncate(self.chance.choice(names)))

    def archive(self) -> None:
        """Add, kill, forget or reconfigure catch-up replicas, or truncate the log."""
        world, chance = self.world, self._archive
        names = sorted(world.replicas)
        if len(names) < 2 or (len(names) < 6 and chance.random() < 0.3):
            dc, rack = chance.choice(DCS), chance.choice(RACKS)
            world.add_replicas(f"r{len(names)}", dc, rack)
            return
        found = truncatable(world.image, world.history.at_ms)
        asked: list[AnyCommand] = [ReconfigureCatchUp(replication=each) for each in COPIES]
        asked += [AskSnapshot()] * 3 + [TruncateLog(found.epoch, found.offset)] * 3
        asked += [ForgetReplica(replica_id=chance.choice(names))]
        if self._faults and chance.random() < 0.4:
            world.replicas[chance.choice(names)].alive = chance.random() < 0.5
        else:
            world.apply(chance.choice(asked))

    def lag(self) -> None:
        self._some_node_has("applies", False)

    def silence(self) -> None:
        self._some_node_has("alive", False)

    def fail(self) -> None:
        self._some_node_has("fails", self.chance.randint(1, 4))

    def _some_node_has(self, name: str, value: object) -> None:
        nodes = sorted(self.world.nodes)
        setattr(self.world.nodes[self.chance.choice(nodes)], name, value)

    def replace_brain(self) -> None:
        self.world.replace_brain(zombie=self.chance.random() < 0.3)
        del self.world.zombies[:-2]

    def lose(self) -> None:
        """Lose the next message, or deliver it and kill its sender."""
        when = self.chance.choice(("before", "after"))

        def hook(_what: str, at: str) -> None:
            if at == when:
                self.world.on_event = lambda _what, _when: None
                raise Crash

        self.world.on_event = hook

    def recover(self) -> None:
        for name, node in self.world.nodes.items():
            node.alive = name not in self.dead
            node.applies = True
        for replica in self.world.replicas.values():
            replica.alive = True

    def calm(self) -> None:
        """End the faults. Every request must end as well (I10)."""
        self.recover()
        self._exclude_the_dead()
        self.world.on_event = lambda _what, _when: None
        for request in self.world.image.requests.unfinished():
            if (
                request.tag and self.dead
            ):  # a tablet whose replicas are all dead waits until they are removed
                self.world.apply(Cancel(request.request_id))
        self.world.balances = True
        for off in all_off(self.world.image.schema):
            self.world.apply(SwitchBalancingOn(off.name))
        for node in self.world.nodes.values():
            node.fails = 0
        until_s = self.world.now_s + PATIENT_S
        ended = lambda: self.world.at_rest() or self.world.now_s > until_s  # noqa: E731
        self.world.until(ended, "the end", CALM_S)
        if not self.world.at_rest():
            self._give_up_what_waits_for_the_dead()
        self.world.run(CALM_S)

    def _exclude_the_dead(self) -> None:
        for dead in sorted({*self.world.image.membership.taking_part()} & self.dead):
            self.world.apply(Exclude((dead,), force=True))

    def _give_up_what_waits_for_the_dead(self) -> None:
        """Exclude again, since the first attempt may have been refused, and cancel what waits for the dead."""
        self._exclude_the_dead()
        for request in self.world.image.requests.unfinished():
            if self.dead and request.kind is not RequestKind.EXCLUDE:
                self.world.apply(Cancel(request.request_id))

    def _count(self, _image: object) -> None:
        self.most_open = max(self.most_open, len(self.world.image.topology.transitions))

    def unexplained(self) -> list[str]:
        """Return the requests that ended in another status than done without an error."""
        return [
            request.request_id
            for request in self.world.image.requests.finished()
            if request.status is not RequestStatus.DONE and not request.error
        ]
