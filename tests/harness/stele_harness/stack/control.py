"""Requests of other processes to a running stack, and the actions that carry them out.

They are files in ``control/``, with one answer each.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from stele.cli.client import Client
from stele.cli.errors import CliError, UnreachableError
from stele.cli.places import StackFile, find_places
from stele.cli.reading import StateReading
from stele.domain.model.membership import Node
from stele.domain.names import NodeState
from stele_harness.stack.folders import is_node, node_numbers
from stele_harness.stack.servers import Server
from stele_harness.stack.stack import SERVICES, Stack, node_specs
from stele_harness.stack.supervisor import ProcessState

CONTROL_DIRECTORY = "control"
QUESTION = ".question.json"
ANSWER = ".answer.json"
POLL_S = 0.1


class Deed(StrEnum):
    """The actions of a stack."""

    ADD_NODE = "add-node"
    STOP = "stop"
    START = "start"
    RESTART = "restart"
    KILL = "kill"
    REMOVE = "remove"


_FAILED: Final[Mapping[Deed, str]] = {
    Deed.ADD_NODE: "The new node was not started",
    Deed.STOP: "{} was not stopped",
    Deed.START: "{} was not started",
    Deed.RESTART: "{} was not started again",
    Deed.KILL: "{} was not killed",
    Deed.REMOVE: "{} was not removed",
}


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """A request to add a node, or to act on process ``name``.

    Without a rack the stack chooses one. ``replace`` is a node of the stack that the new one
    replaces. ``accepts`` are variables that let a node start without the data that it lost.
    """

    deed: Deed = Deed.ADD_NODE
    name: str = ""

    dc: str = ""
    rack: str = ""
    num_tokens: int | None = None
    shards: int | None = None
    join: bool = True
    replace: str = ""

    accepts: dict[str, str] = {}


class ControlAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: the process, or the reason why the action was not done."""

    name: str = ""
    url: str = ""
    error: str = ""
    hint: str = ""


def ask_stack(directory: Path, control: Control, deadline_s: float) -> ControlAnswer:
    """Send a request to the stack over ``directory`` and return its answer. Raises CliError."""
    folder = directory / CONTROL_DIRECTORY
    folder.mkdir(parents=True, exist_ok=True)
    name = uuid.uuid4().hex
    question, answer = folder / f"{name}{QUESTION}", folder / f"{name}{ANSWER}"
    _write(question, msgspec.json.encode(control))
    end = time.monotonic() + deadline_s
    while not answer.exists():
        if time.monotonic() > end:
            question.unlink(missing_ok=True)
            raise UnreachableError(
                f"The stack over {directory} did not answer in {deadline_s:.0f} s.",
                "See its log, stack.log, or `stele stack status`.",
            )
        time.sleep(POLL_S)
    found = msgspec.json.decode(answer.read_bytes(), type=ControlAnswer)
    answer.unlink(missing_ok=True)
    if found.error:
        raise CliError(found.error, found.hint)
    return found


def answer_questions(directory: Path, handle: Callable[[Control], ControlAnswer]) -> None:
    """Answer each waiting request."""
    for question in sorted((directory / CONTROL_DIRECTORY).glob(f"*{QUESTION}")):
        control = msgspec.json.decode(question.read_bytes(), type=Control)
        question.unlink(missing_ok=True)
        try:
            answer = handle(control)
        except CliError as error:
            answer = ControlAnswer(error=error.message, hint=error.hint)
        except Exception as error:  # any failure must reach the requester
            text = (" ".join(str(error).split()) or repr(error)).rstrip(".")
            log = f"`stele stack logs {control.name or 'stack'}`"
            answer = ControlAnswer(
                error=f"{_FAILED[control.deed].format(control.name)}: {text}.", hint=f"See {log}."
            )
        name = question.name.removesuffix(QUESTION)
        _write(question.with_name(f"{name}{ANSWER}"), msgspec.json.encode(answer))


def _write(path: Path, content: bytes) -> None:
    # The other side polls for the name, so the file appears only when it is complete.
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_bytes(content)
    temporary.replace(path)


LOOK_TIMEOUT_S: Final = 1.0
"""Limit of a read of the nodes' rows."""


def do(stack: Stack, control: Control) -> ControlAnswer:
    """Carry out a request. Raises CliError and the errors of the stack."""
    if control.deed is Deed.ADD_NODE:
        return add_node(stack, control)
    name = control.name
    states = {status.name: status.state for status in stack.supervisor.status()}
    down = nodes_there(stack) - states.keys()
    may = {*states, *down} if control.deed in (Deed.START, Deed.REMOVE) else {*states}
    server = stack.servers.get(name)
    if control.accepts and not is_node(name):
        raise CliError(f"{name} is not a node: it has no data that it could start without.", "")
    if server is not None:
        return _do_to_server(stack, server, control)
    if name not in may:
        known = may if control.deed is Deed.REMOVE else may | stack.servers.names()
        raise _unknown(stack, name, known)
    match control.deed:
        case Deed.STOP:
            stack.stop_one(name)
        case Deed.KILL:
            stack.kill_for_good(name)
        case Deed.REMOVE:
            stack.remove(name, "it was removed")
        case Deed.START if states.get(name) is ProcessState.RUNNING:
            raise CliError(f"{name} runs already.", f"`stele stack restart {name}` restarts it.")
        case Deed.START:
            stack.start_one(name, control.accepts)
        case Deed.RESTART:
            stack.stop_one(name)
            stack.start_one(name)
    return ControlAnswer(name=name, url="" if control.deed is Deed.REMOVE else stack.url(name))


