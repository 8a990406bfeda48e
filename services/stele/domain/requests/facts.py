"""Topology requests: who asked for what, why, and how it stands."""

import msgspec

from stele.domain.base import Fact
from stele.domain.names import RequestKind, RequestStatus
from stele.domain.repairs.among import Among
from stele.domain.ring.shards import place_text
from stele.domain.schema.facts import Replication


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One topology request with its stable id.

    ``node_id`` is the node that it is about, ``keyspace_id`` the keyspace, ``replication`` and ``racks`` what
    it is to have (those of ``Keyspace``); what does not apply is empty. Epochs are 0 until they happen.
    ``removes_node``: its node counts as gone from now on. ``dead_nodes`` are dead for good, says who asks:
    they must be down for it to start, and are excluded then. ``replaced_id`` is the one of them whose place a
    new node takes. ``force``: the loss of what only excluded nodes have is accepted. ``tokens`` are those that
    its node asks for, none: they are chosen for it. ``source_dc`` is the only one to stream from.
    ``awaited_nodes`` have yet to report for it to be done. ``features`` are to be enabled. ``table_id`` is the
    table that it is about, of which ``tablet``, one of ``tablet_count``, is to go from ``from_node`` to
    ``to_node``, to have one replica more when the first of them is empty, one fewer when the second is; or
    which is to have ``tablet_count``, and had ``tablet_count_before`` when that was asked for. ``to_shard`` is
    where in ``to_node`` it comes to, which may be the node that it leaves.
    ``submitted_ms`` is the log's own time at which a repair was asked for, of that tablet, or of the table
    when there is no ``tablet_count``: what was acknowledged before is what it repairs. ``replicas_to_move`` is
    how many had to go to another rack when it began. Only replicas on ``repair_nodes`` and in ``repair_dcs``
    take part in a repair that names some.
    ``tag`` is the name of a snapshot that it takes, of which ``expire_s`` seconds later nothing is left (0: it
    stays), or from which it restores. ``restore_id`` is the request to restore the whole table, which it is
    itself when there is no ``tablet_count``.
    ``archive_replication`` is how many catch-up replicas are to be members, as in the setting of that name, and
    ``members`` who they are to be, in the order of choice, once that is chosen.
    The ``*_at_ms`` (milliseconds since 1970) are shown to people and never decide anything. ``ended_ms`` is the
    log's own time of its end, by which it is forgotten.
    """

    request_id: str
    kind: RequestKind
    status: RequestStatus
    node_id: str = ""
    keyspace_id: str = ""
    replication: dict[str, int] = {}
    removes_node: bool = False
    replaced_id: str = ""
    dead_nodes: tuple[str, ...] = ()
    force: bool = False
    tokens: tuple[int, ...] = ()
    source_dc: str = ""
    awaited_nodes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    table_id: str = ""
    tablet: int = 0
    tablet_count: int = 0
    tablet_count_before: int = 0
    from_node: str = ""
    to_node: str = ""
    to_shard: int = -1
    actor: str = ""
    reason: str = ""
    error: str = ""
    cancelled: bool = False
    submitted_epoch: int = 0
    started_epoch: int = 0
    finished_epoch: int = 0
    submitted_at_ms: int = 0
    started_at_ms: int = 0
    finished_at_ms: int = 0
    submitted_ms: int = 0
    ended_ms: int = 0
    racks: dict[str, tuple[str, ...]] = {}
    replicas_to_move: int = 0
    repair_nodes: tuple[str, ...] = ()
    repair_dcs: tuple[str, ...] = ()
    tag: str = ""
    expire_s: int = 0
    restore_id: str = ""
    archive_replication: str = ""
    members: tuple[str, ...] = ()

    def nodes(self) -> frozenset[str]:
        """All that it names."""
        named = (self.node_id, self.replaced_id, self.from_node, self.to_node, *self.dead_nodes)
        return frozenset(named) - {""}

    @property
    def resizes(self) -> bool:
        """Its table is to have another number of tablets."""
        named = self.moves_replica or self.repairs or self.restore_id
        return self.tablet_count > 0 and not named

    @property
    def repairs(self) -> bool:
        """Replicas of a tablet, or of all tablets of a table, are to have what the others have."""
        return self.submitted_ms > 0

    @property
    def repairs_tablet(self) -> bool:
        """It is to be done to one tablet."""
        return self.repairs and self.tablet_count > 0

    @property
    def among(self) -> Among:
        """Of a repair: whose replicas take part."""
        return Among(self.repair_nodes, self.repair_dcs)

    @property
    def is_restricted(self) -> bool:
        """Of a repair: only some replicas take part."""
        return any(self.among)

    @property
    def wanted(self) -> Replication:
        """What its keyspace is to have."""
        return Replication(self.replication, self.racks)

    @property
    def restores_tablet(self) -> bool:
        """The replicas of one tablet are to have what is in a snapshot."""
        return bool(self.restore_id) and self.tablet_count > 0

    @property
    def stays_in_place(self) -> bool:
        """The replicas of one tablet are to get rows, and stay who they are."""
        return self.repairs_tablet or self.restores_tablet

    @property
    def reconfigures(self) -> bool:
        """It changes who the members of the archive are."""
        return bool(self.archive_replication)

    @property
    def moves_replica(self) -> bool:
        """A tablet of its table is to have other replicas."""
        return bool(self.from_node or self.to_node)

    @property
    def stays_on_node(self) -> bool:
        """A tablet of its table is to go to another shard of a node."""
        return bool(self.from_node) and self.from_node == self.to_node

    def goes_to(self) -> str:
        """The place that a replica goes to, for people; empty: one goes away."""
        return place_text(self.to_node, self.to_shard, within=self.stays_on_node)

    def ways(self) -> str:
        """Where a replica comes from and goes to: `` from n1 to n2:3``, `` within n1 to shard 0``."""
        if self.stays_on_node:
            return f" within {self.to_node} to shard {self.to_shard}"
        ways = (("from", self.from_node), ("to", self.goes_to()))
        return "".join(f" {word} {place}" for word, place in ways if place)

    @property
    def recounts(self) -> bool:
        """A tablet of its table is to have one replica more, or one fewer."""
        return bool(self.from_node) != bool(self.to_node)


class RequestChanged(Fact, frozen=True):
    request: Request


class RequestForgotten(Fact, frozen=True):
    """A finished request leaves the image; it stays readable in the log. When it had ended says since when the
    image has them all.
    """

    request_id: str
    finished_epoch: int
    ended_ms: int


RequestsFact = RequestChanged | RequestForgotten


class CommandRefused(Fact, frozen=True, kw_only=True):
    """A command was decided: nothing changes, and its id stays refused (design, section 1, rule 4)."""

    request_id: str
    digest: bytes
    command: str
    code: str
    message: str
    hint: str
    details: dict[str, str]
    actor: str
    reason: str
    origin: str


class DecidedGeneration(Fact, frozen=True):
    """In snapshots only: a sealed generation of decided requests; entries of 8 bytes, little endian."""

    base: int
    last: int
    newest_ms: int
    entries: bytes


class DecidedRequests(Fact, frozen=True):
    """In snapshots only: the newest decided requests and their epochs, and what is forgotten."""

    floor: int
    horizon_ms: int
    young: dict[str, int]


DecidedFact = CommandRefused | DecidedGeneration | DecidedRequests
