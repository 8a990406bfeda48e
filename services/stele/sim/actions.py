"""What each kind of action does. One function for each; ``ACTIONS`` is the list of all that can go wrong."""

from collections.abc import Callable
from typing import Final

from stele.domain import commands
from stele.domain.image import Image
from stele.domain.requests.ids import named
from stele.domain.topology.operations.commands import TabletMove, TabletRepair
from stele.sim.crowd import Crowd
from stele.sim.declared import dead_to_be, declare, gone, note
from stele.sim.kernel import us
from stele.sim.log_actions import LOG_ACTIONS
from stele.sim.process import Process
from stele.sim.scenario import Action
from stele.sim.table_actions import TABLE_ACTIONS
from stele.sim.world import DC, World, replace_command

MAX_GONE: Final = 1
"""Nodes without a disk that are members at one time: with two, quorums of three would be gone for good."""

NOTHING_FROM_LOG: Final = 3
SERVES_PEERS_ALONE: Final = 4
BARRIER_GAP_S: Final = 0.02
MOST_TABLETS: Final = 16
STRIKE_STEP_S: Final = 0.3
"""About the time between a step's two barriers."""


def schedule(world: World) -> None:
    """Put all of the scenario's actions on the kernel's heap."""
    for index, action in enumerate(world.scenario.actions):
        world.kernel.at(us(action.at_s), None, _do, world, action, index)


def _do(world: World, action: Action, index: int) -> None:
    ACTIONS[action.kind](world, action, index)


def _process(world: World, name: str) -> Process | None:
    return world.processes().get(name)


def _crash(world: World, action: Action, index: int) -> None:
    """Crash ``target``; it comes back after ``seconds`` with its disk."""
    process = _process(world, action.target)
    if process is not None and process.alive:
        world.crash(process, action.seconds)


def _pause(world: World, action: Action, index: int) -> None:
    """Stop ``target`` for ``seconds``, in the middle of whatever it does."""
    process = _process(world, action.target)
    if process is not None and process.alive:
        world.faults += 1
        world.trace(f"pause {action.target} for {action.seconds:g} s")
        process.pause(action.seconds)


def _cut(world: World, action: Action, index: int) -> None:
    """Cut the group ``target`` off: 0 both ways, 1 nothing goes in, 2 nothing comes out, 3 from the log, 4 from
    the log and the coordinators.
    """
    group = set(action.target.split(","))
    others = {process.name for process in (*world.clients, *world.watchers, world.admin)}
    everybody = {*world.processes(), *others, "log"}
    rest = everybody - group
    if action.number in (NOTHING_FROM_LOG, SERVES_PEERS_ALONE):
        rest = {"log"}
    if action.number == SERVES_PEERS_ALONE:
        rest |= {driver.name for driver in world.drivers}
    going_in = {(a, b) for a in rest for b in group} if action.number != 2 else set()
    coming_out = {(b, a) for a in rest for b in group} if action.number != 1 else set()
    world.faults += 1
    world.trace(f"cut {action.target} ({action.number}) for {action.seconds:g} s")
    world.network.cut(index, frozenset(going_in | coming_out))
    end_us = world.kernel.now_us + us(action.seconds)
    world.kernel.at(end_us, None, world.network.mend, index)


def _leader(world: World, action: Action, index: int) -> None:
    """The log's leader changes: its unreplicated tail is gone, appends fail for ``seconds``."""
    world.faults += 1
    world.log.change_leader(action.seconds)
    world.trace(f"new leader of the log, {world.log.truncated} records lost so far")


def _jump(world: World, action: Action, index: int) -> None:
    """The wall clock of ``target`` jumps by ``number`` milliseconds."""
    process = _process(world, action.target)
    if process is not None:
        world.faults += 1
        world.trace(f"clock of {action.target} jumps by {action.number} ms")
        process.clock.skew_ms += action.number


def _wipe(world: World, action: Action, index: int) -> None:
    """The disk of ``target`` is gone, and with it the node: such a node comes back under a new id only."""
    node = world.nodes.get(action.target)
    if node is not None and action.target not in world.gone and len(gone(world)) < MAX_GONE:
        world.faults += 1
        world.trace(f"wipe {action.target}")
        world.gone.add(action.target)
        node.crash()
        node.disk = {"cells": {}}


