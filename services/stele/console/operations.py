"""The operations of the page: their forms, their plans, and the commands that they send.

A field is text, as in a form and on the command line, and is parsed as on the command line. Numbers
beyond a browser's exact integers therefore stay whole.
"""

import io
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from typing import Annotated, Any, Final, NamedTuple, cast
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta
from rich.console import Console
from rich.text import Text

from stele.console.upstream import AwayError, Upstream
from stele.domain.commands import (
    COMMANDS,
    AnyCommand,
    Command,
    CreateKeyspace,
    Envelope,
    KeyspaceRfChange,
    MoveTablets,
    SwitchBalancingOff,
    command_name,
)
from stele.domain.model.operations import TabletMove
from stele.domain.model.requests import is_id, time_ms
from stele.runtime.answers.node import NodeView
from stele.runtime.answers.plans import PlanAnswer
from stele.runtime.callers import Caller
from stele.runtime.http import ErrorCode, HttpError
from stele.runtime.request_ids import new_request_id
from stele.words import GivenError
from stele.words.explain import waiting_line
from stele.words.given import join_of, replace_of, replication_of, span_ms, tokens_of
from stele.words.operations import TEXTS, Field, OperationText
from stele.words.plan import plan_parts

MOST_CHARS: Final = 4000
"""Limit of the text of one field."""
MOST_DIGITS: Final = 18
WITHOUT_PLAN: Final = frozenset(
    {"cancel", "cleanup", "create-keyspace", "create-table", "balance-off", "balance-on"}
)
"""Operations that are carried out at once."""


class OperationInputs(msgspec.Struct, frozen=True):
    """Inputs of a command besides its fields: its request id, and the view of a new node."""

    request_id: str
    node: NodeView | None = None

    @property
    def asked_ms(self) -> int:
        """The time of the request, from its id.

        The same request sent again makes the same command.
        """
        return time_ms(self.request_id) if is_id(self.request_id) else 0

    @property
    def comer(self) -> NodeView:
        assert self.node is not None
        return self.node


class PageOperation(NamedTuple):
    """An operation of the page."""

    text: OperationText

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.text.fields

    @property
    def plans(self) -> bool:
        """False if it is carried out at once."""
        return self.text.name not in WITHOUT_PLAN

    @property
    def comes(self) -> bool:
        """True if a node is added. The console reads its identity from the node at ``address``."""
        return self.text.name in ("join", "replace")

    def make(self, values: dict[str, Any], inputs: OperationInputs) -> Command:
        """Return the command, from the values of all fields."""
        made = _MAKERS.get(self.text.name)
        if made is not None:
            return made(values, inputs)
        named = {field.key or field.name: values[field.name] for field in self.fields}
        return _COMMANDS[self.text.command](**named)

    def read(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """Return the values of all fields; missing ones are read as empty. Raises GivenError."""
        unknown = sorted({*texts} - {field.name for field in self.fields})
        if unknown:
            known = ", ".join(field.name for field in self.fields)
            hint = f"Reload the page; a program gives {known or 'none'}."
            raise GivenError(f"{self.text.title} has no field '{unknown[0][:80]}'.", hint)
        return {
            field.name: _read(field, texts.get(field.name, "").strip()) for field in self.fields
        }

    def command_line(self, texts: Mapping[str, str]) -> str:
        """Return the same operation as a command line."""
        return " ".join(["stele", self.text.line, *self._arguments(texts)])

    def _arguments(self, texts: Mapping[str, str]) -> Iterator[str]:
        for field in sorted(self.fields, key=lambda each: bool(each.option)):
            text = texts.get(field.name, "").strip()
            if not text or (field.kind == "flag" and text != "true"):
                continue
            if field.kind == "flag":
                yield field.option
            elif field.kind == "nodes":
                parts = map(shlex.quote, _each(text))
                yield " ".join(f"{field.option} {part}" if field.option else part for part in parts)
            elif text.startswith("-"):
                yield f"{field.option}={shlex.quote(text)}"
            else:
                yield f"{field.option} {shlex.quote(text)}".strip()


def _read(field: Field, text: str) -> Any:
    if not text and field.is_needed:
        raise GivenError(f"{field.label} is missing.", "Give it.")
    if len(text) > MOST_CHARS:
        raise GivenError(f"{field.label} is too long.", f"Give at most {MOST_CHARS} characters.")
    reader = READERS.get(field.kind)
    return text if reader is None else reader(text, field)


def _number(text: str, field: Field) -> int | None:
    if text and not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS):
        raise GivenError(f"{field.label} '{text[:40]}' is no whole number.", "Give digits.")
    return int(text) if text else None


READERS: Final[dict[str, Callable[[str, Field], Any]]] = {
    "flag": lambda text, _: text == "true",
    "nodes": lambda text, _: tuple(_each(text)),
    "tokens": lambda text, _: tokens_of(text),
    "replication": lambda text, _: replication_of((text,) if text else ()),
    "span": lambda text, field: span_ms(text, field.option) if text else 0,
    "number": _number,
}


def _each(text: str) -> list[str]:
    return [part for part in text.replace(",", " ").split() if part]


def _create_keyspace(v: dict[str, Any], _: OperationInputs) -> Command:
    copies, racks = v["replication"]
    initial = v["initial_tablets"] or 0
    return CreateKeyspace(
        v["name"], {**copies}, tablets=v["tablets"], initial_tablets=initial, racks={**racks}
    )


