"""Requests a plan of commands and prints it."""

from __future__ import annotations

from rich.text import Text

from stele.cli.client import Client, decode, refusal_of
from stele.cli.options import Planning
from stele.cli.output import console, print_json
from stele.cli.reading import StateReading
from stele.domain.commands import AnyCommand
from stele.runtime.answers.plans import PlanAnswer, PlanVerdict
from stele.words.plan import plan_parts


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
