"""The end of a run: faults end, requests finish, and all processes converge to the same state."""

import io
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from stele.domain.commands import SwitchBalancingOn
from stele.domain.evolve import evolve
from stele.domain.facts import AnyFact
from stele.domain.image import EMPTY, Image, without_memory
from stele.domain.names import NodeState
from stele.domain.rules.schema import all_off
from stele.domain.snapshot import requests_hash, state_hash
from stele.log.archive.container import Container, DamagedFileError, EpochSpan
from stele.log.archive.snapshots import SCHEMA, SnapshotHead, read_facts, read_head
from stele.log.codec import decode_epoch
from stele_simulator.kernel import us
from stele_simulator.processes.columns import KEYS as COLUMN_KEYS
from stele_simulator.processes.data import all_keys
from stele_simulator.processes.members import LogMachine, NodeMachine, ReplicaMachine
from stele_simulator.processes.operator import Operator
from stele_simulator.processes.tablets import unbalanced

if TYPE_CHECKING:
    from stele_simulator.processes.machine import Machine
    from stele_simulator.processes.world import World

REST_LIMIT_S: Final = 400.0
ROUTERS_LIMIT_S: Final = 60.0
"""Time until all stale routes are known and all other processes are at rest."""
LAST_CALLS_S: Final = 12.0
STUCK_S: Final = 25.0
"""After which the operator looks again."""
RECALLED: Final = 4
"""Past images requested from each metadata-log."""
EQUAL: Final = "I1"
REST: Final = "I10"
FULL: Final = "I8"


def converge(world: "World", operator: Operator) -> None:
    """Heal, wait until everybody has all, and compare. Raises Violation."""
    become_well(world, operator)
    world.run_until(world.kernel.now_us + us(LAST_CALLS_S))
    world.callers_work = False
    for caller in world.callers:
        caller.spawn(caller.ask_again())
    _until(world, operator, _unfinished, "every request has come to its end")
    if world.scenario.upgrades:
        world.roller.enable_at_last()
        _until(world, operator, _unfinished, "every request has come to its end")
    _read_rows(world, operator)
    _ask_guards(world, operator)
    _until(world, operator, _behind, "everybody has everything")
    _recall(world, operator)
    _until(world, operator, _behind, "everybody has what came while the past was asked for")
    if (
        world.clients or world.routers
    ) and not world.rows.age:  # the content of nodes for lost epochs is unknown
        world.stores.check_clean(world.witness.image)
    _compare(world)
    world.witness.promises.check()


def become_well(world: "World", operator: Operator) -> None:
    """End all faults, and wait until each process reads the history of now. Raises Violation."""
    world.heal()
    if world.scenario.upgrades:
        world.roller.stop_the_old()
    _until(world, operator, _unwell, "everybody is well, once nothing fails any more")


def _recall(world: "World", operator: Operator) -> None:
    """I8: images of the past, asked of every metadata-log, are what was."""
    if not world.watches:
        return
    winners = sorted(world.witness.winners())
    asked = {
        (log.name, epoch): log
        for log in world.logs
        for epoch in world.chance.sample(winners, min(RECALLED, len(winners)))
    }
    waiting = {*asked}
    for (name, epoch), log in sorted(asked.items()):
        assert log.loop is not None
        log.loop.create_task(
            _recall_one(world, log, epoch, partial(waiting.discard, (name, epoch)))
        )
    left = lambda _: f"{sorted(waiting)} are not answered" if waiting else ""  # noqa: E731
    _until(world, operator, left, "metadata-logs know the past")


async def _recall_one(
    world: "World", log: LogMachine, epoch: int, done: Callable[[], None]
) -> None:
    assert log.writer is not None
    image = await log.writer.history.image_at(epoch)
    was = world.witness.image_at(bytes(image.state_id))
    world.demand(
        was is not None
        and was.state_id in world.witness.line(world.witness.head)
        and without_memory(was) == without_memory(image)
        and image.epoch == epoch,
        FULL,
        f"{log.name} gives the state at epoch {epoch} as it was",
        f"it gives another, of epoch {image.epoch}",
    )
    done()


