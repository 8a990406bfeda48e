"""What the page may ask to be done: the words of the plan first, then the command under an id of its own."""

import io
import re
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from rich.console import Console
from rich.text import Text

from stele.domain.commands import Envelope
from stele.domain.requests.commands import Cancel
from stele.domain.topology.operations.commands import (
    Exclude,
    Leave,
    MoveNode,
    Rebuild,
    Remove,
)
from stele.runtime.answers.plans import PlanAnswer
from stele.runtime.http import HttpError
from stele.runtime.request_ids import new_request_id
from stele.words.plan import plan_parts

PLAN_WIDTH: Final = 100
ORIGIN: Final = "console"

Operation = Leave | Remove | MoveNode | Rebuild | Exclude
"""What the page can plan and ask for; whatever else the command line can is asked for there."""


class PlanAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An operation that is only planned."""

    command: Operation


class CommandAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command, who asks and why. The same ``request_id`` sent again has the same outcome."""

    command: Operation | Cancel
    reason: Annotated[str, Meta(max_length=1000)]
    actor: Annotated[str, Meta(max_length=100)] = ""
    request_id: Annotated[str, Meta(max_length=36)] = ""

    def envelope(self) -> Envelope:
        """Raises HttpError where the reason is missing."""
        if not self.reason.strip():
            raise HttpError(
                400,
                "reason_missing",
                "There is no reason.",
                hint="Say why: the log keeps it for those who ask later.",
            )
        return Envelope(
            request_id=self.request_id or new_request_id(),
            command=self.command,
            actor=self.actor.strip() or ORIGIN,
            reason=" ".join(self.reason.split()),
            origin=ORIGIN,
        )


def plan_text(found: PlanAnswer, names: Mapping[str, str]) -> str:
    """What ``stele ... --dry-run`` prints."""
    out = io.StringIO()
    console = Console(
        file=out, width=PLAN_WIDTH, highlight=False, color_system=None, markup=False, emoji=False
    )
    for part in plan_parts(found, names):
        console.print(part, soft_wrap=isinstance(part, Text))
    return re.sub(r"[ \t]+\n", "\n", out.getvalue())


def command_line(command: Operation | Cancel) -> str:
    """The same on the command line."""
    match command:
        case Cancel():
            return f"stele cancel {command.target}"
        case Leave():
            return f"stele decommission {command.node_id}"
        case Remove():
            ignored = "".join(f" --ignore {node}" for node in command.ignore_nodes)
            return f"stele remove {command.node_id}{ignored}{' --force' * command.force}"
        case MoveNode():
            tokens = ",".join(map(str, command.tokens))
            return f"stele move {command.node_id}{f' --tokens={tokens}' if tokens else ''}"
        case Rebuild():
            dc = f" --source-dc {command.source_dc}" if command.source_dc else ""
            return f"stele rebuild {command.node_id}{dc}{' --force' * command.force}"
        case Exclude():
            return f"stele exclude {' '.join(command.node_ids)}"
