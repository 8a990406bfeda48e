"""Steps that change the members: joins, a replacement, a decommission and a removal under load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import closing

from stele.cli.client import Client
from stele.cli.commands.why import look
from stele.cli.errors import UnreachableError
from stele.cli.places import find_places
from stele.domain.commands import CreateKeyspace, Leave, Remove
from stele.domain.names import UNFINISHED, NodeState, RequestStatus
from stele.runtime.answers.metadata_log import RequestAnswer
from stele.runtime.answers.session_guard import NodeLiveness
from stele.words.explain import story
from stele_harness.demo.operation import DEADLINE_S, TICK_S, Fault, follow_operation
from stele_harness.demo.scene import KEYSPACE, REPLICATION, Scene
from stele_harness.stack.control import Control, Deed, ask_stack

# Wait until the first nodes are members: they ask to join by themselves.


FIRST_NODES = ("n1", "n2", "n3")
MEMBERS_DEADLINE_S = 300.0


async def members(scene: Scene) -> None:
    async def all_normal() -> bool:
        nodes, requests = await scene.site.nodes(), await scene.site.requests()
        normal = {n.node_id for n in nodes if n.state is NodeState.NORMAL}
        return normal >= {*FIRST_NODES} and all(r.finished_epoch for r in requests)

    await scene.site.until("three nodes to be members", all_normal, MEMBERS_DEADLINE_S)
    nodes = {node.node_id: node for node in await scene.site.nodes()}
    for request in sorted(await scene.site.requests(), key=lambda r: (r.started_epoch, r.node_id)):
        node = nodes[request.node_id]
        took_ms = request.finished_at_ms - request.started_at_ms
        scene.timeline.note(
            f"{node.node_id} joined in epochs {request.started_epoch} to {request.finished_epoch}, "
            f"{took_ms} ms: {node.dc}/{node.rack}, {len(node.tokens)} tokens"
        )


# A keyspace with three copies, for the load.


async def keyspace(scene: Scene) -> None:
    outcome = await scene.site.submit(CreateKeyspace(KEYSPACE, dict(REPLICATION)), "drill")
    scene.timeline.note(f"keyspace {KEYSPACE} with three copies exists at epoch {outcome.epoch}")


# A fourth node joins while the load runs; the coordinator is killed while data moves.


START_DEADLINE_S = 300.0


async def join(scene: Scene) -> None:
    name = await start_node(scene, "r1")
    request_id = await request_of(scene, name)
    fault = Fault("coordinator")
    request = await follow_operation(scene, request_id, fault)
    normal = await scene.node_is(name, NodeState.NORMAL)
    scene.timeline.check(
        "a node joins under load while the coordinator is killed",
        request.status is RequestStatus.DONE and normal and fault.fired,
        f"request {request.request_id} is {request.status}, {name} "
        f"{'owns its ranges' if normal else 'is no member'}",
    )


async def start_node(scene: Scene, rack: str, replace: str = "") -> str:
    """One more node of the stack, which asks by itself to join, or to take a dead one's place; its name."""
    control = Control(rack=rack, replace=replace)
    answer = await asyncio.to_thread(ask_stack, scene.directory, control, START_DEADLINE_S)
    asks = f"to replace {replace}" if replace else "to join"
    scene.timeline.note(f"{answer.name} runs at {answer.url} in rack {rack} and asks {asks}")
    return answer.name


async def request_of(scene: Scene, node_id: str) -> str:
    """The id of the node's request, once the log has it."""

    async def known() -> bool:
        node = await scene.site.node(node_id)
        return node is not None and bool(node.request_id)

    await scene.site.until(f"{node_id}'s request", known, START_DEADLINE_S)
    node = await scene.site.node(node_id)
    assert node is not None
    return node.request_id


# A node whose machine is gone: killing it for good, and what the command line says of it.


KILL_DEADLINE_S = 150.0
DOWN_DEADLINE_S = 300.0
SILENT_S = 5.5
"""A coordinator takes a node for down after 5 s, by its own clock."""