def _ask_guards(world: "World", operator: Operator) -> None:
    """Check that valid work is permitted."""
    since_us = world.kernel.now_us

    def unpermitted(_: "World") -> str:
        waiting = [each.name for each in world.workers if each.permitted_us < since_us]
        return f"{', '.join(waiting)} may not go on" if waiting else ""

    _until(world, operator, unpermitted, "work of the newest version is permitted")


def _read_rows(world: "World", operator: Operator) -> None:
    """Read every key once more, then check that all observations are possible."""
    if not world.clients and not world.routers:
        return
    keys = all_keys(tablets=bool(world.scenario.tablets), colocated=world.scenario.colocated)
    rows = unread_rows(world)
    if world.clients:
        world.clients[0].spawn(world.clients[0].read_all(keys))
    else:
        for router in world.routers:
            router.unread = {*keys}

    def reads(_: "World") -> str:
        if world.routers:
            keys.intersection_update(key for each in world.routers for key in each.unread)
        if any(rows):
            return f"nobody answers for rows {rows}"
        return f"nobody answers for {', '.join(sorted(keys))}" if keys else ""

    limit_s = ROUTERS_LIMIT_S if world.routers else REST_LIMIT_S
    _until(world, operator, reads, "a quorum answers for every key", limit_s)
    world.tablet_rows.rest(world.witness.image)
    world.columns.check()
    _until(world, operator, late_consumers, "consumers read all changes")
    check_observations(world)


def check_observations(world: "World") -> None:
    """Check what consumers and clients have seen, once they have read everything. Raises Violation."""
    for consumer in world.consumers:
        world.changes.check(consumer.name, consumer.table)
    with world.checking():
        world.checks += world.rows.check()


def unread_rows(world: "World") -> list[set[str]]:
    """Have each client of columns read all rows of its table. Return the keys that each has yet to read."""
    rows = [{f"key{number}" for number in range(COLUMN_KEYS)} for _ in world.column_clients]
    for client, own in zip(world.column_clients, rows, strict=True):
        client.spawn(client.read_all(own))
    return rows


def late_consumers(world: "World") -> str:
    """Return the consumers that have not read up to the newest acknowledged write."""
    late = [c.name for c in world.consumers if c.complete_us < world.changes.newest_us(c.table)]
    return f"{', '.join(late)} have not read all changes" if late else ""


def _until(
    world: "World",
    operator: Operator,
    waits_for: "Callable[[World], str]",
    what: str,
    limit_s: float = REST_LIMIT_S,
) -> None:
    kernel = world.kernel
    deadline_us, looked_us = kernel.now_us + us(limit_s), kernel.now_us
    while (waits := waits_for(world)) and kernel.now_us < deadline_us:
        world.run_until(kernel.now_us + us(1.0))
        _accept_losses(world)
        is_stuck = kernel.now_us - looked_us > us(STUCK_S)
        if is_stuck or not world.callers_work:
            _switch_on(world)
        if is_stuck:
            looked_us = kernel.now_us
            look_again(world, operator)
    world.demand(not waits, REST, what, waits)


def _switch_on(world: "World") -> None:
    """Enable balancing again once no other request is open, or all of them wait: a merge waits for balancing,
    the removal of a dead node for the merge, and a node for its address.
    """
    for off in all_off(world.witness.image.schema):
        asked = world.mover.envelope(SwitchBalancingOn(off.name))
        world.mover.spawn(world.mover.ask(asked))


def look_again(world: "World", operator: Operator) -> None:
    """Recover where somebody says that its log is lost; by force where a replica reads another history."""
    stopped = any(machine.failure for machine in world.machines.values())
    if not stopped and not any(_acknowledged_what_is_lost(world, node) for node in world.nodes):
        return
    why = operator.recover()
    if "without trouble" in why:
        operator.recover(force=True)


def _acknowledged_what_is_lost(world: "World", node: NodeMachine) -> bool:
    """The log has lost what this node acknowledged, and only nodes have noticed: it is the same log still."""
    if not node.is_refused:
        return False
    identity, line = node.disk_identity(), world.witness.line(world.witness.head)
    is_same = identity.log_id == world.witness.image.log_id.hex()
    return is_same and bytes.fromhex(identity.acknowledged.state_id) not in line


