"""What the page asks to be done: the words of the plan first, then the command under an id of its own."""

import io
import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Annotated, Final, cast
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta
from rich.console import Console
from rich.text import Text

from stele.console.operations import BY_NAME, Known, Operation
from stele.console.upstream import AwayError, Upstream
from stele.domain.base import Command
from stele.domain.commands import AnyCommand, Envelope, command_name
from stele.runtime.answers.node import NodeView
from stele.runtime.answers.plans import PlanAnswer
from stele.runtime.callers import Caller
from stele.runtime.http import ErrorCode, HttpError
from stele.runtime.request_ids import new_request_id
from stele.words.given import GivenError
from stele.words.plan import plan_parts

PLAN_WIDTH: Final = 100
ORIGIN: Final = "console"
NODE_S: Final = 5.0


class PlanAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An operation by its name, and its fields as text. It is only planned."""

    operation: str
    fields: dict[str, str] = {}


class CommandAsked(PlanAsked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same to be done; who asks and why. The same ``request_id`` sent again has the same outcome."""

    reason: Annotated[str, Meta(max_length=1000)]
    actor: Annotated[str, Meta(max_length=100)] = ""
    request_id: Annotated[str, Meta(max_length=36)] = ""
    planned: Annotated[str, Meta(max_length=64)] = ""
    """``mark_of`` the plan that was looked at; empty: none was."""


def operation_of(asked: PlanAsked) -> Operation:
    """Raises HttpError."""
    found = BY_NAME.get(asked.operation)
    if found is None:
        text = f"There is no operation '{asked.operation[:80]}'."
        hint = f"There are {', '.join(BY_NAME)}; all else is asked for on the command line."
        raise HttpError(400, ErrorCode.INVALID_REQUEST, text, hint=hint)
    return found


async def command_of(asked: PlanAsked, request_id: str, upstream: Upstream) -> Command:
    """The command; a node that comes in is asked who it is. Raises HttpError."""
    operation = operation_of(asked)
    try:
        values = operation.read(asked.fields)
    except GivenError as error:
        raise HttpError(400, ErrorCode.INVALID_REQUEST, error.message, hint=error.hint) from error
    node = await _node_at(values["address"], upstream) if operation.comes else None
    return operation.make(values, Known(request_id, node))


async def envelope_of(
    asked: CommandAsked, upstream: Upstream, caller: Caller | None = None, log_id: str = ""
) -> Envelope:
    """``caller`` is whose token was shown, ``log_id`` is of the log that the page shows.

    Raises HttpError where the reason is missing, the command cannot be made, or is not for the caller: of a
    metadata-log that asks nobody for a token this is all that keeps him.
    """
    if not any(each.isprintable() and not each.isspace() for each in asked.reason):
        hint = "Say why: the log keeps it for those who ask later."
        raise HttpError(400, "reason_missing", "There is no reason.", hint=hint)
    request_id, actor = asked.request_id or new_request_id(), asked.actor.strip()
    command = await command_of(asked, request_id, upstream)
    if caller is not None:
        caller.check(command_name(command))
        actor = caller.actor(actor)
    return Envelope(
        request_id=request_id,
        command=cast(AnyCommand, command),
        actor=actor or ORIGIN,
        reason=" ".join(asked.reason.split()),
        origin=ORIGIN,
        log_id=log_id,
    )


async def _node_at(address: str, upstream: Upstream) -> NodeView:
    """Who the node at an address is. Raises HttpError."""
    url = (address if "://" in address else f"http://{address}").rstrip("/")
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_address = False
    if not is_address:
        text = f"'{address[:80]}' is no address of a node."
        raise HttpError(400, ErrorCode.INVALID_REQUEST, text, hint="Give http://HOST:PORT.")
    hint = "Start it with STELE_JOIN=no, and give the address that it prints."
    try:
        answer = await upstream.one(f"{url}/v1/node", NODE_S)
        return msgspec.json.decode(answer.body, type=NodeView)
    except AwayError as error:
        raise HttpError(409, "node_away", f"{error}.", hint=hint) from error
    except msgspec.DecodeError as error:
        raise HttpError(
            409, "no_node", f"What answers at {url[:80]} is no data node.", hint=hint
        ) from error


def mark_of(found: PlanAnswer) -> str:
    """Equal for plans that do the same; what changes all the time, such as bytes and shares, does not count.

    Nor do names of placements: one that is yet to come has another name each time.
    """
    plan = found.plan
    told = (
        found.verdict,
        "" if found.failure is None else found.failure.code,
        "" if plan.refusal is None else plan.refusal.code,
        plan.excludes,
        plan.steps,
        plan.receivers,
        [(g.node_id, g.ranges, g.share, g.sources, g.needed) for g in plan.gains],
        plan.foreseen,
        [concern.message for concern in plan.concerns],
        [(each.keyspaces, each.changing) for each in plan.placements],
    )
    return blake2b(msgspec.json.encode(told), digest_size=16).hexdigest()


def plan_text(found: PlanAnswer, names: Mapping[str, str]) -> str:
    """What ``stele ... --dry-run`` prints."""
    out = io.StringIO()
    console = Console(
        file=out, width=PLAN_WIDTH, highlight=False, color_system=None, markup=False, emoji=False
    )
    for part in plan_parts(found, names):
        console.print(part, soft_wrap=isinstance(part, Text))
    return re.sub(r"[ \t]+\n", "\n", out.getvalue())
