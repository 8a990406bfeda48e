"""What the page can ask for: one row an operation, with its fields and the command that it becomes.

A field is text, as in a form and on the command line, and read as the command line reads it: so numbers beyond
what a browser can count stay whole.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from stele.domain.commands import (
    Cancel,
    Cleanup,
    Command,
    CreateKeyspace,
    CreateTable,
    DropKeyspace,
    DropTable,
    Exclude,
    KeyspaceRfChange,
    Leave,
    MoveNode,
    MoveTablets,
    Rebuild,
    Remove,
    RepairTable,
    ResizeTable,
    SwitchBalancingOff,
    SwitchBalancingOn,
    Truncate,
)
from stele.domain.requests.ids import is_id, time_ms
from stele.domain.topology.operations.commands import TabletMove
from stele.runtime.answers.node import NodeView
from stele.words.comers import join_of, replace_of
from stele.words.given import GivenError, replication_of, span_ms, tokens_of

Kind = Literal[
    "text", "node", "nodes", "keyspace", "table", "number", "flag", "tokens", "replication", "span"
]
MOST_CHARS: Final = 4000
"""Of one field."""
MOST_DIGITS: Final = 18


class Field(msgspec.Struct, frozen=True):
    """``option`` is how the command line names it; empty: it stands by itself, and is needed."""

    name: str
    label: str
    kind: Kind = "text"
    option: str = ""
    is_needed: bool = False


class Known(msgspec.Struct, frozen=True):
    """What a command needs beside its fields: its id, and for a node that comes in what it says of itself."""

    request_id: str
    node: NodeView | None = None

    @property
    def asked_ms(self) -> int:
        """By the id, so that it is the same command when it is sent again."""
        return time_ms(self.request_id) if is_id(self.request_id) else 0

    @property
    def comer(self) -> NodeView:
        assert self.node is not None
        return self.node


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """``line`` is its command line, ``about`` what it does; without ``plans`` it is done at once."""

    name: str
    title: str
    line: str
    about: str
    fields: tuple[Field, ...]
    plans: bool = True
    comes: bool = False
    """A node comes in, which is asked at ``address`` who it is."""
    make: Callable[[dict[str, Any], Known], Command]

    def read(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """The fields' values; none is left out. Raises GivenError."""
        unknown = sorted({*texts} - {field.name for field in self.fields})
        if unknown:
            known = ", ".join(field.name for field in self.fields)
            hint = f"Load the page anew; a program gives {known or 'none'}."
            raise GivenError(f"{self.title} has no field '{unknown[0][:80]}'.", hint)
        return {
            field.name: _read(field, texts.get(field.name, "").strip()) for field in self.fields
        }

    def command_line(self, texts: Mapping[str, str]) -> str:
        """The same on the command line."""
        return " ".join(["stele", self.line, *self._arguments(texts)])

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


def _create_keyspace(v: dict[str, Any], _: Known) -> Command:
    copies, racks = v["replication"]
    initial = v["initial_tablets"] or 0
    return CreateKeyspace(
        v["name"], {**copies}, tablets=v["tablets"], initial_tablets=initial, racks={**racks}
    )


def _alter_keyspace(v: dict[str, Any], _: Known) -> Command:
    copies, racks = v["replication"]
    return KeyspaceRfChange(v["name"], {**copies}, v["force"], {**racks})


def _move_tablet(v: dict[str, Any], _: Known) -> Command:
    move = TabletMove(
        table=v["table"], tablet=v["tablet"], from_node=v["from"], to_node=v["to"], force=v["force"]
    )
    return MoveTablets((move,))


def _balance_off(v: dict[str, Any], known: Known) -> Command:
    until_ms = known.asked_ms + v["lasting"] if v["lasting"] else 0
    return SwitchBalancingOff(name=v["name"], until_ms=until_ms)


def _join(_: dict[str, Any], known: Known) -> Command:
    return join_of(known.comer)


def _replace(v: dict[str, Any], known: Known) -> Command:
    return replace_of(known.comer, v["dead"], v["ignore"], force=v["force"])