async def kill_for_good(scene: Scene, name: str) -> None:
    """``stele stack kill``: nobody starts it again."""
    control = Control(deed=Deed.KILL, name=name)
    await asyncio.to_thread(ask_stack, scene.directory, control, KILL_DEADLINE_S)
    scene.timeline.note(f"kill -9 {name}, and nobody starts it again", "bold red")


async def is_down(scene: Scene, name: str) -> None:
    """Wait until everybody takes the node for down."""
    url = scene.site.url("session-guard", "/v1/nodes")

    async def silent() -> bool:
        rows = await scene.site.get(url, list[NodeLiveness])
        return any(r.node_id == name and (r.silent_for_s or 0.0) > SILENT_S for r in rows)

    await scene.site.until(f"{name} to be down", silent, DOWN_DEADLINE_S)


async def say_why(scene: Scene, request_id: str, until: str) -> None:
    """Show ``stele why`` of a request once it says ``until``. Raises UnreachableError when it never does."""
    said: list[str] = []

    async def says_so() -> bool:
        said[:] = await asyncio.to_thread(_why, scene, request_id)
        return any(until in line for line in said)

    await scene.site.until(f"`stele why` to say '{until}'", says_so, DOWN_DEADLINE_S)
    scene.timeline.note("`stele why` says:")
    for line in said:
        scene.timeline.note(f"  {line}", "yellow")


def _why(scene: Scene, request_id: str) -> list[str]:
    with closing(Client(find_places((), scene.directory, {}))) as client:
        return [text for text, _ in story(look(client, request_id))]


# Following several requests at once.


Look = Callable[[list[RequestAnswer]], bool]


def share_a_transition(answers: list[RequestAnswer]) -> bool:
    """All of them are subjects of one transition, and it has no others."""
    first, *others = (answer.transition for answer in answers)
    return (
        first is not None
        and len(first.subjects) == len(answers)
        and all(each == first for each in others)
    )


def one_waits_for_the_other(answers: list[RequestAnswer]) -> bool:
    """One is pending while another is under way."""
    waiting = [a for a in answers if a.request.status is RequestStatus.PENDING]
    return len(waiting) == 1 and any(a.transition is not None for a in answers)


async def follow_several(scene: Scene, requests: list[str], look: Look) -> bool:
    """Whether ``look`` ever held until all were finished. Raises UnreachableError."""
    seen, shown, end = False, dict[str, str](), time.monotonic() + 2 * DEADLINE_S
    while True:
        answers = [await scene.site.request_or_none(each) for each in requests]
        known = [answer for answer in answers if answer is not None]
        if len(known) == len(answers):
            seen = seen or look(known)
            _show(scene, known, shown)
            if all(answer.request.status not in UNFINISHED for answer in known):
                return seen
        if time.monotonic() > end:
            states = ", ".join(f"{a.request.request_id} is {a.request.status}" for a in known)
            raise UnreachableError(f"Waited {2 * DEADLINE_S:.0f} s for the requests: {states}.")
        await asyncio.sleep(TICK_S)


def _show(scene: Scene, answers: list[RequestAnswer], shown: dict[str, str]) -> None:
    for answer in answers:
        request, transition = answer.request, answer.transition
        state = str(transition.state if transition else request.status)
        if shown.get(request.request_id) != state:
            shown[request.request_id] = state
            note = f"epoch {answer.epoch:>4}  {request.kind} {request.node_id}: {state}"
            scene.timeline.note(note, "cyan")


# A node dies for good while the load runs; a new one takes its place, its tokens and its data.


REPLACE_DEAD = "n3"


