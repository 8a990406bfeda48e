"""Random logs as in a topic: winners, losers of competing writers, duplicate records, strays."""

import random
from collections.abc import Iterator
from functools import cache
from itertools import count, cycle

import msgspec

from stele.domain.commands import (
    AlterSchema,
    AnyCommand,
    ClaimCoordinator,
    CreateKeyspace,
    CreateTable,
    DropKeyspace,
    Envelope,
    FoundCluster,
    KeyspaceRfChange,
    Leave,
    MoveTablets,
    Noop,
    SetSetting,
    SwitchBalancingOff,
)
from stele.domain.ddl.schema import SCHEMA_OBJECTS
from stele.domain.image import EMPTY, Image
from stele.domain.model.operations import TabletMove
from stele.domain.model.requests import named
from stele.domain.names import BALANCER
from stele.log.codec import encode_epoch
from stele.log.fold import Fold
from stele.log.record_builder import Ids, next_state_id
from stele.words.cql_parser import parse_cql
from tests.domain.history import LOG_ID, History, World, join, three_nodes
from tests.log.driven_pipeline import Driven

NOW_MS = 1_700_000_000_000
KEYSPACES = {"a": {"dc1": 1}, "b": {"dc1": 2}, "c": {"dc1": 3}}
SCHEMA_BATCHES = (
    """CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1};
    CREATE TYPE shop.address (street text, city text);
    CREATE TABLE shop.orders (customer uuid, at timestamp, sent frozen<address>, total decimal,
        PRIMARY KEY (customer, at)) WITH CLUSTERING ORDER BY (at DESC);
    CREATE MATERIALIZED VIEW shop.by_total AS SELECT * FROM shop.orders
        WHERE total IS NOT NULL AND customer IS NOT NULL AND at IS NOT NULL
        PRIMARY KEY (total, customer, at);
    CREATE FUNCTION shop.plus (a int, b int) CALLED ON NULL INPUT RETURNS int LANGUAGE lua AS $$return a$$;
    CREATE AGGREGATE shop.sum (int) SFUNC plus STYPE int INITCOND 0""",
    "ALTER TABLE shop.orders ADD note text; ALTER TYPE shop.address ADD zip text",
    "CREATE TABLE shop.gone (id int PRIMARY KEY); DROP AGGREGATE shop.sum",
    "DROP TABLE shop.gone; DROP FUNCTION shop.plus",
)
"""Each item is the command of one epoch."""
OTHER_LOG = next_state_id(bytes(16), NOW_MS, 99)


@cache
def random_log(seed: int, contended: int = 30) -> tuple[bytes, ...]:
    """Return a log with joins, leaves and replication changes. Placements split, merge and vanish in it."""
    chance = random.Random(seed)
    history, driver = three_nodes()
    history.apply(CreateKeyspace("short", {"dc1": 2}))
    history.apply(join(4, "r1"))
    driver.run()
    history.apply(DropKeyspace("short"))
    history.apply(Leave("n2" if seed % 2 else "n1"))
    driver.run()
    history.apply(KeyspaceRfChange("library", {"dc1": 1 + seed % 2}))
    driver.run()
    _move_a_tablet(history, driver)
    log = [encode_epoch(epoch) for epoch in history.epochs]
    log = list(_with_repeats(log, chance))
    log.insert(chance.randrange(5, 15), stray())
    log.insert(chance.randrange(25, 35), stray())
    changed = len(history.epochs)
    _change_the_schema(history, driver)
    log.extend(map(encode_epoch, history.epochs[changed:]))
    log.extend(_fight(log, contended, chance))
    return tuple(log)


def _move_a_tablet(history: History, driver: World) -> None:
    """Add moves of the balancer, which leave the state when they end: one done, and one that never begins."""
    history.apply(CreateKeyspace("tablets", {"dc1": 1}, tablets=True, initial_tablets=2))
    history.apply(CreateTable("tablets.t"))
    driver.run()
    for name, ends in (("done", Noop()), ("cancelled", SwitchBalancingOff())):
        owner = history.image.schema.standing_map_owner("tablets.t")
        assert owner is not None
        (source,) = next(iter(history.image.ring.placements[owner.placement].rows)).reads
        target = min(n for n in history.image.membership.taking_part() if n != source)
        move = TabletMove(table="tablets.t", tablet=0, from_node=source, to_node=target)
        history.submit(
            Envelope(request_id=named(name), command=MoveTablets((move,)), actor=BALANCER)
        )
        history.apply(ends)
        driver.run()