NODE: Final = Field("node", "node", "node", is_needed=True)
KEYSPACE: Final = Field("name", "keyspace", "keyspace", is_needed=True)
TABLE: Final = Field("name", "table, as keyspace.table", "table", is_needed=True)
IGNORE: Final = Field("ignore", "others that are dead for good", "nodes", "--ignore")
FORCE: Final = Field("force", "give up what only dead nodes have", "flag", "--force")
ADDRESS: Final = Field("address", "the new node's http://host:port", is_needed=True)
REPLICATION: Final = Field(
    "replication",
    "replication, as dc1=3 or dc1=r1,r2,r3",
    "replication",
    "--replication",
    is_needed=True,
)
SCOPE: Final = Field("name", "keyspace or keyspace.table; empty: the whole cluster", "table")

CANCEL: Final = "cancel"
OPERATIONS: Final = (
    Operation(
        name=CANCEL,
        title="Cancel a request",
        line="cancel",
        about="It is undone as far as it has gone: the placements are those of before.",
        fields=(Field("request", "request", is_needed=True),),
        plans=False,
        make=lambda v, _: Cancel(v["request"]),
    ),
    Operation(
        name="join",
        title="Let a node join",
        line="join",
        about="A node that was started with STELE_JOIN=no becomes a member; others ask for it themselves.",
        fields=(ADDRESS,),
        comes=True,
        make=_join,
    ),
    Operation(
        name="decommission",
        title="Decommission a node",
        line="decommission",
        about="It streams its data to those who take over, then leaves for good.",
        fields=(NODE,),
        make=lambda v, _: Leave(v["node"]),
    ),
    Operation(
        name="replace",
        title="Replace a dead node",
        line="replace",
        about="A new node, started with STELE_JOIN=no, takes the place, the tokens and the data of a dead one.",
        fields=(Field("dead", "dead node", "node", is_needed=True), ADDRESS, IGNORE, FORCE),
        comes=True,
        make=_replace,
    ),
    Operation(
        name="remove",
        title="Remove a dead node",
        line="remove",
        about="Others take over the ranges of a node that is dead for good, from whoever has the data.",
        fields=(NODE, IGNORE, FORCE),
        make=lambda v, _: Remove(node_id=v["node"], ignore_nodes=v["ignore"], force=v["force"]),
    ),
    Operation(
        name="exclude",
        title="Declare nodes dead for good",
        line="exclude",
        about="Nothing waits for them any more, and they never serve again. Remove or replace them later.",
        fields=(Field("nodes", "nodes", "nodes", is_needed=True),),
        make=lambda v, _: Exclude(v["nodes"]),
    ),
    Operation(
        name="move",
        title="Give a node other tokens",
        line="move",
        about="While it serves: data moves to and from it, nothing else changes.",
        fields=(
            NODE,
            Field("tokens", "tokens, as 1,-2,3; empty: chosen anew", "tokens", "--tokens"),
        ),
        make=lambda v, _: MoveNode(node_id=v["node"], tokens=v["tokens"]),
    ),
    Operation(
        name="rebuild",
        title="Rebuild a node",
        line="rebuild",
        about="It streams everything that it replicates again, from the other replicas.",
        fields=(
            NODE,
            Field("source_dc", "from this datacentre only", option="--source-dc"),
            Field("force", "make do with the replicas that there are", "flag", "--force"),
        ),
        make=lambda v, _: Rebuild(node_id=v["node"], source_dc=v["source_dc"], force=v["force"]),
    ),
    Operation(
        name="cleanup",
        title="Clean nodes up",
        line="cleanup",
        about="Every normal node, or this one, deletes the data that is not its own.",
        fields=(Field("node", "only this node", "node", "--node"),),
        plans=False,
        make=lambda v, _: Cleanup(node_id=v["node"]),
    ),
    Operation(
        name="create-keyspace",
        title="Create a keyspace",
        line="keyspace create",
        about="With tablets its data is in tables, split into tablets that move one by one.",
        fields=(
            KEYSPACE,
            REPLICATION,
            Field("tablets", "in tablets", "flag", "--tablets"),
            Field(
                "initial_tablets", "tablets of a new table at least", "number", "--initial-tablets"
            ),
        ),
        plans=False,
        make=_create_keyspace,
    ),
    Operation(
        name="alter-keyspace",
        title="Change a keyspace's replication",
        line="keyspace alter",
        about="While it is read and written. A datacentre that is not named keeps no copies.",
        fields=(KEYSPACE, REPLICATION, FORCE),
        make=_alter_keyspace,
    ),
    Operation(
        name="drop-keyspace",
        title="Drop a keyspace",
        line="keyspace drop",
        about="Nobody serves it any more, then its name is free again.",
        fields=(KEYSPACE,),
        make=lambda v, _: DropKeyspace(v["name"]),
    ),
    Operation(
        name="create-table",
        title="Create a table",
        line="table create",
        about="In a keyspace with tablets it is split into these from the start.",
        fields=(
            TABLE,
            Field("colocate", "with the tablets of this table", "table", "--colocate-with"),
        ),
        plans=False,
        make=lambda v, _: CreateTable(v["name"], colocated_with=v["colocate"]),
    ),
    Operation(
        name="resize-table",
        title="Split or merge a table's tablets",
        line="table resize",
        about="While it is read and written. The balancer does so by itself, and later again.",
        fields=(
            TABLE,
            Field("tablets", "twice as many as it has, or half", "number", is_needed=True),
        ),
        make=lambda v, _: ResizeTable(v["name"], v["tablets"]),
    ),
    Operation(
        name="repair-table",
        title="Repair a table",
        line="table repair",
        about="Each replica of its tablets gets what the others have, while it is read and written.",
        fields=(
            TABLE,
            Field("nodes", "only replicas on these nodes", "nodes", "--nodes"),
            Field("dcs", "only replicas in these datacentres", "nodes", "--dcs"),
        ),
        make=lambda v, _: RepairTable(v["name"], v["nodes"], v["dcs"]),
    ),
    Operation(
        name="drop-table",
        title="Drop a table",
        line="table drop",
        about="Nobody serves it any more, then its name is free again.",
        fields=(TABLE,),
        make=lambda v, _: DropTable(v["name"]),
    ),
    Operation(
        name="truncate",
        title="Delete all data",
        line="truncate",
        about="Of a keyspace or of one table, on every replica. There is no way back once it has begun.",
        fields=(Field("name", "keyspace or keyspace.table", "table", is_needed=True),),
        make=lambda v, _: Truncate(v["name"]),
    ),
    Operation(
        name="move-tablet",
        title="Move a tablet",
        line="tablet move",
        about="A replica of it goes to another node, while it is read and written.",
        fields=(
            Field("table", "table, as keyspace.table", "table", is_needed=True),
            Field("tablet", "its number", "number", is_needed=True),
            Field("from", "from node", "node", "--from", is_needed=True),
            Field("to", "to node", "node", "--to", is_needed=True),
            FORCE,
        ),
        make=_move_tablet,
    ),
    Operation(
        name="balance-off",
        title="Pause balancing",
        line="balance off",
        about="The balancer leaves tablets where they are, and as many as they are.",
        fields=(
            SCOPE,
            Field(
                "lasting", "for, as 90s, 30m or 2h; empty: until it is switched on", "span", "--for"
            ),
        ),
        plans=False,
        make=_balance_off,
    ),
    Operation(
        name="balance-on",
        title="Resume balancing",
        line="balance on",
        about="The balancer moves, splits and merges tablets again. What was paused by another name stays so.",
        fields=(SCOPE,),
        plans=False,
        make=lambda v, _: SwitchBalancingOn(v["name"]),
    ),
)
BY_NAME: Final = {operation.name: operation for operation in OPERATIONS}


def shown() -> list[dict[str, Any]]:
    """The list as the page gets it."""
    return [
        {
            "name": each.name,
            "title": each.title,
            "about": each.about,
            "plans": each.plans,
            "fields": [msgspec.to_builtins(field) for field in each.fields],
        }
        for each in OPERATIONS
    ]