def _unwell(world: "World") -> str:
    """Return the processes that do not read the present history, with reasons."""
    line = world.witness.line(world.witness.head)
    for machine in world.machines.values():
        image, failure = machine.image, machine.failure
        if not machine.alive or image is None:
            return f"{machine.name} does not run ({machine.ended_by})"
        if failure is not None:
            return f"{machine.name} has stopped: {failure}"
        if image.state_id not in line:
            return f"{machine.name} is at epoch {image.epoch} of another history"
        if isinstance(machine, NodeMachine) and (machine.gate is None or not machine.gate.is_open):
            return f"{machine.name} does not serve ({machine.ended_by})"
    return ""


def _unfinished(world: "World") -> str:
    """Which request is not done, and which node is no member."""
    unwell, image = _unwell(world), world.witness.image
    if unwell:
        return unwell
    for request in image.requests.unfinished():
        waits = [str(c.driver.progress()) for c in world.coordinators if c.driver is not None]
        return f"request {request.request_id} is {request.status}: {request}; {waits}"
    late = [each for each in world.replicas if _untold(image, each)]
    if late:
        return f"{late[0].name} has not told of its snapshot of epoch {_untold(image, late[0])}"
    if image.topology.transitions or not image.topology.settled():
        return f"version {image.topology.version} has fence {image.topology.fence_version}"
    return _half_way(world, image) or unbalanced(world, image)


def _half_way(world: "World", image: Image) -> str:
    """Return the nodes in a transitional state."""
    members = image.membership.normal()
    for node in world.nodes:
        if node.node_id not in members:
            return f"{node.node_id} is no member ({node.ended_by})"
    gone = sorted(members.keys() - {node.node_id for node in world.nodes})
    return f"{gone[0]}, whose folder was thrown away, is a member" if gone else ""


def _untold(image: Image, replica: ReplicaMachine) -> int:
    """Return the newest snapshot of this log that a replica has and that the log does not mention; else 0."""
    assert replica.keeper is not None
    told = {each.epoch for each in image.archive.announced(replica.name)}
    needed = max(image.archive.truncated_epoch, image.archive.trimmed_epoch)
    for kept in replica.keeper.archive.snapshots.all()[:1]:
        head = kept.head
        if head.log_id == image.log_id.hex() and head.epoch >= needed and head.epoch not in told:
            return head.epoch
    return 0


def _behind(world: "World") -> str:
    head, newest = world.witness.head, world.witness.epoch_of(world.witness.head)
    unwell = _unwell(world)
    if unwell:
        return unwell
    for machine in world.machines.values():
        image = machine.image
        assert image is not None
        if image.state_id != head:
            return f"{machine.name} is at epoch {image.epoch} of {newest}"
        if isinstance(machine, ReplicaMachine):
            assert machine.keeper is not None
            spans = machine.keeper.archive.segments.spans()
            if spans != [EpochSpan(1, newest)]:
                return f"{machine.name} has epochs {spans} of {newest}"
    late = [watch for watch in world.watches if watch.state_id != head]
    if late:
        return f"{late[0].name} was told epochs up to {late[0].last} of {newest}"
    return next(filter(None, map(_damaged, world.replicas)), "")


def _damaged(replica: ReplicaMachine) -> str:
    """Read damaged files again, so that replicas notice the damage and fetch the files from others."""
    assert replica.keeper is not None
    try:
        for _ in replica.keeper.archive.segments.read(1):
            pass
    except DamagedFileError as error:
        return f"{replica.name} has a damaged file: {error}"
    return ""


