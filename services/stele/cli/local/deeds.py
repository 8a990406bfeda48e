"""What is done to a running stack when `stele stack add-node|stop|start|restart|kill|remove` asks for it."""

from __future__ import annotations

from stele.cli.client import Client
from stele.cli.errors import CliError
from stele.cli.local.control import Answer, Control, Deed
from stele.cli.places import find_places
from stele.cli.reading import Reading
from stele.domain.names import NodeState
from stele.stack.folders import is_node, node_numbers
from stele.stack.servers import Server
from stele.stack.stack import SERVICES, Stack, node_specs
from stele.stack.supervisor import State

LOOK_TIMEOUT_S = 1.0
"""For a look at who has left; there is another one soon."""


def do(stack: Stack, control: Control) -> Answer:
    """Raises CliError, and what the stack raises."""
    if control.deed is Deed.ADD_NODE:
        return add_node(stack, control)
    name = control.name
    states = {status.name: status.state for status in stack.supervisor.status()}
    down = nodes_there(stack) - states.keys()
    may = {*states, *down} if control.deed in (Deed.START, Deed.REMOVE) else {*states}
    server = stack.servers.get(name)
    if control.accepts and not is_node(name):
        raise CliError(f"{name} is no node: it has no data of its own to go on without.", "")
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
        case Deed.START if states.get(name) is State.RUNNING:
            raise CliError(f"{name} runs already.", f"`stele stack restart {name}` starts it anew.")
        case Deed.START:
            stack.start_one(name, control.accepts)
        case Deed.RESTART:
            stack.stop_one(name)
            stack.start_one(name)
    return Answer(name=name, url="" if control.deed is Deed.REMOVE else stack.url(name))


def _unknown(stack: Stack, name: str, known: set[str]) -> CliError:
    """What to say of a process that is not there."""
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


def _do_to_server(stack: Stack, server: Server, control: Control) -> Answer:
    """Services wait meanwhile for a server that is stopped or killed: nobody starts it but who asks for it."""
    name, deed = control.name, control.deed
    if deed is Deed.REMOVE:
        text = f"{name} serves everything else of the stack: only nodes are removed."
        raise CliError(text, "`stele stack down --purge` deletes it all.")
    if deed is Deed.START and server.is_running():
        raise CliError(f"{name} runs already.", f"`stele stack restart {name}` starts it anew.")
    if deed is Deed.KILL:
        stack.servers.kill(name)
    if deed in (Deed.STOP, Deed.RESTART):
        stack.servers.stop(name)
    if deed in (Deed.START, Deed.RESTART):
        stack.servers.start(name)
    stack.write_stack_file()
    return Answer(name=name, url=server.address_text)


def add_node(stack: Stack, control: Control) -> Answer:
    """Start one more node; one that replaces another stands where that one does, unless told otherwise."""
    taken = {status.name for status in stack.supervisor.status()} | folder_names(stack)
    number = next(n for n in range(1, len(taken) + 2) if f"n{n}" not in taken)
    spec = node_specs(number)[-1]
    dc, rack = control.dc, control.rack
    if control.replace:
        known = nodes_there(stack) | {*stack.node_names()}
        if control.replace not in known:
            text = f"There is no node '{control.replace}' in this stack, so nothing was started."
            raise CliError(text, f"Known: {', '.join(sorted(known))}.")
        dead = stack.node_spec(int(control.replace[1:])).env
        dc, rack = dc or dead["STELE_DC"], rack or dead["STELE_RACK"]
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
    return Answer(name=spec.name, url=stack.url(spec.name))


def folder_names(stack: Stack) -> set[str]:
    """The nodes that ever had a folder in this stack."""
    return {f"n{number}" for number in node_numbers(stack.directory / "services")}


def nodes_there(stack: Stack) -> set[str]:
    """Those of which there is more than the name."""
    return {name for name in folder_names(stack) if not stack.was_removed(name)}


def note_who_left(stack: Stack) -> None:
    """Have no later stack start a node that has left the cluster: there is nothing left to do for it."""
    try:
        client = Client(
            find_places((), stack.directory, {}),
            timeout_s=LOOK_TIMEOUT_S,
            retry_for_s=LOOK_TIMEOUT_S,
        )
        try:
            nodes = Reading(client, level="local").nodes()
        finally:
            client.close()
    except CliError:
        return  # nobody answers now
    ours = folder_names(stack)
    for node in nodes:
        if (
            node.state is NodeState.LEFT
            and node.node_id in ours
            and not stack.why_down(node.node_id)
        ):
            stack.keep_down(node.node_id, "it has left the cluster")