def _crash_at(world: World, action: Action, index: int) -> None:
    """Whoever comes to the point ``text`` dies there, once it was passed ``number`` times."""
    world.traps.append((action.target, action.text, action.number, action.seconds))


def _on_state(world: World, action: Action, index: int) -> None:
    """Crash, pause, wipe or cut off somebody when a transition enters the state ``text`` (idle: the
    last end), or ``number`` steps of ``STRIKE_STEP_S`` later."""

    def strike() -> None:
        later = world.kernel.now_us + us(STRIKE_STEP_S * action.number)
        world.kernel.at(later, None, _strike, world, action, index)

    world.on_state(action.text, strike)


def _strike(world: World, action: Action, index: int) -> None:
    victim = find_victim(world, action.target, action.number)
    if victim is None or not victim.alive:
        return
    if action.kind == "wipe_on":
        _wipe(world, Action(0, "wipe", victim.name), index)
    elif action.kind == "crash_on":
        world.crash(victim, action.seconds)
    elif action.kind == "cut_on":
        _cut(world, Action(0, "cut", victim.name, action.seconds, NOTHING_FROM_LOG), index)
    else:
        world.faults += 1
        world.trace(f"pause {victim.name} for {action.seconds:g} s")
        victim.pause(action.seconds)


def find_victim(world: World, role: str, number: int) -> Process | None:
    """Who plays a role just now; ``number`` chooses among several."""
    image: Image = world.witness.image
    if role == "coordinator":
        return _process(world, image.topology.coordinator.holder)
    if role == "operation_node":
        working = [n for transition in image.topology.open() for n in transition.nodes()]
        return world.nodes.get(working[number % len(working)]) if working else None
    if role == "writer":
        return world.writers[number % len(world.writers)]
    members = sorted(image.membership.taking_part())
    return (
        world.nodes.get(members[number % len(members)])
        if role == "member"
        else _process(world, role)
    )


def _join(world: World, action: Action, index: int) -> None:
    """A new node ``target`` with ``number`` tokens in rack ``text`` starts and asks to join."""
    if action.target not in world.nodes:
        world.requests += 1
        world.trace(f"start {action.target}, which asks to join")
        world.add_node(
            action.target, world.join_of(action.target, action.text or "r1", action.number)
        )


def _leave(world: World, action: Action, index: int) -> None:
    world.request(commands.Leave(action.target))


def _move(world: World, action: Action, index: int) -> None:
    """``target`` moves to the tokens ``text``, to such as are chosen, or to those that ``as`` another has."""
    _, is_like, other = action.text.partition("as ")
    like = world.witness.image.node(other) if is_like else None
    chosen = () if is_like else tuple(int(token) for token in action.text.split(",") if token)
    tokens = chosen if like is None else like.tokens
    world.request(commands.MoveNode(node_id=action.target, tokens=tokens))


def _rebuild(world: World, action: Action, index: int) -> None:
    """``target`` is rebuilt; ``number`` 1: with force."""
    world.request(commands.Rebuild(node_id=action.target, force=bool(action.number)))


def _remove(world: World, action: Action, index: int) -> None:
    """Ask to do without the first of ``target``, which are declared dead; see ``_declared``."""
    dead = _declared(world, action)
    if dead:
        declare(world, commands.Remove(node_id=dead[0], ignore_nodes=tuple(dead[1:])), *dead)


def _exclude(world: World, action: Action, index: int) -> None:
    dead = _declared(world, action)
    if dead:
        declare(world, commands.Exclude(tuple(dead)), *dead)


def _replace(world: World, action: Action, index: int) -> None:
    """A new node ``text`` starts, and asks to take the place of ``target``."""
    for dead in _declared(world, action)[:1]:
        row = world.witness.image.node(dead)
        if row is not None and action.text not in world.nodes:
            world.requests += 1
            world.trace(f"start {action.text}, which asks to replace {dead}")
            note(world, named(f"join {action.text}"), (dead,))
            world.add_node(
                action.text,
                replace_command(
                    action.text, dead, row.rack, world.scenario.shards.get(action.text, 1)
                ),
            )