def _accept_losses(world: "World") -> None:
    """The operator looks at nodes that refuse to serve: lost epochs are accepted where they are lost, and who
    gave up before the log was recovered, with all that it had acknowledged, is started again.
    """
    line, image = world.witness.line(world.witness.head), world.witness.image
    world.mover.spawn(world.mover.look_after())
    for node in world.nodes:
        if not node.is_refused or _acknowledged_what_is_lost(world, node):
            continue
        row = image.node(node.node_id)
        if node.is_wanted_back(image):
            node.put_back()
            continue
        if row is None or row.state is NodeState.LEFT:
            if any(machine.failure for machine in world.machines.values()):
                continue  # the log is lost, and the recovered one may have it
            world.trace(f"{node.node_id}, which the log does not know, gets an empty folder")
            replaced = image.node(node.replaces) if node.replaces else None
            is_there = replaced is not None and replaced.state is not NodeState.LEFT
            is_gone = replaced is not None and bool(replaced.excluded_since)  # by force, if need be
            waits = is_there and (node.waits or is_gone)
            node.renew(node.replaces if is_there else "", waits=waits)
            continue
        identity = node.disk_identity()
        state_id = bytes.fromhex(identity.acknowledged.state_id)
        was_lost = state_id not in world.witness.line(node.ended_at)
        world.demand(
            state_id not in line or was_lost,
            EQUAL,
            f"{node.name} serves, since epoch {identity.acknowledged.epoch}, which it acknowledged, is there",
            f"it does not: {node.ended_by}",
        )
        if state_id not in line:
            node.accept = identity.log_id
            world.trace(f"the operator accepts what {node.name} has lost")
        node.is_refused = False
        node.boot()


def _nodes_are_of_this_history(world: "World") -> None:
    """Check that acknowledgements of nodes are in the history, or that their loss was accepted."""
    line = world.witness.line(world.witness.head)
    for node in world.nodes:
        told = node.disk_identity().acknowledged
        world.demand(
            bytes.fromhex(told.state_id) in line,
            "I13",
            f"{node.name} serves what it had acknowledged by epoch {told.epoch} of this history",
            f"{told.state_id}, which its disk tells, is not in it",
        )


def _compare(world: "World") -> None:
    """Every image is what follows from the winners; archives are whole; snapshots are the same bytes."""
    winners, image = world.witness.winners(), EMPTY
    for number in sorted(winners):
        image = evolve(image, decode_epoch(winners[number].value))
    for machine in world.machines.values():
        seen = machine.image
        assert seen is not None
        world.demand(
            state_hash(seen) == state_hash(image),
            EQUAL,
            f"{machine.name} has the image that follows from epochs 1 to {image.epoch}",
            f"its hash is {state_hash(seen)}, not {state_hash(image)}",
        )
        if seen.decided is not None:
            world.demand(
                requests_hash(seen) == requests_hash(image),
                EQUAL,
                f"{machine.name} remembers what was decided in epochs 1 to {image.epoch}",
                "it remembers something else",
            )
    for replica in world.replicas:
        _is_whole(world, replica)
    _same_snapshots(world)
    _nodes_are_of_this_history(world)


def _is_whole(world: "World", replica: ReplicaMachine) -> None:
    assert replica.keeper is not None
    winners = world.witness.winners()
    found = {each.epoch: each.value for each in replica.keeper.archive.segments.read(1)}
    wrong = [number for number, known in winners.items() if found.get(number) != known.value]
    world.demand(
        not wrong,
        FULL,
        f"{replica.name} has the bytes of all epochs",
        f"it has others of epochs {wrong[:5]}",
    )


def _without_offsets(content: bytes) -> tuple[SnapshotHead, tuple[AnyFact, ...]]:
    """Return the content of a snapshot without the position of its epoch in the topic.

    When the topic loses its end, a producer's retry may append the same record again, at a later offset.
    Snapshots from before and after then differ in that position.
    """
    container = Container(io.BytesIO(content), SCHEMA)
    head = msgspec.structs.replace(read_head(container), next_offset=0, anchor_offset=0)
    return head, tuple(read_facts(container))


def _same_snapshots(world: "World") -> None:
    first: dict[str, tuple[Machine, bytes]] = {}
    for replica in world.replicas:
        for name, content in sorted(replica.disk.copy().items()):
            if "/snapshots/" not in name or not name.endswith(".avro"):
                continue
            if content in replica.disk.flipped:
                continue  # not read since
            owner, known = first.setdefault(name, (replica, content))
            world.demand(
                known == content or _without_offsets(known) == _without_offsets(content),
                FULL,
                f"{name} is the same bytes on {owner.name} and {replica.name}",
                f"they have {len(known)} and {len(content)} bytes, which differ",
            )
