"""``stele stack``: a whole cluster on this machine, and each of its processes."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from contextlib import closing
from typing import Annotated, Literal

from cyclopts import App, Parameter, validators

from stele.cli.client import Client
from stele.cli.errors import CliError
from stele.cli.options import Force, Format, Here
from stele.cli.output import print_line
from stele.cli.places import find_places, is_held, says_where
from stele.cli.reading import StateReading
from stele.domain.names import NodeState
from stele_harness.stack.control import (
    Control,
    ControlAnswer,
    Deed,
    all_run,
    ask_stack,
    with_servers,
)
from stele_harness.stack.folders import is_node
from stele_harness.stack.foreground import StackOptions, run_in_foreground, start_detached
from stele_harness.stack.lifecycle import (
    bring_down,
    departed_nodes,
    empty,
    require_stack,
    settle,
    stack_table,
    tail_log,
    why_given_up,
)
from stele_harness.stack.supervisor import ProcessState

app = App(name="stack", help="Broker, Redis, services and nodes as processes of this machine.")

ADD_NODE_DEADLINE_S = 240.0


@app.command
def up(
    *,
    brokers: Annotated[Literal[1, 3], Parameter(name="--brokers")] = 1,
    nodes: Annotated[int, Parameter(name="--nodes", validator=validators.Number(gte=0))] = 3,
    cluster: Annotated[str, Parameter(name="--cluster")] = "stele",
    detach: Annotated[bool, Parameter(name="--detach", negative="")] = False,
    without: Annotated[tuple[str, ...], Parameter(name="--without", negative="")] = (),
    cdc: Annotated[bool, Parameter(name="--cdc", negative="")] = False,
    found: Annotated[bool, Parameter(name="--found", negative="--no-found")] = True,
    where: Here = Here(),
) -> int:
    """Start a cluster on this machine, and keep it running with a live table until Ctrl-C.

    Args:
        brokers: Kafka brokers: 1, or 3 with replication.
        nodes: Number of data nodes n1, n2 ... in racks r1, r2, r3 in turn.
        cluster: Name of the cluster.
        detach: Return when all processes are up; `stele stack down` stops them.
        without: A service that is not started, such as placements (Spark); may be repeated.
        cdc: Start the connector too, which publishes the changes of captured tables to Kafka.
        found: Create the cluster if the log is empty. With --no-found it waits for `stele found`, which can
            begin with a dump.
    """
    options = StackOptions(
        directory=where.directory.resolve(),
        cluster=cluster,
        brokers=brokers,
        nodes=nodes,
        without=without,
        cdc=cdc,
        found=found,
    )
    return start_detached(options) if detach else run_in_foreground(options)


@app.command
def status(form: Format = Format(), where: Here = Here()) -> int:
    """List the processes. Exit status 0 when all run."""
    stack = with_servers(require_stack(where.directory))
    if form.is_document:
        form.print_document(stack)
    else:
        form.print_table(stack_table(stack))
        for service in stack.services:
            if service.state == ProcessState.GIVEN_UP:
                error = CliError(*why_given_up(where.directory, service))
                form.note(error.line())
        for name in departed_nodes(where.directory, stack):
            form.note(f"{name} has left the cluster; `stele stack remove {name}` deletes it.")
    return 0 if all_run(stack) else 1


@app.command
def env(where: Here = Here()) -> None:
    """Print the addresses of the stack as shell variables: eval "$(stele stack env)".

    Variables with addresses of other clusters are unset.
    """
    told = require_stack(where.directory).environment
    for name in sorted(name for name in os.environ if says_where(name) and name not in told):
        print(f"unset {name}")
    for name, value in sorted(told.items()):
        print(f"export {name}={shlex.quote(value)}")


@app.command
def logs(
    name: str,
    /,
    *,
    lines: Annotated[int, Parameter(name=("--lines", "-n"))] = 40,
    where: Here = Here(),
) -> None:
    """Print the end of a process's log.

    Args:
        name: metadata-log, coordinator, n1 ... or broker-1.
        lines: Number of lines.
    """
    for line in tail_log(where.directory, name, lines):
        print_line(line)


@app.command
def down(
    *,
    purge: Annotated[bool, Parameter(name="--purge", negative="")] = False,
    where: Here = Here(),
) -> None:
    """Stop all processes. The data stays in --dir.

    Args:
        purge: Also delete the data, even if no stack is running.
    """
    if not purge or is_held(where.directory):
        bring_down(where.directory)
    if purge:
        empty(where.directory)
        print_line(f"Stopped. {where.directory} is deleted.")
        return
    print_line(f"Stopped. The data is in {where.directory / 'services'}; --purge deletes it.")


@app.command(name="add-node")
def add_node(
    *,
    dc: Annotated[str, Parameter(name="--dc")] = "",
    rack: Annotated[str, Parameter(name="--rack")] = "",
    num_tokens: Annotated[int | None, Parameter(name="--num-tokens")] = None,
    shards: Annotated[int | None, Parameter(name="--shards")] = None,
    join: Annotated[bool, Parameter(name="--join", negative="--no-join")] = True,
    replace: Annotated[str, Parameter(name="--replace")] = "",
    where: Here = Here(),
) -> None:
    """Start one more data node, which asks to join.

    Args:
        dc: Datacentre of the node; default: dc1.
        rack: Rack of the node; default: r1, r2, r3 in turn, or that of the replaced node.
        num_tokens: Number of tokens; 0: the node holds no data; default: 16.
        shards: Number of shards for tablets; default: 1.
        join: Ask to join. With --no-join, use `stele join URL` later.
        replace: A dead node whose place, tokens and data the node takes.
    """
    require_stack(where.directory)
    control = Control(
        dc=dc, rack=rack, num_tokens=num_tokens, shards=shards, join=join, replace=replace
    )
    answer = ask_stack(where.directory, control, ADD_NODE_DEADLINE_S)
    _tell_started(where, answer, joins=join)


@app.command
def stop(name: str, /, where: Here = Here()) -> None:
    """Stop one process. It stays down until `stele stack start NAME`, or the next `stele stack up`.

    Args:
        name: metadata-log, coordinator, n1 ... broker-1, redis.
    """
    _do(where, Deed.STOP, name)
    print_line(f"{name} is stopped. `stele stack start {name}{where.again}` starts it again.")


@app.command
def start(
    name: str,
    /,
    *,
    accept_older_copy: Annotated[str, Parameter(name="--accept-older-copy")] = "",
    accept_lost_epochs: Annotated[str, Parameter(name="--accept-lost-epochs")] = "",
    where: Here = Here(),
) -> None:
    """Start a process that was stopped or killed, or that failed too often.

    Args:
        name: metadata-log, coordinator, n1 ... broker-1, redis.
        accept_older_copy: Start a node with an older copy of its data directory. Give the number of
            heartbeats from its error. Its later acknowledged writes are lost on it.
        accept_lost_epochs: Start a node whose acknowledged epochs were lost with the log. Give the log id
            from its error.
    """
    wanted = {
        "STELE_ACCEPT_OLDER_COPY": accept_older_copy,
        "STELE_ACCEPT_LOST_EPOCHS": accept_lost_epochs,
    }
    accepts = {setting: value for setting, value in wanted.items() if value}
    _tell_started(where, _do(where, Deed.START, name, accepts))


@app.command
def restart(name: str, /, where: Here = Here()) -> None:
    """Restart one process.

    Args:
        name: metadata-log, coordinator, n1 ... broker-1, redis.
    """
    _tell_started(where, _do(where, Deed.RESTART, name))


@app.command
def kill(name: str, /, where: Here = Here()) -> None:
    """Kill one process, as if its machine were gone. It stays down until `stele stack start NAME`.

    A killed node stays down even after `stele stack up`.

    Args:
        name: metadata-log, coordinator, n1 ... broker-1, redis.
    """
    _do(where, Deed.KILL, name)
    print_line(_dead(name, where.again))


@app.command
def remove(
    name: str,
    /,
    *,
    force: Force = False,
    where: Here = Here(),
) -> None:
    """Stop a node that is not a member, and delete its data. Its name is not used again.

    Args:
        name: n1, n2 ...
        force: Also remove a member. Data that only it has is lost.
    """
    require_stack(where.directory)
    if not force:
        with closing(Client(find_places((), where.directory, {}))) as client:
            known = next((n for n in StateReading(client).nodes() if n.node_id == name), None)
        if known is not None and known.state is not NodeState.LEFT:
            raise CliError(
                f"{name} is a member ({known.state}).",
                f"`stele decommission {name}` moves its data away; `stele remove {name}` removes it if "
                "it is dead; --force deletes its data as it is.",
            )
    _do(where, Deed.REMOVE, name)
    print_line(f"{name} and its data are gone; its name is not used again.")


def _do(
    where: Here, deed: Deed, name: str, accepts: Mapping[str, str] | None = None
) -> ControlAnswer:
    require_stack(where.directory)
    control = Control(deed=deed, name=name, accepts=dict(accepts or {}))
    return ask_stack(where.directory, control, ADD_NODE_DEADLINE_S)


def _tell_started(where: Here, answer: ControlAnswer, *, joins: bool = True) -> None:
    """Print the address of a started process and how to follow its join.

    Raises CliError for a node that ends because it cannot run.
    """
    request_id = settle(where.directory, answer.name) if joins and is_node(answer.name) else ""
    print_line(f"{answer.name} runs at {answer.url}")
    if request_id:
        follow = f"`stele request follow {request_id}` shows how it joins."
        print_line(follow)


def _dead(name: str, typed: str) -> str:
    start = f"`stele stack start {name}{typed}`"
    if is_node(name):
        return (
            f"{name} is dead. `stele remove {name}{typed}` removes it from the cluster, `stele stack add-node"
            f" --replace {name}{typed}` puts a new node in its place. {start} brings it back."
        )
    return f"{name} is dead. {start} starts it again."