def _unknown(stack: Stack, name: str, known: set[str]) -> CliError:
    """Return the error for an unknown process."""
    if stack.was_removed(name):
        return CliError(
            f"{name} was removed, and its name is not used again.",
            "`stele stack add-node` starts a new node.",
        )
    if name in {spec.name for spec in SERVICES}:
        return CliError(
            f"{name} was left out when this stack was started.",
            f"`stele stack down` keeps the data; then `stele stack up` without `--without {name}`.",
        )
    return CliError(f"There is no process '{name}'.", f"Known: {', '.join(sorted(known))}.")


def _do_to_server(stack: Stack, server: Server, control: Control) -> ControlAnswer:
    """Act on a broker or Redis. Services wait for it; it starts again only by another request."""
    name, deed = control.name, control.deed
    if deed is Deed.REMOVE:
        text = f"{name} serves everything else of the stack: only nodes are removed."
        raise CliError(text, "`stele stack down --purge` deletes it all.")
    if deed is Deed.START and server.is_running():
        raise CliError(f"{name} runs already.", f"`stele stack restart {name}` restarts it.")
    if deed is Deed.KILL:
        stack.servers.kill(name)
    if deed in (Deed.STOP, Deed.RESTART):
        stack.servers.stop(name)
    if deed in (Deed.START, Deed.RESTART):
        stack.servers.start(name)
    stack.write_stack_file()
    return ControlAnswer(name=name, url=server.address_text)


def add_node(stack: Stack, control: Control) -> ControlAnswer:
    """Start a node. A node that replaces another has its dc and rack, unless others are given."""
    taken = {status.name for status in stack.supervisor.status()} | folder_names(stack)
    number = next(n for n in range(1, len(taken) + 2) if f"n{n}" not in taken)
    spec = node_specs(number)[-1]
    dc, rack = control.dc, control.rack
    if control.replace:
        known = nodes_there(stack) | {*stack.node_names()}
        if control.replace not in known:
            text = f"There is no node '{control.replace}' in this stack, so nothing was started."
            raise CliError(text, f"Known: {', '.join(sorted(known))}.")
        if not (dc and rack):
            dead = _row_of_replaced(stack, control.replace)
            dc, rack = dc or dead.dc, rack or dead.rack
    more = {
        "STELE_REPLACE_NODE": control.replace,
        "STELE_DC": dc,
        "STELE_RACK": rack,
        "STELE_NUM_TOKENS": "" if control.num_tokens is None else str(control.num_tokens),
        "STELE_SHARDS": "" if control.shards is None else str(control.shards),
        "STELE_JOIN": "" if control.join else "no",
    }
    chosen = {name: value for name, value in more.items() if value}
    stack.start_services([stack.choose(spec, chosen)])
    return ControlAnswer(name=spec.name, url=stack.url(spec.name))


def _row_of_replaced(stack: Stack, name: str) -> Node:
    """Return the replaced node's row in the log. Its directory may be lost. Raises CliError."""
    for node in node_rows(stack.directory):
        if node.node_id == name:
            return node
    raise CliError(
        f"The dc and rack of {name} are unknown: no metadata-log answers, or the log lacks it."
        " Nothing was started.",
        "`stele status` shows whether one answers. Or give --dc and --rack.",
    )


def folder_names(stack: Stack) -> set[str]:
    """Return the names of all nodes that ever had a directory in this stack."""
    return {f"n{number}" for number in node_numbers(stack.directory / "services")}


def nodes_there(stack: Stack) -> set[str]:
    """Return the names of the nodes whose data still exists."""
    return {name for name in folder_names(stack) if not stack.was_removed(name)}


def node_rows(directory: Path) -> list[Node]:
    """Return the nodes' rows in the log; none if no service answers."""
    try:
        places = find_places((), directory, {})
        client = Client(places, timeout_s=LOOK_TIMEOUT_S, retry_for_s=LOOK_TIMEOUT_S)
        with closing(client):
            return StateReading(client, level="local").nodes()
    except CliError:
        return []


def note_who_left(stack: Stack) -> None:
    """Note the nodes that left the cluster, so that no later stack starts them."""
    ours = folder_names(stack)
    for node in node_rows(stack.directory):
        if (
            node.state is NodeState.LEFT
            and node.node_id in ours
            and not stack.why_down(node.node_id)
        ):
            stack.keep_down(node.node_id, "it has left the cluster")


# The states of a stack's brokers and Redis, by whether they accept connections.
#
# A server that starts or hangs is a running process but accepts none.


CONNECT_S: Final = 0.5
"""Limit of a connection. On one machine a live server accepts it at once."""
RUNNING: Final = "running"
DOWN: Final = "down"


def with_servers(stack: StackFile) -> StackFile:
    """Return the stack with the current states of its servers."""
    replace, redis = msgspec.structs.replace, stack.redis
    return replace(
        stack,
        brokers=tuple(replace(b, state=_state(b.state, b.address)) for b in stack.brokers),
        redis=replace(redis, state=_state(redis.state, urlsplit(redis.url).netloc)),
    )


def all_run(stack: StackFile) -> bool:
    """Return True if every process runs, by ``with_servers``."""
    states = [stack.redis.state, *(broker.state for broker in stack.brokers)]
    states += [service.state for service in stack.services]
    return all(state == RUNNING for state in states)


def _state(told: str, address: str) -> str:
    """Return the stack's state of a stopped server, else the state by a connection.

    The connection goes to the first of ``host:port,...``. A host may be in brackets.
    """
    if told not in ("", RUNNING):
        return told
    first = urlsplit(f"//{address.partition(',')[0]}")
    try:
        socket.create_connection((first.hostname or "", first.port or 0), CONNECT_S).close()
    except (OSError, ValueError):
        return DOWN
    return RUNNING
