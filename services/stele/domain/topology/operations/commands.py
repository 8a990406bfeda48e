"""The commands by which operations are asked for."""

import msgspec

from stele.domain.base import Command


class Join(Command, frozen=True, tag="join", kw_only=True):
    """JOIN_NODE_REQUEST: a node asks to become a member (seed 004). It is queued as a request.

    With ``num_tokens`` 0 it coordinates requests and holds no data (a zero-token node).
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
    partitioner: str = "Murmur3Partitioner"
    host_id: str = ""
    shards: int = 1


class Replace(Command, frozen=True, tag="replace", kw_only=True):
    """A join that takes the place, the tokens and the data of ``replaced_id``, which is dead for good.

    ``ignore_nodes`` are others that are. With ``force`` what only dead nodes have is given up. A zero-token
    node is replaced by a ``zero_token`` one, and no other.
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
    partitioner: str = "Murmur3Partitioner"
    host_id: str = ""
    shards: int = 1


class Leave(Command, frozen=True, tag="leave"):
    """Decommission: the node streams its data to those who take over, then leaves."""

    node_id: str


class Remove(Command, frozen=True, tag="remove", kw_only=True):
    """removenode: a node that is dead for good leaves; those who take over stream from who is left.

    ``ignore_nodes`` are others that are dead for good. With ``force`` what only dead nodes have is given up.
    """

    node_id: str
    ignore_nodes: tuple[str, ...] = ()
    force: bool = False


class MoveNode(Command, frozen=True, tag="move", kw_only=True):
    """The node takes these tokens in place of its own, while it serves. Without any they are chosen anew."""

    node_id: str
    tokens: tuple[int, ...] = ()


class Rebuild(Command, frozen=True, tag="rebuild", kw_only=True):
    """A node streams everything that it replicates again, from the others, or from those of ``source_dc``.

    With ``force`` it makes do with the replicas that there are.
    """

    node_id: str
    source_dc: str = ""
    force: bool = False


class Exclude(Command, frozen=True, tag="exclude"):
    """excludenode: these nodes are dead for good. Nobody waits for them any more, or serves them again."""

    node_ids: tuple[str, ...]


class DropKeyspace(Command, frozen=True, tag="drop_keyspace"):
    """Drop a keyspace. Its name is free once every late coordinator of it is fenced out."""

    name: str


class DropTable(Command, frozen=True, tag="drop_table"):
    """Drop a table, named ``keyspace.table``."""

    name: str


class TabletMove(msgspec.Struct, frozen=True, kw_only=True):
    """A tablet of ``table`` (``keyspace.table``) gets a replica on a node in place of the one on another.

    Without ``from_node`` it gets one more, without ``to_node`` one fewer. With ``force`` what only dead nodes
    have is given up; ``beyond``: it may have more replicas than its keyspace asks for. ``why`` is this move's
    reason; empty: the command's. ``of`` is how many tablets the table has for whoever chose this one; 0: nobody
    says. ``to_shard`` is where in ``to_node``; below 0: where it has least. From a node to the same one only
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
    """Migrate tablets, each by a request of its own. Those that cannot are left out; one alone is refused."""

    moves: tuple[TabletMove, ...]


class ResizeTable(Command, frozen=True, tag="tablet_resize"):
    """Give a table (``keyspace.table``) another number of tablets: twice as many, or half."""

    name: str
    tablets: int


class TabletRepair(msgspec.Struct, frozen=True, kw_only=True):
    """Each replica of a tablet of ``table`` (``keyspace.table``) is to get what the others have.

    ``why`` and ``of`` are those of ``TabletMove``. Of those that name ``nodes`` or ``dcs`` only replicas on
    these nodes, and in these dcs, take part.
    """

    table: str
    tablet: int
    why: str = ""
    of: int = 0
    nodes: tuple[str, ...] = ()
    dcs: tuple[str, ...] = ()


class RepairTablets(Command, frozen=True, tag="tablet_repair"):
    """Repair tablets, each by a request of its own. Those that cannot be are left out; one alone is refused."""

    repairs: tuple[TabletRepair, ...]


class RepairTable(Command, frozen=True, tag="table_repair"):
    """Repair all tablets of a table (``keyspace.table``), as they get room in the streams. See ``TabletRepair``
    for ``nodes`` and ``dcs``.
    """

    name: str
    nodes: tuple[str, ...] = ()
    dcs: tuple[str, ...] = ()


class SnapshotTable(Command, frozen=True, tag="table_snapshot", kw_only=True):
    """Every node writes its rows of a table (``keyspace.table``) into its backup folder, under the tag
    ``snapshot``.

    It is deleted ``expire_s`` seconds after it was taken; 0: never.
    """

    name: str
    snapshot: str
    expire_s: int = 0


class RestoreTable(Command, frozen=True, tag="table_restore", kw_only=True):
    """A table (``keyspace.table``) gets the rows of the snapshot with the tag ``snapshot``, be it of this table
    or of another. By timestamps: what was written or deleted since then stays so.
    """

    name: str
    snapshot: str


class TabletRestore(msgspec.Struct, frozen=True, kw_only=True):
    """Each replica of a tablet of ``table`` (``keyspace.table``), which is being restored, is to read its rows.

    ``why`` and ``of`` are those of ``TabletMove``.
    """

    table: str
    tablet: int
    why: str = ""
    of: int = 0


class RestoreTablets(Command, frozen=True, tag="tablet_restore"):
    """Restore tablets, each by its own request. Those that cannot be are left out; one alone is refused."""

    restores: tuple[TabletRestore, ...]


class EnableFeatures(Command, frozen=True, tag="enable_features"):
    """Switch on semantics that every node and service supports, for ever."""

    features: tuple[str, ...]


class NoopRequest(Command, frozen=True, tag="noop_request"):
    """Nothing but a sign: it is done once the coordinator has met it, and all before it is fenced."""


class Quiesce(Command, frozen=True, tag="quiesce"):
    """Wait until all that was asked for before has come to rest."""


class Cleanup(Command, frozen=True, tag="cleanup", kw_only=True):
    """Every normal node deletes the data that is not its own, or one node does."""

    node_id: str = ""


class Truncate(Command, frozen=True, tag="truncate"):
    """Delete all data of a table, or of a keyspace without tablets, on every replica."""

    name: str


class KeyspaceRfChange(Command, frozen=True, tag="keyspace_rf_change"):
    """Give a keyspace another replication: for each dc a replication factor or, with tablets, its ``racks``; a
    dc that is not named loses its replicas. With ``force`` what only excluded nodes have is given up.
    """

    name: str
    replication: dict[str, int]
    force: bool = False
    racks: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


class NewCdcGeneration(Command, frozen=True, tag="new_cdc_generation", kw_only=True):
    """check_and_repair_cdc_streams: make a new CDC generation if the present one does not fit the ring.

    With ``force`` one is made in any case.
    """

    force: bool = False


class ReconfigureCatchUp(Command, frozen=True, tag="reconfigure_catch_up", kw_only=True):
    """Change who the members of the archive are: so many catch-up replicas, ``3``, or ``dc1=2,dc2=1``, which is
    what the setting asks for from now on. Empty: as it asks, as far as there are so many.

    ``as_of_epoch`` is when a replica had come into its state last for whoever asks; another: it is refused. 0:
    it need not be.
    """

    replication: str = ""
    as_of_epoch: int = 0


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