async def replace(scene: Scene) -> None:
    dead = await scene.site.node(REPLACE_DEAD)
    assert dead is not None
    await kill_for_good(scene, REPLACE_DEAD)
    name = await start_node(scene, dead.rack, replace=REPLACE_DEAD)
    request_id = await request_of(scene, name)
    await say_why(scene, request_id, until=REPLACE_DEAD)
    request = await follow_operation(scene, request_id)
    for removal in await scene.site.requests():
        if (
            removal.removes_node and removal.node_id == REPLACE_DEAD
        ):  # its tablets are rebuilt first
            await follow_operation(scene, removal.request_id)
    new = await scene.site.node(name)
    same = new is not None and new.state is NodeState.NORMAL and new.tokens == dead.tokens
    left = await scene.node_is(REPLACE_DEAD, NodeState.LEFT)
    scene.timeline.check(
        "a dead node is replaced under load",
        request.status is RequestStatus.DONE and same and left,
        f"request {request.request_id} is {request.status}, {name} "
        f"{'has' if same else 'has not'} the {len(dead.tokens)} tokens of {REPLACE_DEAD}",
    )


# The first node leaves while the load runs; the metadata-log is killed while data moves.


LEAVE_LEAVING = "n1"


async def leave(scene: Scene) -> None:
    outcome = await scene.site.submit(Leave(LEAVE_LEAVING), "the demo replaces it")
    scene.timeline.note(f"decommission of {LEAVE_LEAVING} accepted at epoch {outcome.epoch}")
    fault = Fault("metadata-log")
    request = await follow_operation(scene, outcome.request_id, fault)
    left = await scene.node_is(LEAVE_LEAVING, NodeState.LEFT)
    scene.timeline.check(
        "a node leaves under load while the metadata-log is killed",
        request.status is RequestStatus.DONE and left and fault.fired,
        f"request {request.request_id} is {request.status}, {LEAVE_LEAVING} "
        f"{'has left' if left else 'is still there'}",
    )


# Another node dies for good and is removed under load, while a living one leaves.


REMOVE_DEAD = "n2"
REMOVE_LEAVING = "n4"


async def remove(scene: Scene) -> None:
    """Ask for both at once: their ranges meet, so one of the requests waits for the other."""
    await kill_for_good(scene, REMOVE_DEAD)
    await is_down(scene, REMOVE_DEAD)
    remove = await scene.site.submit(Remove(node_id=REMOVE_DEAD), "its machine is gone")
    leave = await scene.site.submit(Leave(REMOVE_LEAVING), "a new node takes over")
    scene.timeline.note(
        f"remove {REMOVE_DEAD} and decommission {REMOVE_LEAVING} are asked for at once"
    )
    requests = [remove.request_id, leave.request_id]
    waited = await follow_several(scene, requests, one_waits_for_the_other)
    removed = await scene.node_is(REMOVE_DEAD, NodeState.LEFT)
    left = await scene.node_is(REMOVE_LEAVING, NodeState.LEFT)
    scene.timeline.check(
        "a dead node is removed under load",
        removed,
        f"{REMOVE_DEAD} {'has left' if removed else 'is still there'}",
    )
    scene.timeline.check(
        "of two requests for the same ranges one waits for the other",
        waited and left,
        f"{REMOVE_LEAVING} {'has left' if left else 'is still there'}"
        f"{'; one request waited' if waited else '; no request was seen waiting'}",
    )


# Two nodes join at once, as one transition. The coordinator stands still (SIGSTOP) until both
# have asked, so that it sees them together.


RACKS = ("r1", "r2")


async def together(scene: Scene) -> None:
    paused = scene.site.pause("coordinator")
    scene.timeline.note("the coordinator stands still while two nodes ask to join")
    try:
        names = await asyncio.gather(*(start_node(scene, rack) for rack in RACKS))
        requests = [await request_of(scene, name) for name in names]
    finally:
        scene.site.resume(paused)
    scene.timeline.note(f"{' and '.join(names)} are pending: it goes on")
    shared = await follow_several(scene, requests, share_a_transition)
    normal = [await scene.node_is(name, NodeState.NORMAL) for name in names]
    scene.timeline.check(
        "two nodes join as one transition",
        shared and all(normal),
        f"{' and '.join(names)} {'shared' if shared else 'did not share'} a transition",
    )