def _declared(world: World, action: Action) -> list[str]:
    """The nodes to declare dead of ``target``, which names some, or the one that is gone, or the ``rest``: all
    with data that are not excluded. Empty when they are out already, or enough others are dead.
    """
    if action.target == "gone":
        return dead_to_be(world, gone(world)[:1])
    if action.target == "rest":
        meant = {n for dead in world.declarations.values() for n in dead}
        return dead_to_be(world, sorted({*world.witness.image.membership.holding()} - meant))
    return dead_to_be(world, action.target.split(","))


def _cancel(world: World, action: Action, index: int) -> None:
    """Cancel an unfinished request: the ``number``-th, or whichever there is."""
    unfinished = world.witness.image.requests.unfinished()
    if unfinished:
        world.request(commands.Cancel(unfinished[action.number % len(unfinished)].request_id))


def _keyspace(world: World, action: Action, index: int) -> None:
    """Keyspace ``target`` with replication factor ``number``."""
    world.request(commands.CreateKeyspace(action.target, {DC: action.number}))


def _tablet_keyspace(world: World, action: Action, index: int) -> None:
    """Keyspace ``target`` with replication factor ``number``, whose tables have tablets."""
    replication = {DC: action.number}
    world.request(
        commands.CreateKeyspace(action.target, replication, tablets=True, initial_tablets=4)
    )


def _table(world: World, action: Action, index: int) -> None:
    world.request(commands.CreateTable(action.target))


def _colocated_table(world: World, action: Action, index: int) -> None:
    """Table ``target`` has the tablets of table ``text``."""
    world.request(commands.CreateTable(action.target, colocated_with=action.text))


def _drop_table(world: World, action: Action, index: int) -> None:
    world.request(commands.DropTable(action.target))


