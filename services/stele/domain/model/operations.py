"""The commands that ask for operations."""

import msgspec

from stele.domain.base import Command
from stele.domain.names import PARTITIONER


class Join(Command, frozen=True, tag="join", kw_only=True):
    """A node asks to become a member; the request is queued.

    With ``num_tokens`` 0 the node coordinates requests and holds no data (a zero-token node).
    Source: ScyllaDB, topology-over-raft.md, "Join procedure" (``JOIN_NODE_REQUEST``).
    """

    node_id: str
    cluster: str
    address: str
    dc: str
    rack: str
    num_tokens: int = 16
    initial_tokens: tuple[int, ...] = ()
    supported_features: tuple[str, ...] = ()
    release_version: str = ""
    partitioner: str = PARTITIONER
    host_id: str = ""
    shards: int = 1


class Replace(Command, frozen=True, tag="replace", kw_only=True):
    """A join that takes the tokens and the data of ``replaced_id``, which is permanently dead.

    ``ignore_nodes`` are other dead nodes. With ``force`` data that only dead nodes have is given
    up. A zero-token node can only be replaced by a ``zero_token`` node.
    """

    node_id: str
    replaced_id: str
    cluster: str
    address: str
    dc: str
    rack: str
    ignore_nodes: tuple[str, ...] = ()
    force: bool = False
    zero_token: bool = False
    supported_features: tuple[str, ...] = ()
    release_version: str = ""
    partitioner: str = PARTITIONER
    host_id: str = ""
    shards: int = 1


class Leave(Command, frozen=True, tag="leave"):
    """Decommission: the node streams its data to the nodes that take over, then leaves."""

    node_id: str


class Remove(Command, frozen=True, tag="remove", kw_only=True):
    """removenode: a permanently dead node leaves; its successors stream from the remaining
    replicas.

    ``ignore_nodes`` are other dead nodes. With ``force`` data that only dead nodes have is given
    up.
    """

    node_id: str
    ignore_nodes: tuple[str, ...] = ()
    force: bool = False


class MoveNode(Command, frozen=True, tag="move", kw_only=True):
    """The node exchanges its tokens for these while it serves. Without tokens they are chosen
    again.
    """

    node_id: str
    tokens: tuple[int, ...] = ()


class Rebuild(Command, frozen=True, tag="rebuild", kw_only=True):
    """A node streams all its ranges again from other replicas, or only from those of ``source_dc``.

    With ``force`` fewer sources than a range needs suffice.
    """

    node_id: str
    source_dc: str = ""
    force: bool = False


# ``force`` was added later, and other commands have always had a field of this name. Omitting it
# keeps the digest that older builds compute (see ``hashing.LATER_FIELDS``).
class Exclude(Command, frozen=True, tag="exclude", omit_defaults=True):
    """excludenode: these nodes are permanently dead. No barrier waits for them, and none serves
    them again.

    With ``force`` data that only dead nodes have is given up.
    """

    node_ids: tuple[str, ...]
    force: bool = False


class DropKeyspace(Command, frozen=True, tag="drop_keyspace"):
    """Drop a keyspace. Its name is free once no node coordinates requests to it with an older version."""

    name: str


class DropTable(Command, frozen=True, tag="drop_table"):
    """Drop a table, named ``keyspace.table``."""

    name: str


class TabletMove(msgspec.Struct, frozen=True, kw_only=True):
    """A tablet of ``table`` (``keyspace.table``) gets a replica on one node instead of another.

    Without ``from_node`` it gets one more replica, without ``to_node`` one fewer. With ``force``
    data that only dead nodes have is given up. With ``beyond`` it may have more replicas than its
    keyspace asks for.

    ``why`` is the reason of this move; if it is empty, the command's reason counts. ``of`` is the
    number of tablets that the sender has read; 0 leaves it unchecked. ``to_shard`` is the shard in
    ``to_node``; below 0 selects the one with the least data. With the same node on both sides only
    the shard changes.
    """

    table: str
    tablet: int
    from_node: str
    to_node: str
    force: bool = False
    why: str = ""
    of: int = 0
    beyond: bool = False
    to_shard: int = -1


class MoveTablets(Command, frozen=True, tag="tablet_migration"):
    """Migrate tablets, each by a separate request.

    Impossible moves are left out; a command with a single impossible move is refused.
    """

    moves: tuple[TabletMove, ...]


class ResizeTable(Command, frozen=True, tag="tablet_resize"):
    """Change the number of tablets of a table (``keyspace.table``): double or half."""

    name: str
    tablets: int