def _change_the_schema(history: History, driver: World) -> None:
    """Create, change and drop types, columns, views and functions, several in one epoch."""
    history.enable(SCHEMA_OBJECTS)
    for text in SCHEMA_BATCHES:
        assert history.apply(AlterSchema(parse_cql(text))) is None
        driver.run()


@cache
def stray() -> bytes:
    """Return the founding record of another log, sent to the wrong topic."""
    history, _ = three_nodes()
    founding = msgspec.structs.replace(history.epochs[0], log_id=OTHER_LOG, state_id=OTHER_LOG)
    return encode_epoch(founding)


@cache
def images(log: tuple[bytes, ...]) -> list[Image]:
    """Return the image at every epoch, by the fold of the services."""
    fold, found = Fold(), [EMPTY]
    for offset, value in enumerate(log):
        if fold.offer(offset, value) is not None:
            found.append(fold.image)
    return found


def losers(log: tuple[bytes, ...]) -> int:
    return len(log) - (len(images(log)) - 1)


def poison(tip: Image, value: bytes) -> bytes:
    """Return the next winner, with a first string that claims a length of 1.5 GB."""
    length, number = bytearray(), 1_500_000_000 << 1
    while number > 0x7F:
        length.append(number & 0x7F | 0x80)
        number >>= 7
    length.append(number)
    return frozen(value[:10], tip) + bytes(length)


def unknown(tip: Image) -> bytes:
    """Return the next winner, with an unknown schema."""
    return frozen(b"\xc3\x01" + bytes(8), tip) + bytes(30)


def frozen(header: bytes, tip: Image) -> bytes:
    """Return the first bytes of the record that follows an image."""
    numbers = (tip.epoch + 1).to_bytes(8) + tip.epoch.to_bytes(8)
    return header + tip.state_id + b"\x7f" * 16 + tip.log_id + tip.state_id + numbers


def _with_repeats(log: list[bytes], chance: random.Random) -> Iterator[bytes]:
    for index, value in enumerate(log):
        yield value
        if chance.random() < 0.1:
            yield log[chance.randrange(index + 1)]


def _fight(log: list[bytes], commands: int, chance: random.Random) -> list[bytes]:
    """Two lagging pipelines whose records arrive in any order."""
    ids = count(1)
    more: list[bytes] = []
    outboxes: tuple[list[bytes], list[bytes]] = ([], [])
    writers = [_writer(log, box, chance) for box in outboxes]
    seen = [0, 0]
    for _ in range(commands):
        which = chance.randrange(2)
        name = chance.choice(sorted(KEYSPACES))
        choices: list[AnyCommand]
        choices = [CreateKeyspace(name, KEYSPACES[name]), DropKeyspace(name), Noop()]
        command = chance.choice(choices)
        request_id = named(f"fight-{next(ids)}")
        writers[which].submit(Envelope(request_id=request_id, command=command))
        writers[which].flush()
        box = outboxes[chance.randrange(2)]
        while box and chance.random() < 0.7:
            more.append(box.pop(0))
        which = chance.randrange(2)
        for value in more[seen[which] :]:
            writers[which].on_record(len(log) + seen[which], value)
            seen[which] += 1
    return [*more, *outboxes[0], *outboxes[1]]


def _writer(log: list[bytes], box: list[bytes], chance: random.Random) -> Driven:
    fold = Fold()
    for offset, value in enumerate(log):
        fold.offer(offset, value)
    return Driven(
        fold,
        box.append,
        Ids(
            next_state_id=lambda last: next_state_id(last, NOW_MS, chance.getrandbits(74)),
            now_ms=lambda: NOW_MS,
        ),
    )


@cache
def cluster_log(cluster: str, epochs: int, snapshot_epochs: int) -> tuple[bytes, ...]:
    """Return the log of a cluster of this name, without losers. Keyspaces are created and dropped, and the log
    sets the interval of snapshots.
    """
    world = World()
    history = world.history
    history.apply(FoundCluster(f"{cluster}/1", LOG_ID.hex()))
    history.apply(SetSetting("snapshot_epochs", str(snapshot_epochs)))
    history.apply(ClaimCoordinator("c1", 1))
    world.brain.term = 1
    for index in (1, 2, 3):
        history.apply(msgspec.structs.replace(join(index), cluster=cluster))
    world.run()
    commands: list[AnyCommand] = [
        CreateKeyspace("k", {"dc1": 2}),
        Noop(),
        DropKeyspace("k"),
        Noop(),
    ]
    turns = cycle(commands)
    while len(history.epochs) < epochs:
        history.apply(next(turns))
        world.run()
    return tuple(encode_epoch(epoch) for epoch in history.epochs[:epochs])