def _resize(world: World, action: Action, index: int) -> None:
    """Table ``target`` gets more tablets, or half of them; ``number`` says which."""
    image = world.witness.image
    data = image.schema.serving(action.target)
    if data is not None:
        count = len(image.ring.placements[data.placement])
        wanted = (2 * count, count // 2)[action.number % 2]
        world.request(commands.ResizeTable(action.target, min(wanted, MOST_TABLETS)))


def _migrate(world: World, action: Action, index: int) -> None:
    """Some tablet of table ``target`` goes from one of its nodes to some node; ``number`` chooses all three."""
    image, number = world.witness.image, action.number
    data, members = image.schema.serving(action.target), sorted(image.membership.normal())
    if data is None or not members:
        return
    rows = image.ring.placements[data.placement].rows
    tablet = number % len(rows)
    nodes = rows[tablet].reads
    move = TabletMove(
        table=action.target,
        tablet=tablet,
        from_node=nodes[number % len(nodes)],
        to_node=members[number % len(members)],
    )
    world.request(commands.MoveTablets((move,)))


def _repair(world: World, action: Action, index: int) -> None:
    """Table ``target``, or one of its tablets; ``number`` says which."""
    data, number = world.witness.image.schema.serving(action.target), action.number
    if data is None or number % 2:
        world.request(commands.RepairTable(action.target))
        return
    tablet = number // 2 % len(world.witness.image.ring.placements[data.placement])
    asked = TabletRepair(table=action.target, tablet=tablet)
    world.request(commands.RepairTablets((asked,)))


def _snapshot(world: World, action: Action, index: int) -> None:
    """Of table ``target``; some expire soon, as ``number`` says."""
    if world.witness.image.schema.serving(action.target) is not None:
        expire_s = 10 if action.number % 4 == 0 else 0
        asked = commands.SnapshotTable(name=action.target, snapshot=f"s{index}", expire_s=expire_s)
        world.request(asked)


def _restore(world: World, action: Action, index: int) -> None:
    """Table ``target`` from some snapshot, its own or another's; now and then one is deleted instead."""
    found = sorted(each.name for each in world.witness.image.table_snapshots.snapshots.values())
    if not found or world.witness.image.schema.serving(action.target) is None:
        return
    tag = found[action.number % len(found)]
    if action.number % 5 == 0:
        world.request(commands.DeleteTableSnapshot(tag))
    else:
        world.request(commands.RestoreTable(name=action.target, snapshot=tag))


def _alter(world: World, action: Action, index: int) -> None:
    """Give keyspace ``target`` the replication factor ``number``, or one copy in each rack that ``text``
    names.
    """
    if action.text:
        racks = {DC: tuple(action.text.split(","))}
        world.request(commands.KeyspaceRfChange(action.target, {}, racks=racks))
    else:
        world.request(commands.KeyspaceRfChange(action.target, {DC: action.number}))


def _drop(world: World, action: Action, index: int) -> None:
    world.request(commands.DropKeyspace(action.target))


def _truncate(world: World, action: Action, index: int) -> None:
    world.request(commands.Truncate(action.target))


def _cleanup(world: World, action: Action, index: int) -> None:
    """All nodes clean up, or ``target`` does."""
    world.request(commands.Cleanup(node_id=action.target))


def _noop_request(world: World, action: Action, index: int) -> None:
    world.request(commands.NoopRequest())


def _quiesce(world: World, action: Action, index: int) -> None:
    world.request(commands.Quiesce())


def _new_cdc_generation(world: World, action: Action, index: int) -> None:
    world.request(commands.NewCdcGeneration(force=True))


def _setting(world: World, action: Action, index: int) -> None:
    world.request(commands.SetSetting(f"setting{action.number}", f"value{index}"))


def _bad(world: World, action: Action, index: int) -> None:
    """Commands that must be refused: each in turn."""
    wrong: tuple[commands.AnyCommand, ...] = (
        commands.Leave("nobody"),
        commands.Cancel("nothing"),
        commands.Advance(term=10_000, version=1),
        commands.CreateKeyspace("bad name", {DC: 1}),
    )
    world.request(wrong[action.number % len(wrong)])


def _barrier(world: World, action: Action, index: int) -> None:
    """``number`` linearizable reads, a little apart, so that they may meet one another's NOOP."""
    for read in range(action.number):
        world.requests += 1
        later = world.kernel.now_us + us(BARRIER_GAP_S * read)
        world.kernel.at(later, world.admin, world.admin.read_barrier)


def _crowd(world: World, action: Action, index: int) -> None:
    """Requests like ``target`` come one after the other until all who came before them were served, or
    ``seconds`` are over; node ``text`` asks to join meanwhile.
    """
    Crowd(world, action.target, action.seconds, action.text).begin()


ACTIONS: Final[dict[str, Callable[[World, Action, int], None]]] = {
    "crash": _crash,
    "pause": _pause,
    "cut": _cut,
    "leader": _leader,
    "jump": _jump,
    "wipe": _wipe,
    "crash_at": _crash_at,
    "crash_on": _on_state,
    "pause_on": _on_state,
    "cut_on": _on_state,
    "wipe_on": _on_state,
    "join": _join,
    "leave": _leave,
    "move": _move,
    "rebuild": _rebuild,
    "remove": _remove,
    "replace": _replace,
    "exclude": _exclude,
    "cancel": _cancel,
    "keyspace": _keyspace,
    "tablet_keyspace": _tablet_keyspace,
    "table": _table,
    "colocated_table": _colocated_table,
    "drop_table": _drop_table,
    "migrate": _migrate,
    "resize": _resize,
    "repair": _repair,
    "snapshot": _snapshot,
    "restore": _restore,
    "alter": _alter,
    "drop": _drop,
    "truncate": _truncate,
    "cleanup": _cleanup,
    "noop_request": _noop_request,
    "quiesce": _quiesce,
    "new_cdc_generation": _new_cdc_generation,
    "setting": _setting,
    "bad": _bad,
    "barrier": _barrier,
    "crowd": _crowd,
    **TABLE_ACTIONS,
    **LOG_ACTIONS,
}