class TabletRepair(msgspec.Struct, frozen=True, kw_only=True):
    """Each replica of a tablet of ``table`` (``keyspace.table``) receives the rows that it lacks.

    ``why`` and ``of`` are those of ``TabletMove``. With ``nodes`` or ``dcs``, only replicas on
    these nodes and in these dcs take part.
    """

    table: str
    tablet: int
    why: str = ""
    of: int = 0
    nodes: tuple[str, ...] = ()
    dcs: tuple[str, ...] = ()


class RepairTablets(Command, frozen=True, tag="tablet_repair"):
    """Repair tablets, each by a separate request.

    Impossible repairs are left out; a command with a single impossible one is refused.
    """

    repairs: tuple[TabletRepair, ...]


class RepairTable(Command, frozen=True, tag="table_repair"):
    """Repair all tablets of a table (``keyspace.table``), as streams have room.

    See ``TabletRepair`` for ``nodes`` and ``dcs``.
    """

    name: str
    nodes: tuple[str, ...] = ()
    dcs: tuple[str, ...] = ()


class SnapshotTable(Command, frozen=True, tag="table_snapshot", kw_only=True):
    """Every node writes its rows of a table (``keyspace.table``) to its backup folder, under the
    tag ``snapshot``.

    It is deleted ``expire_s`` seconds after it was taken; 0: never.
    """

    name: str
    snapshot: str
    expire_s: int = 0


class RestoreTable(Command, frozen=True, tag="table_restore", kw_only=True):
    """A table (``keyspace.table``) receives the rows of the snapshot with the tag ``snapshot``.

    The snapshot may be of another table. Rows merge by timestamp, so later writes and deletions
    stay.
    """

    name: str
    snapshot: str


class TabletRestore(msgspec.Struct, frozen=True, kw_only=True):
    """Each replica of a tablet of ``table`` (``keyspace.table``), whose table is being restored,
    reads its rows.

    ``why`` and ``of`` are those of ``TabletMove``.
    """

    table: str
    tablet: int
    why: str = ""
    of: int = 0


class RestoreTablets(Command, frozen=True, tag="tablet_restore"):
    """Restore tablets, each by a separate request.

    Impossible restores are left out; a command with a single impossible one is refused.
    """

    restores: tuple[TabletRestore, ...]


class EnableFeatures(Command, frozen=True, tag="enable_features"):
    """Enable semantics that every node and service supports, permanently."""

    features: tuple[str, ...]


class NoopRequest(Command, frozen=True, tag="noop_request"):
    """A marker: it is done once the coordinator has read it and every earlier version is fenced."""


class Quiesce(Command, frozen=True, tag="quiesce"):
    """Wait until all earlier requests are finished and their cleanup is done."""


class Cleanup(Command, frozen=True, tag="cleanup", kw_only=True):
    """Every normal node, or one node, deletes the rows that it does not own."""

    node_id: str = ""


class Truncate(Command, frozen=True, tag="truncate"):
    """Delete all data of a table, or of a keyspace without tablets, on every replica."""

    name: str


class KeyspaceRfChange(Command, frozen=True, tag="keyspace_rf_change"):
    """Change the replication of a keyspace: by dc a replication factor or, with tablets, its
    ``racks``.

    A dc that is not named keeps its replicas; one with factor 0 loses them. With ``force`` data
    that only excluded nodes have is given up.
    """

    name: str
    replication: dict[str, int]
    force: bool = False
    racks: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


class NewCdcGeneration(Command, frozen=True, tag="new_cdc_generation", kw_only=True):
    """check_and_repair_cdc_streams: make a new CDC generation if the present one does not fit the
    ring.

    With ``force`` a generation is made in any case.
    """

    force: bool = False


class ReconfigureCatchUp(Command, frozen=True, tag="reconfigure_catch_up", kw_only=True):
    """Change the members of the archive.

    ``replication`` is their number, such as ``3`` or ``dc1=2,dc2=1``, and becomes the setting.
    Empty: as the setting asks, as far as there are enough replicas.

    ``as_of_epoch`` is the epoch of the newest change of a replica's state that the sender has read.
    The command is refused if there was a later one; 0 skips the check. ``retired`` are members to
    replace; as candidates they may be chosen later.
    """

    replication: str = ""
    as_of_epoch: int = 0
    retired: tuple[str, ...] = ()


OperationCommand = (
    Join
    | Replace
    | Leave
    | Remove
    | MoveNode
    | Rebuild
    | Exclude
    | DropKeyspace
    | DropTable
    | MoveTablets
    | ResizeTable
    | RepairTablets
    | RepairTable
    | SnapshotTable
    | RestoreTable
    | RestoreTablets
    | KeyspaceRfChange
    | EnableFeatures
    | NoopRequest
    | Quiesce
    | Cleanup
    | Truncate
    | NewCdcGeneration
    | ReconfigureCatchUp
)
