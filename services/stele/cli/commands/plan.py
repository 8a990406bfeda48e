"""``stele plan ...``: the commands for operations with their own arguments, without effect.

Each subcommand is the command itself with the options of a plan instead of those of a change. It
asks a coordinator. ``stele plan --file`` asks no service: it plans the tablets of a described
cluster.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.text import Text

from stele.cli.client import Client, decode, refusal_of
from stele.cli.commands import (
    cdc,
    keyspace,
    table,
    tablet,
    topology,
)
from stele.cli.errors import UsageError
from stele.cli.options import Planning, PlanOptions
from stele.cli.output import console, print_json
from stele.cli.reading import StateReading
from stele.domain.commands import AnyCommand
from stele.runtime.answers.plans import PlanAnswer, PlanVerdict
from stele.words.plan import plan_parts

COMMANDS: dict[str, Callable[..., int]] = {
    "join": topology.join,
    "replace": topology.replace,
    "decommission": topology.decommission,
    "move": topology.move,
    "rebuild": topology.rebuild,
    "remove": topology.remove,
    "exclude": topology.exclude,
    "alter-keyspace": keyspace.alter,
    "drop-keyspace": keyspace.drop,
    "drop-table": table.drop,
    "move-tablet": tablet.move,
    "add-replica": tablet.add_replica,
    "delete-replica": tablet.delete_replica,
    "resize-table": table.resize,
    "repair-table": table.repair,
    "snapshot-table": table.snapshot,
    "restore-table": table.restore,
    "restore-tablet": table.restore_tablet,
    "truncate": topology.truncate,
    "new-cdc-generation": cdc.new_generation,
}

app = App(
    name="plan",
    help="Show what a command would do, as the coordinator of a cluster plans it. With --file: how the "
    "balancer would move the tablets of the cluster in a file, without a cluster. Nothing is done.",
)


@app.default
def plan_file(
    *,
    file: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Plan the tablets of a described cluster, with no cluster at hand (docs/guides/plan_tablets_offline.md).

    Parameters
    ----------
    file
        A JSON file with nodes, tables and options; - is standard input.
    as_json
        All moves, in the order in which they can be made, as JSON.
    """
    if file is None:
        raise UsageError(
            "Say what to plan: --file FILE, or the command that is to be planned.",
            "`stele plan --help` lists them.",
        )
    from stele.cli.commands.balance import show_balance  # noqa: PLC0415 - numpy takes a moment

    return show_balance(file, as_json=as_json)


def planned(command: Callable[..., int]) -> Callable[..., int]:
    """Return the command with ``plan`` options for its ``change``.

    Planning needs no confirmation.
    """
    signature = inspect.signature(command, eval_str=True)
    parameters = [
        parameter.replace(name="plan", annotation=PlanOptions, default=PlanOptions())
        if parameter.name == "change"
        else parameter
        for parameter in signature.parameters.values()
        if parameter.name != "yes"
    ]

    shown = signature.replace(parameters=parameters)

    def run(*values: Any, **more: Any) -> int:
        given = shown.bind(*values, **more).arguments
        options: PlanOptions = given.pop("plan", PlanOptions())
        bound = signature.bind_partial()
        bound.arguments.update(given)
        bound.arguments["change"] = Planning(
            as_json=options.as_json, bytes_per_s=options.bytes_per_s
        )
        bound.apply_defaults()
        return command(*bound.args, **bound.kwargs)

    run.__doc__ = command.__doc__
    run.__name__ = command.__name__
    run.__signature__ = shown  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": int}
    return run


for name, each in COMMANDS.items():
    app.command(planned(each), name=name)


def show_plan(client: Client, planning: Planning, *commands: AnyCommand) -> int:
    """Print the plan of commands as one operation. Return 1 when it would fail.

    Raises CliError when one of the commands is refused.
    """
    body = {
        "command": commands[0],
        "together": commands[1:],
        "actor": planning.actor,
        "bytes_per_s": planning.bytes_per_s,
    }
    answer = client.post("coordinator", "/v1/plan", body)
    if not answer.is_success:
        raise refusal_of(answer)
    found = decode(answer.content, PlanAnswer)
    if planning.as_json:
        print_json(answer.content)
    else:
        out = console()
        names = StateReading(client, found.epoch).names(found.plan.requests())
        for part in plan_parts(found, names):
            out.print(part, soft_wrap=isinstance(part, Text))
    return 1 if found.verdict is PlanVerdict.FAILS else 0
