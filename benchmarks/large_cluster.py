"""Costs that grow with the cluster: `python -m benchmarks.large_cluster [--scale 0.1]`.

Builds clusters in memory, without broker or servers, and prints the processor time of decisions, folds,
looks and views of every service, and at the end those that exceed their goal. `--scale` multiplies all
sizes, and `--only TEXT` runs the groups whose name contains the text. Work in an event loop may take
100 ms at most, since it blocks all other work of its service. Work in a thread has no such goal.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from io import StringIO
from itertools import chain

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table as Shown

from benchmarks.ring import Figure
from stele.agent.load import held_of
from stele.console.alerts import alerts, range_health
from stele.console.epoch_text import live_epoch_text
from stele.console.schema_view import schema_shown
from stele.console.views import (
    overview,
    request_summaries,
    rows_of_node,
    wait_report,
)
from stele.coordinator.model import Observed, Steps
from stele.coordinator.progress import StreamRates, progress_of
from stele.domain.balancer.load import Conditions, LoadTable, with_heat
from stele.domain.balancer.proposals import proposal, tablet_verdicts
from stele.domain.balancer.resizing import largest
from stele.domain.commands import (
    AnyCommand,
    CreateKeyspace,
    CreateTable,
    Envelope,
    FoundCluster,
    Join,
    Rejection,
    RepairTablets,
    SetSetting,
    SnapshotTable,
)
from stele.domain.decide import decide
from stele.domain.evolve import apply_facts
from stele.domain.facts import AnyFact, Epoch
from stele.domain.image import Image
from stele.domain.model.membership import Node, NodeChanged
from stele.domain.model.operations import TabletRepair
from stele.domain.model.ring import RingImage
from stele.domain.model.schema import Table, TableChanged, tablet_map
from stele.domain.names import NodeState, ReportStatus
from stele.domain.ring.columns import NodeNumbers
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN
from stele.domain.rules.retention import truncatable
from stele.domain.snapshot import image_to_facts, state_hash
from stele.domain.tablets.maps import new_map
from stele.domain.view import section
from stele.metadata_log.pages import state_parts
from stele.metadata_log.questions import PAGE_ROWS
from stele.runtime.answers.coordinator import Progress
from stele.runtime.answers.metadata_log import TablesPage
from stele.runtime.answers.of_image import topology_answer
from stele.runtime.http_encoding import next_piece
from stele.session_guard.guard import (
    Blocking,
    LivenessTracker,
    current_target,
    liveness_of_all,
    open_sessions,
    view,
)
from stele.tablet_balancer.balancer import described
from stele.words.units import VisibleConsole
from stele.words.units import table as table_of
from tests.coordinator.world import SimNode, World, report_of
from tests.domain.epochs import LOG_ID, History
from tests.domain.load_of import even, loads_of

NODES, TABLES, TABLETS, REQUESTS = 1_000, 10_000, 1_000_000, 4_000
WAITING, JOINS, FEW_TABLES = 1_000, 120, 2_000
RACKS = 3
COPIES = 3
TOKENS = 16
PER_COMMAND = 1_000
"""Repairs that one command asks for."""
FIRST = "bench.t0"
PIECES = 64
"""Pieces of the state that are measured."""
LOOP_MS = 100.0
"""No call may block an event loop for longer."""


class Sizes(msgspec.Struct, frozen=True):
    """Every size of the benchmark, multiplied by ``scale``."""

    scale: float

    def of(self, size: int, least: int = 1) -> int:
        return max(least, round(size * self.scale))


def main() -> None:
    parser = argparse.ArgumentParser(description="Costs that grow with the cluster.")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies all sizes")
    parser.add_argument("--only", default="", help="run the groups whose name contains this")
    given = parser.parse_args()
    sizes = Sizes(given.scale)
    shown = Shown("what", "measured", "goal", title=f"processor time at scale {given.scale:g}")
    groups = (waiting, joins, create_tables, large)
    chosen = [group for group in groups if given.only in group.__name__]
    over = list[str]()
    for figure in chain.from_iterable(group(sizes) for group in chosen):
        if figure.goal and figure.value > figure.goal:
            over.append(f"{figure.what}: {figure.value:,.2f} of {figure.goal:,.4g} {figure.unit}")
        goal = f"{figure.goal:,.4g} {figure.unit}" if figure.goal else ""
        shown.add_row(figure.what, f"{figure.value:,.2f} {figure.unit}", goal)
    Console().print(shown)
    print("\n".join(["Over their goal:", *over] if over else ["All are within their goals."]))


def waiting(sizes: Sizes) -> Iterator[Figure]:
    """Requests that wait behind a snapshot of their table."""
    count = sizes.of(WAITING)
    world = cluster(4, 1, 1 << max(10, (count - 1).bit_length()))
    block(world, count)
    yield milliseconds(f"coordinator's look, {count:,} requests waiting", world.brain.look, 20)

    def look_after_an_epoch() -> None:
        applied(world, SetSetting("colour", "blue"))
        world.brain.look()

    yield milliseconds("the same after an epoch", look_after_an_epoch, LOOP_MS)


def joins(sizes: Sizes) -> Iterator[Figure]:
    """Nodes that ask to join at once, until all have joined."""
    count = sizes.of(JOINS, 4)
    world = bare_world()
    for number in range(RACKS):
        applied(world, join(number))
    world.run()
    applied(world, CreateKeyspace("library", {"dc1": COPIES}))
    for number in range(RACKS, RACKS + count):
        applied(world, join(number))
    brain, look = world.brain, world.brain.look
    looks, threads = list[float](), list[float]()

    def timed() -> Steps:
        """Look in a thread while joins are pending, as the coordinator does."""
        pending = world.image.requests.pending()
        (threads if pending else looks).append(seconds(look))
        return brain.steps

    brain.look = timed  # type: ignore[method-assign]
    whole_s = seconds(lambda: world.run(3_000))
    yield Figure(f"{count} joins: the longest look", 1e3 * max(looks), "ms", LOOP_MS)
    yield Figure(f"{count} joins: the longest look (thread)", 1e3 * max(threads), "ms")
    yield Figure(f"{count} joins: all of it", whole_s, "s", 10)


def create_tables(sizes: Sizes) -> Iterator[Figure]:
    """CREATE TABLE, and the balancer's look, by the number of tables."""
    for count in (sizes.of(FEW_TABLES // 10), sizes.of(FEW_TABLES)):
        world = cluster(3, count, count)
        yield from created(world, f"at {count:,} tables", 1)
    image = world.image
    yield milliseconds(f"balancer's look (thread), {count:,} tables", partial(proposal, image), 20)
    loads = loads_of(image, lambda *_: 1 << 30, lambda *_: even(100))
    yield from reported(image, loads, f"{count:,} tables")


def reported(image: Image, loads: LoadTable, where: str) -> Iterator[Figure]:
    """The balancer's work with reports of all nodes."""
    conditions = Conditions(loads=with_heat(image, loads))
    last = next(iter(loads.by_node.values())).load
    newer = msgspec.structs.replace(last, sequence=last.sequence + 1)
    for name, work in (
        ("fold a report", lambda: with_heat(image, loads.with_load(newer, 1.0))),
        ("look with reports", lambda: proposal(image, conditions)),
        ("view with reports", lambda: described(image, conditions, 0.0)),
    ):
        yield milliseconds(f"balancer: {name} (thread), {where}", work, 0)


def created(world: World, where: str, goal_ms: float) -> Iterator[Figure]:
    names = iter(range(1_000_000))
    facts = decided(world.image, CreateTable("bench.first"))
    yield milliseconds(
        f"CREATE TABLE {where}: decide",
        lambda: decided(world.image, CreateTable(f"bench.new{next(names)}")),
        goal_ms,
    )
    yield milliseconds(
        f"CREATE TABLE {where}: fold", lambda: apply_facts(world.image, facts), goal_ms
    )


def large(sizes: Sizes) -> Iterator[Figure]:
    """Every service at the largest cluster that is supported."""
    nodes, tables = sizes.of(NODES, 6), sizes.of(TABLES)
    tablets, requests = sizes.of(TABLETS), sizes.of(REQUESTS)
    world = cluster(nodes, tables, tablets)
    image = world.image
    unused = RingImage(image.ring.placements, image.ring.nodes)
    fresh = msgspec.structs.replace(image, ring=unused)
    yield Figure(
        f"CREATE TABLE at {tables:,} tables: the first one of a process (thread)",
        1e3 * seconds(partial(decided, fresh, CreateTable("bench.first"))),
        "ms",
    )
    yield from created(world, f"at {tables:,} tables", LOOP_MS)
    yield from services(world, "at rest")
    yield milliseconds("decide a join", partial(decided, image, join(0)), LOOP_MS)
    yield table_list(image)
    yield longest_piece(image)
    block(world, requests)
    yield from services(world, f"{requests:,} requests")


def services(world: World, when: str) -> Iterator[Figure]:
    """The looks of the services, the fold of a small epoch, and the answers of metadata-log and console."""
    image, brain = world.image, world.brain
    ack = world.nodes[min(world.nodes)].ack(image)
    facts = decided(image, SetSetting("colour", "blue"))
    conditions = Conditions()
    acks, target = brain.acks, current_target(image)
    tracker = LivenessTracker(5.0).read_until(world.now_s)
    node, told_so_far = min(world.nodes), progress(world)
    epoch = epoch_of(image, facts)
    after = apply_facts(image, facts)
    for name, work in (
        ("coordinator: look", brain.look),
        ("coordinator: fold an ack", lambda: brain.acks.with_ack(ack, world.now_s)),
        (
            "coordinator: rates",
            lambda: StreamRates().with_samples(image, brain.reports, world.now_s),
        ),
        ("coordinator: progress", lambda: msgspec.json.encode(progress(world))),
        ("balancer: look (thread)", partial(proposal, image)),
        ("balancer: view (thread)", lambda: described(image, conditions, 0.0)),
        ("balancer: the largest tablets (thread)", lambda: largest(image, conditions, FIRST, 16)),
        ("balancer: why a tablet is there (thread)", lambda: tablet_verdicts(image, FIRST, 0)),
        ("guard: barrier", lambda: view(image, acks, Blocking(), target, world.now_s)),
        ("guard: nodes", lambda: liveness_of_all(image, acks, tracker, world.now_s)),
        ("guard: permissions", lambda: open_sessions(image)),
        ("metadata-log: decide a setting", lambda: decided(image, SetSetting("colour", "blue"))),
        ("every service: fold a setting", lambda: apply_facts(image, facts)),
        ("metadata-log: page of tables", lambda: section(image, "tables")[:100]),
        ("metadata-log: page of requests", lambda: section(image, "requests")[:100]),
        ("metadata-log: topology", lambda: msgspec.json.encode(topology_answer(image))),
        ("metadata-log: truncation", lambda: truncatable(image, 0)),
        ("console: overview (thread)", lambda: overview(image)),
        ("console: schema (thread)", lambda: schema_shown(image)),
        ("console: rows of a node (thread)", lambda: rows_of_node(image, node)),
        (
            "console: poll of the services (thread)",
            lambda: msgspec.json.encode(polled(image, told_so_far)),
        ),
        ("console: an epoch in words", lambda: live_epoch_text(image, epoch, after)),
        ("console: one request", lambda: request_summaries(image)),
        ("catch-up: state hash (thread)", lambda: state_hash(image)),
        ("catch-up: snapshot's facts (thread)", lambda: list(image_to_facts(image))),
        ("node: its tablets (thread)", lambda: held_of(image, node)),
    ):
        goal = 0.0 if "thread" in name else LOOP_MS
        yield milliseconds(f"{name}, {when}", work, goal)


def polled(image: Image, progress: Progress) -> object:
    return wait_report(image, progress), alerts(
        image, "", (), (), progress, range_health(image, frozenset())
    )


def epoch_of(image: Image, facts: tuple[AnyFact, ...]) -> Epoch:
    """The epoch that follows an image."""
    return Epoch(
        epoch=image.epoch + 1,
        prev_state_id=image.state_id,
        state_id=bytes(16),
        request_id="bench",
        command="set_setting",
        facts=facts,
    )


def table_list(image: Image) -> Figure:
    """The pages of all tables as metadata-log makes them, decoded and shown as by the command line."""
    began_s = time.process_time()
    tables, found = section(image, "tables"), table_of("tables", "table", "tablets", "options", "")
    for first in range(0, len(tables), PAGE_ROWS):
        rows = section(image, "tables")[first : first + PAGE_ROWS]
        tablets = {t.table_id: len(image.ring.placements[t.placement]) for t in rows}
        page = TablesPage(epoch=image.epoch, state_id="", tables=rows, tablets=tablets)
        told = msgspec.json.decode(msgspec.json.encode(page), type=TablesPage)
        for table in told.tables:
            found.add_row(table.name, str(told.tablets[table.table_id]), "", "")
    VisibleConsole(file=StringIO(), width=160).print(found)
    seconds = time.process_time() - began_s
    return Figure(f"stele table list, {len(tables):,} tables, both sides", seconds, "s", 3)


def longest_piece(image: Image) -> Figure:
    """The pieces of the whole state, which metadata-log encodes one at a time in its event loop."""
    rest, longest_s = iter(state_parts(image, "")), 0.0
    for _ in range(PIECES):
        longest_s = max(longest_s, seconds(partial(next_piece, rest)))
    return Figure("metadata-log: longest piece of the state", 1e3 * longest_s, "ms", LOOP_MS)


def progress(world: World) -> Progress:
    brain = world.brain
    return progress_of(seen(world), world.limits, StreamRates(), brain.steps.waits, active=True)


def seen(world: World) -> Observed:
    brain = world.brain
    return Observed(
        world.image,
        brain.acks,
        brain.reports,
        brain.term,
        world.now_s,
        wall_ms=world.history.at_ms,
        reading=brain.reading,
    )


def seconds(work: Callable[[], object]) -> float:
    """The processor time of one run."""
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


def milliseconds(what: str, work: Callable[[], object], goal: float) -> Figure:
    """The processor time of the fastest of some runs; of one that takes long, of the first two."""
    found_s = list[float]()
    while len(found_s) < 2 or (sum(found_s) < 0.2 and len(found_s) < 10):
        found_s.append(seconds(work))
    return Figure(what, 1e3 * min(found_s), "ms", goal)


def bare_world() -> World:
    """A founded cluster whose epochs are not checked and whose old images are not kept."""
    world = World()
    world.history = history = History()

    def forget(_image: Image) -> None:
        history.images[:] = history.images[-1:]
        history.epochs[:] = history.epochs[-1:]

    history.on_image = forget
    applied(world, FoundCluster("demo/1", LOG_ID.hex()))
    world.brain.claim()
    return world


def cluster(nodes: int, tables: int, tablets: int) -> World:
    """Normal nodes in racks, and tables with so many tablets together, made by facts rather than commands."""
    world, chance = bare_world(), random.Random(7)
    names = [f"n{number:04d}" for number in range(nodes)]
    image = apply_facts(world.image, [NodeChanged(node(n, i, chance)) for i, n in enumerate(names)])
    each = max(1, 1 << round(np.log2(tablets / tables)))
    keyspace = CreateKeyspace("bench", {"dc1": COPIES}, tablets=True, initial_tablets=each)
    image = apply_facts(image, decided(image, keyspace))
    image = apply_facts(image, decided(image, CreateTable("bench.t0")))
    numbers = NodeNumbers(tuple(names))
    keyspace_id = image.schema.ids["bench"]
    in_rack = [np.arange(nodes, dtype=np.int32)[rack::RACKS] for rack in range(RACKS)]
    unit = np.arange(each)
    for number in range(1, tables):
        first = number * each
        replicas = np.stack([rack[(first + unit) % len(rack)] for rack in in_rack], axis=1)
        table_id = f"table-{number:05d}"
        row = Table(
            table_id=table_id,
            keyspace_id=keyspace_id,
            name=f"t{number}",
            placement=tablet_map(table_id),
        )
        made = image.ring.creation(tablet_map(table_id), new_map(replicas, numbers))
        image = apply_facts(image, (TableChanged(row), *made))
    world.history.images.append(image)
    for name in names:
        world.nodes[name] = SimNode(name, mute=True)
    world.pass_s(2)
    return world


def node(name: str, index: int, chance: random.Random) -> Node:
    tokens = {chance.randint(MIN_TOKEN + 1, MAX_TOKEN) for _ in range(TOKENS)}
    return Node(
        node_id=name,
        address=f"http://{name}",
        dc="dc1",
        rack=f"r{index % RACKS}",
        num_tokens=TOKENS,
        state=NodeState.NORMAL,
        tokens=tuple(sorted(tokens)),
        host_id=f"host-{name}",
    )


def join(number: int) -> Join:
    name = f"x{number:03d}"
    return Join(
        node_id=name,
        cluster="demo",
        address=f"http://{name}",
        dc="dc1",
        rack="abc"[number % RACKS],
        host_id=f"host-{name}",
    )


def block(world: World, count: int) -> None:
    """Have a snapshot of a table under way, and ask for repairs of its tablets, then of other tables."""
    applied(world, SnapshotTable(name="bench.t0", snapshot="s1"))
    world.pass_s(2)
    schema, placements = world.image.schema, world.image.ring.placements
    asked = (
        TabletRepair(table=schema.full_name(table), tablet=tablet)
        for table in sorted(schema.tables.values(), key=lambda t: t.name)
        for tablet in range(len(placements[table.placement]))
    )
    repairs = [repair for repair, _ in zip(asked, range(count), strict=False)]
    for first in range(0, count, PER_COMMAND):
        applied(world, RepairTablets(tuple(repairs[first : first + PER_COMMAND])))
    world.pass_s(5)
    for node in world.nodes.values():
        for order in node.orders:
            running = report_of(order, ReportStatus.RUNNING, bytes_done=1)
            world.brain.reports = world.brain.reports.with_report(running, world.now_s)


def applied(world: World, command: AnyCommand) -> None:
    refused = world.apply(command)
    assert refused is None, refused


def decided(image: Image, command: AnyCommand) -> tuple[AnyFact, ...]:
    """The facts of a command on this image. Every call decides again."""
    envelope = Envelope(request_id="bench", command=command, actor="bench")
    found = decide(image, envelope, 0)
    assert not isinstance(found, Rejection), found
    return found


if __name__ == "__main__":
    main()