def _alter_keyspace(v: dict[str, Any], _: OperationInputs) -> Command:
    copies, racks = v["replication"]
    return KeyspaceRfChange(v["name"], {**copies}, v["force"], {**racks})


def _move_tablet(v: dict[str, Any], _: OperationInputs) -> Command:
    move = TabletMove(
        table=v["table"], tablet=v["tablet"], from_node=v["from"], to_node=v["to"], force=v["force"]
    )
    return MoveTablets((move,))


def _balance_off(v: dict[str, Any], known: OperationInputs) -> Command:
    until_ms = known.asked_ms + v["lasting"] if v["lasting"] else 0
    return SwitchBalancingOff(name=v["name"], until_ms=until_ms)


def _join(_: dict[str, Any], known: OperationInputs) -> Command:
    return join_of(known.comer)


def _replace(v: dict[str, Any], known: OperationInputs) -> Command:
    return replace_of(known.comer, v["dead"], v["ignore"], force=v["force"])


_MAKERS: Final[dict[str, Callable[[dict[str, Any], OperationInputs], Command]]] = {
    "join": _join,
    "replace": _replace,
    "create-keyspace": _create_keyspace,
    "alter-keyspace": _alter_keyspace,
    "move-tablet": _move_tablet,
    "balance-off": _balance_off,
}
"""Functions for commands whose fields are not those of the operation."""
_COMMANDS: Final = {str(each.__struct_config__.tag): each for each in COMMANDS}
OPERATIONS: Final = {name: PageOperation(text) for name, text in TEXTS.items()}


def operation_forms() -> list[dict[str, Any]]:
    """Return the operations as the page receives them."""
    return [
        {
            "name": each.text.name,
            "title": each.text.title,
            "about": each.text.about,
            "plans": each.plans,
            "fields": [msgspec.to_builtins(field) for field in each.fields],
        }
        for each in OPERATIONS.values()
    ]


PLAN_WIDTH: Final = 100
ORIGIN: Final = "console"
NODE_S: Final = 5.0


class PlanAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to plan an operation: its name, and its fields as text."""

    operation: str
    fields: dict[str, str] = {}


class CommandAsked(PlanAsked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to carry out an operation, with actor and reason.

    The same ``request_id`` sent again has the same outcome.
    """

    reason: Annotated[str, Meta(max_length=1000)]
    actor: Annotated[str, Meta(max_length=100)] = ""
    request_id: Annotated[str, Meta(max_length=36)] = ""
    planned: Annotated[str, Meta(max_length=64)] = ""
    """``mark_of`` the plan that the user confirmed; empty if there was none."""


def operation_of(asked: PlanAsked) -> PageOperation:
    """Return the operation of a request. Raises HttpError."""
    found = OPERATIONS.get(asked.operation)
    if found is None:
        text = f"There is no operation '{asked.operation[:80]}'."
        hint = f"There are {', '.join(OPERATIONS)}; all else is asked for on the command line."
        raise HttpError(400, ErrorCode.INVALID_REQUEST, text, hint=hint)
    return found


async def command_of(asked: PlanAsked, request_id: str, upstream: Upstream) -> Command:
    """Return the command. The identity of a new node is read from the node. Raises HttpError."""
    operation = operation_of(asked)
    try:
        values = operation.read(asked.fields)
    except GivenError as error:
        raise HttpError(400, ErrorCode.INVALID_REQUEST, error.message, hint=error.hint) from error
    node = await _node_at(values["address"], upstream) if operation.comes else None
    return operation.make(values, OperationInputs(request_id, node))


async def envelope_of(
    asked: CommandAsked, upstream: Upstream, caller: Caller | None = None, log_id: str = ""
) -> Envelope:
    """Return the envelope of a command.

    ``caller`` is the owner of the token, ``log_id`` is of the log that the page shows. Raises
    HttpError when the reason is missing, the command cannot be made, or the caller may not send it.
    If the metadata-log requires no token, this is the only check of the caller.
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
    """Return the node's view of itself at an address. Raises HttpError."""
    url = (address if "://" in address else f"http://{address}").rstrip("/")
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_address = False
    if not is_address:
        text = f"'{address[:80]}' is not an address of a node."
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
    """Return a digest that is equal for plans that do the same.

    Values that change all the time, such as bytes and shares, do not count. Names of placements do
    not count either, because a placement that is not yet created gets another name each time.
    """
    plan = found.plan
    consequences = (
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
    return blake2b(msgspec.json.encode(consequences), digest_size=16).hexdigest()


def verdict_text(found: PlanAnswer) -> str:
    """Return why the command would wait or fail; empty if it would start at once."""
    if found.failure is not None:
        return f"{found.failure.message} {found.failure.hint}".rstrip()
    return "" if found.wait is None else f"It {waiting_line(found.wait, 'would wait')}."


def plan_text(found: PlanAnswer, names: Mapping[str, str]) -> str:
    """Return the output of ``stele ... --dry-run``."""
    out = io.StringIO()
    console = Console(
        file=out, width=PLAN_WIDTH, highlight=False, color_system=None, markup=False, emoji=False
    )
    for part in plan_parts(found, names):
        console.print(part, soft_wrap=isinstance(part, Text))
    return re.sub(r"[ \t]+\n", "\n", out.getvalue())
