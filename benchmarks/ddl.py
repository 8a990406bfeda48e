"""Costs of tables: `python -m benchmarks.ddl [--scale 0.1]`. Runs the metadata-log's writer on a log in memory.

Prints processor time. Commits of tables are compared with commits of a setting by as many clients in the
same run. All clients use one keyspace; a rejection of any command fails the run. `--scale` multiplies all
numbers of tables. There is neither a broker nor HTTP, because both cost as much for a table as for any
other commit. The last figure is the check of a request's table version by a replica.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
import timeit
import tracemalloc
from collections.abc import Callable, Iterator
from io import BytesIO

from msgspec.structs import replace
from rich.console import Console
from rich.table import Table as Shown

from benchmarks.large_cluster import RACKS, decided, seconds
from benchmarks.ring import Figure
from stele.domain.commands import AnyCommand, CreateKeyspace, CreateTable, Envelope, SetSetting
from stele.domain.ddl.schema import SCHEMA_OBJECTS
from stele.domain.evolve import apply_facts
from stele.domain.model.schema import AlterSchema, ColumnDefinition, TableCreation, owner_of
from stele.domain.model.schema_objects import ColumnKind
from stele.domain.snapshot import image_to_facts
from stele.log.archive.snapshots import head_of, start_of, write
from stele.log.chain import Anchor
from stele.log.codec import encode_epoch
from stele.log.follower import LogFollower
from stele.metadata_log.settings import MetadataLogSettings
from stele.metadata_log.writer import Writer
from stele.node.wire import Read, ReadMode
from stele.runtime.request_ids import new_request_id
from stele.runtime.service import collect_seldom
from tests.agent.test_judging import judge_of
from tests.coordinator.world import World, empty_cluster
from tests.log.memory import MemoryLog, MemoryPartition

NODES = 12
TABLES, CLIENTS = 10_000, 8
DDL_CLIENTS, DDL_TABLES = 64, 2_000
BATCH = 1_000
COLUMNED, COLUMNS = 30_000, 10
CHECKS = 200_000
TIMEOUT_S = 60.0
"""Limit of one commit."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Costs of tables.")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies numbers of tables")
    scale = parser.parse_args().scale
    collect_seldom()  # as every service does
    shown = Shown("what", "measured", "goal", title=f"tables at scale {scale:g}")
    for figure in (*asyncio.run(commits(scale)), *start(scale), asyncio.run(version_check())):
        goal = f"{figure.goal:,.4g} {figure.unit}" if figure.goal else ""
        shown.add_row(figure.what, f"{figure.value:,.2f} {figure.unit}", goal)
    Console().print(shown)


async def commits(scale: float) -> list[Figure]:
    """Tables that clients create at the same time, each with its next command after its outcome."""
    few, many = round(DDL_TABLES * scale), round(TABLES * scale)
    return [
        *await created(CLIENTS, many, lambda n: CreateTable(f"bench.t{n}")),
        *await created(DDL_CLIENTS, few, lambda n: AlterSchema((creation(n),))),
        await batch(batch_size(scale)),
    ]


async def created(
    clients: int, tables: int, command: Callable[[int], AnyCommand]
) -> tuple[Figure, ...]:
    writer, tenth = await writer_of(cluster()), tables // 10
    setting_s = await committed(writer, clients, tables, lambda n: SetSetting(f"s{n % 64}", "v"))
    begin_s = await committed(writer, clients, tenth, command)
    middle_s = await committed(writer, clients, tables - 2 * tenth, command, tenth)
    end_s = await committed(writer, clients, tenth, command, tables - tenth)
    await writer.close()
    what, whole_s = f"{clients} clients, {tables:,} tables", begin_s + middle_s + end_s
    return (
        Figure(f"{what}: time of 1,000", 1_000 * whole_s / tables, "s", 1),
        Figure(f"{what}: cost relative to a setting", whole_s / setting_s, "times"),
        Figure(f"{what}: last tenth relative to the first", end_s / begin_s, "times", 1.2),
    )


