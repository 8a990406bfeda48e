"""Texts of the operations that people ask for, in one table.

The command line, the console and the OpenAPI document take their texts from here. The table imports
nothing, so that `stele --help` stays quick.
"""

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal[
    "text", "node", "nodes", "keyspace", "table", "number", "flag", "tokens", "replication", "span"
]


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an operation, with a label that also explains it.

    ``option`` is its name on the command line. Without an ``option`` the field is positional.
    ``key`` is the name of the command's own field, if that is another.
    """

    name: str
    label: str
    kind: Kind = "text"
    option: str = ""
    is_needed: bool = False
    key: str = ""

    @property
    def sentence(self) -> str:
        return f"{self.label[:1].upper()}{self.label[1:]}."


@dataclass(frozen=True, slots=True)
class OperationText:
    """The texts of an operation. ``line`` is its command line, ``command`` the tag of its command."""

    name: str
    line: str
    command: str
    title: str
    about: str
    fields: tuple[Field, ...]

    def field_of(self, parameter: str) -> Field | None:
        """Return the field that a parameter of the command line has; None if it has no field."""
        for field in self.fields:
            option = field.option.removeprefix("--").replace("-", "_")
            if parameter in (field.name, field.key, option):
                return field
        return None


NODE: Final = Field("node", "name of the node", "node", is_needed=True, key="node_id")
KEYSPACE: Final = Field("name", "name of the keyspace", "keyspace", is_needed=True)
TABLE: Final = Field("name", "table, as keyspace.table", "table", is_needed=True)
SCOPE: Final = Field("name", "keyspace or keyspace.table; empty: the whole cluster", "table")
IGNORE: Final = Field("ignore", "other dead nodes", "nodes", "--ignore", key="ignore_nodes")
FORCE: Final = Field("force", "give up data that only dead nodes have", "flag", "--force")
FEWER: Final = Field("force", "accept fewer sources than a range needs", "flag", "--force")
ADDRESS: Final = Field("address", "address of the new node, as http://host:port", is_needed=True)
DEAD: Final = Field("dead", "dead node", "node", is_needed=True, key="replaced_id")
DEAD_NODES: Final = Field("nodes", "dead nodes", "nodes", is_needed=True, key="node_ids")
REPLICATION: Final = Field(
    "replication",
    "replication by datacentre, as dc1=3 or dc1=r1,r2,r3",
    "replication",
    "--replication",
    is_needed=True,
)
ANY_TOKENS: Final = "tokens, as 1,-2,3; empty: the cluster chooses"
INITIAL: Final = "least number of tablets of a new table; 0: as many as its copies need"
COLOCATE: Final = "table whose tablets the new table shares, moved and resized together"
MORE_TABLETS: Final = "number of tablets: double or half of the present one"
LASTING: Final = "duration, as 90s, 30m or 2h; empty: until it is resumed"
TO_NODE: Final = "node that receives it"
_DROPPED: Final = "All its data is deleted. Its name is free again when no replica serves it."


def _operation(
    name: str,
    title: str,
    about: str,
    fields: tuple[Field, ...],
    line: str = "",
    command: str = "",
) -> OperationText:
    return OperationText(
        name, line or name, command or name.replace("-", "_"), title, about, fields
    )


_TEXTS: Final = (
    _operation(
        "cancel",
        "Cancel a request",
        "The request is undone if it is pending, or running before its point of no return. The"
        " placements are then those of before.",
        (Field("request", "id of the request", is_needed=True, key="target"),),
    ),
    _operation(
        "join",
        "Let a node join",
        "A node that was started with STELE_JOIN=no becomes a member. Other nodes send this request"
        " themselves.",
        (ADDRESS,),
    ),
    _operation(
        "decommission",
        "Decommission a node",
        "The node streams its data to the nodes that take over its ranges, then leaves.",
        (NODE,),
        command="leave",
    ),
    _operation(
        "replace",
        "Replace a dead node",
        "A new node, started with STELE_JOIN=no, takes the place, the tokens and the data of a node"
        " that is permanently dead.",
        (DEAD, ADDRESS, IGNORE, FORCE),
    ),
    _operation(
        "remove",
        "Remove a dead node",
        "Other nodes take over the ranges of a node that is permanently dead, from the replicas"
        " that have the data. The node can never return, even if the request fails.",
        (NODE, IGNORE, FORCE),
    ),
    _operation(
        "exclude",
        "Declare nodes dead",
        "No barrier waits for these nodes any more, and they never serve again. The request is"
        " refused where the live replicas may lack acknowledged writes. Remove or replace the nodes"
        " later.",
        (DEAD_NODES, FORCE),
    ),
    _operation(
        "move",
        "Give a node other tokens",
        "Data moves to and from the node while it serves.",
        (NODE, Field("tokens", ANY_TOKENS, "tokens", "--tokens")),
    ),
    _operation(
        "rebuild",
        "Rebuild a node",
        "The node streams everything that it replicates again, from the other replicas.",
        (NODE, Field("source_dc", "only from this datacentre", option="--source-dc"), FEWER),
    ),
    _operation(
        "cleanup",
        "Clean up nodes",
        "Every normal node, or one node, deletes the data that it does not own. The request is done"
        " when each of them has reported.",
        (Field("node", "only this node", "node", "--node", key="node_id"),),
    ),
    _operation(
        "create-keyspace",
        "Create a keyspace",
        "With tablets, the data of each table is split into tablets that move one by one.",
        (
            KEYSPACE,
            REPLICATION,
            Field("tablets", "keep the data of its tables in tablets", "flag", "--tablets"),
            Field("initial_tablets", INITIAL, "number", "--initial-tablets"),
        ),
        line="keyspace create",
    ),
    _operation(
        "alter-keyspace",
        "Change a keyspace's replication",
        "The keyspace is read and written meanwhile. A datacentre that is not named keeps its"
        " copies; 0 removes them. With racks, each named rack has one copy of each tablet.",
        (KEYSPACE, REPLICATION, FORCE),
        line="keyspace alter",
        command="keyspace_rf_change",
    ),
    _operation(
        "drop-keyspace",
        "Drop a keyspace",
        _DROPPED,
        (KEYSPACE,),
        line="keyspace drop",
    ),
    _operation(
        "create-table",
        "Create a table",
        "In a keyspace with tablets the table is split into tablets from the start.",
        (TABLE, Field("colocate", COLOCATE, "table", "--colocate-with", key="colocated_with")),
        line="table create",
    ),
    _operation(
        "resize-table",
        "Split or merge a table's tablets",
        "The table is read and written meanwhile. The balancer may change the number again, by the"
        " table's options and load.",
        (TABLE, Field("tablets", MORE_TABLETS, "number", is_needed=True)),
        line="table resize",
        command="tablet_resize",
    ),
    _operation(
        "repair-table",
        "Repair a table",
        "Each replica of the table's tablets receives the rows that it lacks, while the table is"
        " read and written. A repair among some replicas does not count as the tablets' last"
        " repair.",
        (
            TABLE,
            Field("nodes", "only replicas on these nodes", "nodes", "--nodes"),
            Field("dcs", "only replicas in these datacentres", "nodes", "--dcs"),
        ),
        line="table repair",
        command="table_repair",
    ),
    _operation(
        "drop-table",
        "Drop a table",
        _DROPPED,
        (TABLE,),
        line="table drop",
    ),
    _operation(
        "truncate",
        "Delete all data of a keyspace or table",
        "Every replica deletes the data; the keyspace and its tables stay. The operation begins"
        " while all members are up, and cannot be undone once it has begun.",
        (Field("name", "keyspace or keyspace.table", "table", is_needed=True),),
    ),
    _operation(
        "move-tablet",
        "Move a tablet",
        "One replica of the tablet moves to another node while the tablet is read and written.",
        (
            Field("table", "table, as keyspace.table", "table", is_needed=True),
            Field("tablet", "number of the tablet", "number", is_needed=True),
            Field("from", "node that has it", "node", "--from", is_needed=True, key="from_node"),
            Field("to", TO_NODE, "node", "--to", is_needed=True, key="to_node"),
            FORCE,
        ),
        line="tablet move",
        command="tablet_migration",
    ),
    _operation(
        "balance-off",
        "Pause balancing",
        "The balancer no longer moves, splits or merges tablets. Nodes that leave still give their"
        " tablets away.",
        (SCOPE, Field("lasting", LASTING, "span", "--for")),
        line="balance off",
        command="switch_balancing_off",
    ),
    _operation(
        "balance-on",
        "Resume balancing",
        "The balancer moves, splits and merges tablets again. A pause under another name stays in"
        " force.",
        (SCOPE,),
        line="balance on",
        command="switch_balancing_on",
    ),
)
TEXTS: Final = {text.name: text for text in _TEXTS}
