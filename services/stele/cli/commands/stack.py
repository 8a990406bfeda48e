"""``stele stack up|status|logs|down|add-node``: a whole cluster on this machine."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import App, Parameter, validators

from stele.cli.local.control import Control, ask_stack
from stele.cli.local.foreground import StackOptions, run_in_foreground, start_detached
from stele.cli.local.lifecycle import bring_down, require_stack
from stele.cli.local.table import stack_table, tail_log
from stele.cli.options import Json, Where
from stele.cli.output import console, print_value_as_json

app = App(name="stack", help="Broker, Redis, services and nodes as processes of this machine.")

ADD_NODE_DEADLINE_S = 60.0


@app.command
def up(
    *,
    brokers: Annotated[Literal[1, 3], Parameter(name="--brokers")] = 1,
    nodes: Annotated[int, Parameter(name="--nodes", validator=validators.Number(gte=0))] = 3,
    cluster: Annotated[str, Parameter(name="--cluster")] = "stele",
    detach: Annotated[bool, Parameter(name="--detach", negative="")] = False,
    without: Annotated[tuple[str, ...], Parameter(name="--without", negative="")] = (),
    where: Where = Where(),  # noqa: B008
) -> int:
    """Start everything and keep it running until Ctrl-C, with a live table.

    Args:
        brokers: Kafka brokers: 1, or 3 with replication.
        nodes: Data nodes n1, n2 ... in racks r1, r2, r3 in turn.
        cluster: The cluster's name.
        detach: Return when everything is up; `stele stack down` stops it.
        without: Services that are not started, such as placements (Spark).
    """
    options = StackOptions(
        directory=where.directory.resolve(),
        cluster=cluster,
        brokers=brokers,
        nodes=nodes,
        without=without,
    )
    return start_detached(options) if detach else run_in_foreground(options)


@app.command
def status(json: Json = Json(), where: Where = Where()) -> int:  # noqa: B008
    """The processes; exit status 0 when every one runs."""
    stack = require_stack(where.directory)
    if json.as_json:
        print_value_as_json(stack)
    else:
        console().print(stack_table(stack))
    return 0 if all(service.state == "running" for service in stack.services) else 1


@app.command
def logs(
    name: str,
    *,
    lines: Annotated[int, Parameter(name=("--lines", "-n"))] = 40,
    where: Where = Where(),  # noqa: B008
) -> None:
    """The end of a process's log.

    Args:
        name: metadata-log, coordinator, n1 ... or broker-1.
        lines: How many lines.
    """
    for line in tail_log(where.directory, name, lines):
        console().print(line, markup=False, soft_wrap=True)


@app.command
def down(where: Where = Where()) -> None:  # noqa: B008
    """Stop everything; the data stays in --dir."""
    bring_down(where.directory)
    console().print(f"Stopped. The data is in {where.directory / 'services'}.", soft_wrap=True)


@app.command(name="add-node")
def add_node(
    *,
    dc: Annotated[str, Parameter(name="--dc")] = "",
    rack: Annotated[str, Parameter(name="--rack")] = "",
    num_tokens: Annotated[int | None, Parameter(name="--num-tokens")] = None,
    shards: Annotated[int | None, Parameter(name="--shards")] = None,
    join: Annotated[bool, Parameter(name="--join", negative="--no-join")] = True,
    replace: Annotated[str, Parameter(name="--replace")] = "",
    where: Where = Where(),  # noqa: B008
) -> None:
    """Start one more data node; it asks to join by itself.

    Args:
        dc: Its datacentre; default: dc1.
        rack: Its rack; default: r1, r2, r3 in turn, or that of the node that it replaces.
        num_tokens: How many tokens it takes, none with 0; default: 16.
        shards: How many shards it has for tablets; default: 1.
        join: Whether the node asks to join; without it, use `stele join URL`.
        replace: A dead node whose place, tokens and data it takes.
    """
    require_stack(where.directory)
    control = Control(
        dc=dc, rack=rack, num_tokens=num_tokens, shards=shards, join=join, replace=replace
    )
    answer = ask_stack(where.directory, control, ADD_NODE_DEADLINE_S)
    console().print(f"{answer.name} runs at {answer.url}", soft_wrap=True)


@app.command(name="kill-node")
def kill_node(name: str, where: Where = Where()) -> None:  # noqa: B008
    """Kill a data node as if its machine were gone: it is not started again.

    Args:
        name: n1, n2 ...
    """
    require_stack(where.directory)
    answer = ask_stack(where.directory, Control(kill=name), ADD_NODE_DEADLINE_S)
    console().print(
        f"{answer.name} is dead. `stele remove {answer.name}` does without it, `stele stack add-node"
        f" --replace {answer.name}` puts a new node in its place.",
        soft_wrap=True,
    )