async def committed(
    writer: Writer, clients: int, number: int, command: Callable[[int], AnyCommand], first: int = 0
) -> float:
    """Return the seconds of the processor until all are applied. Any rejection is an error."""
    numbers, began_s = iter(range(first, first + number)), time.process_time()

    async def client() -> None:
        for at in numbers:
            envelope = Envelope(request_id=new_request_id(), command=command(at))
            outcome = await writer.commit(envelope, TIMEOUT_S)
            assert outcome.applied, outcome.rejection

    await asyncio.gather(*(client() for _ in range(clients)))
    return time.process_time() - began_s


async def batch(size: int) -> Figure:
    """One command that creates tables with columns, from its decision to its outcome."""
    writer = await writer_of(cluster())
    batch_s = await committed(writer, 1, 1, lambda n: creations(n, size))
    await writer.close()
    return Figure(f"one command of {size:,} tables: commit", batch_s, "s", 1)


def start(scale: float) -> Iterator[Figure]:
    """The start of a service with many tables with columns, and the memory that they take."""
    image, size = cluster().image, batch_size(scale)
    for number in range(max(1, round(COLUMNED * scale) // size)):
        image = apply_facts(image, decided(image, creations(number, size)))
    file, tables = BytesIO(), len(image.schema.tables)
    head = head_of(image, 1, Anchor(0, bytes(16)), 0)
    write(file, head, image_to_facts(image))
    start_s = seconds(lambda: start_of(file))
    yield Figure(f"start with a snapshot of {tables:,} tables", start_s, "s", 3)
    gc.collect()
    tracemalloc.start()
    started = start_of(file)
    gc.collect()
    size_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(started.image.schema.tables) == tables
    yield Figure(f"memory of a table with {COLUMNS} columns", size_bytes / tables, "bytes", 2_000)


def batch_size(scale: float) -> int:
    return max(10, round(BATCH * scale))


def creations(number: int, size: int) -> AlterSchema:
    """The batch of this number."""
    return AlterSchema(tuple(map(creation, range(number * size, (number + 1) * size))))


async def version_check() -> Figure:
    """The check whether a request was made for older columns, by the replica that serves it."""
    world = cluster()
    assert world.apply(AlterSchema((creation(1),))) is None
    image = world.history.image
    follower = LogFollower(MemoryLog(partition_of(world)))
    follower.start()
    await follower.wait_for_epoch(image.epoch)
    data, judge = image.schema.serving("bench.c1"), judge_of(follower)
    assert data is not None
    request = Read(
        version=image.topology.version,
        epoch=image.epoch,
        coordinating="a0",
        data_id=data.data_id,
        token=1,
        key=b"k",
        mode=ReadMode.CELL,
        table_version=image.schema.schemas[owner_of(data.data_id)].version,
    )
    assert judge.newer_table_version(request) == 0
    assert judge.newer_table_version(replace(request, table_version=1)) == request.table_version
    spent_s = timeit.repeat(lambda: judge.newer_table_version(request), number=CHECKS, repeat=5)
    follower.stop()
    return Figure("check of a table version", 1e6 * min(spent_s) / CHECKS, "us", 0.5)


def creation(number: int) -> TableCreation:
    key = ColumnDefinition(name="id", type="uuid", kind=ColumnKind.PARTITION_KEY)
    others = (ColumnDefinition(name=f"column_{at}", type="text") for at in range(1, COLUMNS))
    return TableCreation(name=f"bench.c{number}", columns=(key, *others))


def cluster() -> World:
    """Nodes in racks, and a keyspace with tablets."""
    world = empty_cluster()
    for number in range(NODES):
        world.add(f"{'abc'[number % RACKS]}{number}")
    world.run()
    world.history.enable(SCHEMA_OBJECTS)
    keyspace = CreateKeyspace("bench", {"dc1": RACKS}, tablets=True, initial_tablets=1)
    assert world.apply(keyspace) is None
    return world


async def writer_of(world: World) -> Writer:
    """The service's writer behind the log of a cluster."""
    writer = Writer(MemoryLog(partition_of(world)), MetadataLogSettings(cluster="demo"))
    await writer.start()
    return writer


def partition_of(world: World) -> MemoryPartition:
    partition = MemoryPartition()
    for epoch in world.history.epochs:
        partition.append(encode_epoch(epoch))
    return partition


if __name__ == "__main__":
    main()
