"""Topology requests: the sender, the requested change, the reason and the progress."""

from __future__ import annotations

import re
from functools import cached_property
from hashlib import blake2b
from heapq import nsmallest
from typing import ClassVar, Final, NamedTuple

import msgspec
from immutables import Map

from stele.domain.base import Command, Fact
from stele.domain.model.features import Count
from stele.domain.model.schema import Replication
from stele.domain.names import UNFINISHED, RequestKind, RequestStatus
from stele.domain.ring.ranges import place_text


class Among(NamedTuple):
    """The participants of a repair: replicas on these nodes and in these dcs. Empty means all.

    Scylla calls them hosts_filter and dcs_filter.
    """

    nodes: tuple[str, ...] = ()
    dcs: tuple[str, ...] = ()

    def has(self, node_id: str, dc: str) -> bool:
        return (not self.nodes or node_id in self.nodes) and (not self.dcs or dc in self.dcs)

    def words(self) -> str:
        """Return the participants as a suffix to the repaired object, '' if all take part."""
        parts = [", ".join(self.nodes), f"of {', '.join(self.dcs)}" if self.dcs else ""]
        named = " ".join(filter(None, parts))
        return f" among replicas {'on ' if self.nodes else ''}{named}" if named else ""


ALL: Final = Among()


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One topology request with its stable id. Fields that do not apply are empty.

    ``node_id`` and ``keyspace_id`` are the node and the keyspace that it is about. ``replication``
    and ``racks`` are the keyspace's new ones, as in ``Keyspace``. Epochs are 0 until they happen.
    ``removes_node``: its node counts as gone from now on. ``dead_nodes`` never come back, according
    to the sender. They must be down for the request to start, and are then excluded.
    ``replaced_id`` is the one of them that a new node replaces. ``force``: the loss of data that
    only excluded nodes have is accepted.

    ``tokens`` are those that its node asks for; if there are none, they are chosen for it.
    ``source_dc`` is the only dc to stream from. ``awaited_nodes`` have yet to report for it to be
    done. ``features`` are to be enabled.

    ``table_id`` is the table that it is about. A move takes ``tablet``, one of ``tablet_count``,
    from ``from_node`` to ``to_node``. An empty ``from_node`` adds a replica, and an empty
    ``to_node`` removes one. ``to_shard`` is the shard in ``to_node``, which may be the node that
    the replica leaves. A resize gives the table ``tablet_count`` tablets. It had
    ``tablet_count_before`` when the request was made.

    ``submitted_ms`` is the log's own time at which a repair was requested. The repair covers all
    writes acknowledged before. It is for that tablet, or for the whole table if ``tablet_count`` is
    0. ``replicas_to_move`` is the number of replicas that had to go to another rack when it began.
    A repair that names ``repair_nodes`` or ``repair_dcs`` includes only the replicas there.

    ``tag`` is the name of the snapshot that it takes or restores from. A snapshot is deleted after
    ``expire_s`` seconds; 0 keeps it. ``restore_id`` is the request to restore the whole table. A
    request for the whole table names itself and has no ``tablet_count``.

    ``archive_replication`` is the number of catch-up members, as in the setting of that name.
    ``members`` are the chosen members, in the order of choice. Before the choice, ``members`` are
    those that stay while others retire, or empty if none retires.

    The ``*_at_ms`` (milliseconds since 1970) are shown to people and never decide anything.
    ``ended_ms`` is the log's own time of its end. By it the request is forgotten.
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
        """Return all nodes that the request names."""
        named = (self.node_id, self.replaced_id, self.from_node, self.to_node, *self.dead_nodes)
        return frozenset(named) - {""}

    @property
    def drops(self) -> bool:
        """True if it drops a keyspace or a table."""
        return self.kind.startswith("drop_")

    @property
    def resizes(self) -> bool:
        """True if its table is to have another number of tablets."""
        named = self.moves_replica or self.repairs or self.restore_id
        return self.tablet_count > 0 and not named

    @property
    def repairs(self) -> bool:
        """True for a repair: replicas of one tablet, or of all tablets of a table, exchange their
        rows.
        """
        return self.submitted_ms > 0

    @property
    def repairs_tablet(self) -> bool:
        """True if it repairs one tablet."""
        return self.repairs and self.tablet_count > 0

    @property
    def among(self) -> Among:
        """The replicas that take part in a repair."""
        return Among(self.repair_nodes, self.repair_dcs)

    @property
    def is_restricted(self) -> bool:
        """True if only some replicas take part in a repair."""
        return any(self.among)

    @property
    def wanted(self) -> Replication:
        """The replication that its keyspace is to have."""
        return Replication(self.replication, self.racks)

    @property
    def restores_tablet(self) -> bool:
        """True if the replicas of one tablet are to receive the rows of a snapshot."""
        return bool(self.restore_id) and self.tablet_count > 0

    @property
    def stays_in_place(self) -> bool:
        """True if the replicas of one tablet receive rows and remain the same replicas."""
        return self.repairs_tablet or self.restores_tablet

    @property
    def reconfigures(self) -> bool:
        """True if it changes the members of the archive."""
        return bool(self.archive_replication)

    @property
    def moves_replica(self) -> bool:
        """True if a tablet of its table is to have other replicas."""
        return bool(self.from_node or self.to_node)

    @property
    def stays_on_node(self) -> bool:
        """True if a tablet of its table is to move to another shard of its node."""
        return bool(self.from_node) and self.from_node == self.to_node

    def goes_to(self) -> str:
        """Return the place that a replica goes to, for people; empty if a replica is removed."""
        return place_text(self.to_node, self.to_shard, within=self.stays_on_node)

    def ways(self) -> str:
        """Return both ends of a move, such as `` from n1 to n2:3`` or `` within n1 to shard 0``."""
        if self.stays_on_node:
            return f" within {self.to_node} to shard {self.to_shard}"
        ways = (("from", self.from_node), ("to", self.goes_to()))
        return "".join(f" {word} {place}" for word, place in ways if place)

    @property
    def recounts(self) -> bool:
        """True if a tablet of its table is to have one replica more, or one fewer."""
        return bool(self.from_node) != bool(self.to_node)


class RequestChanged(Fact, frozen=True):
    request: Request


class RequestForgotten(Fact, frozen=True):
    """A finished request leaves the image; the log keeps it.

    ``finished_epoch`` and ``ended_ms`` show since when the image has all requests.
    """

    request_id: str
    finished_epoch: int
    ended_ms: int


RequestsFact = RequestChanged | RequestForgotten


class CommandRefused(Fact, frozen=True, kw_only=True):
    """A command was refused.

    Its id stays refused, and no other state changes (docs/design.md, rule 4).
    """

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
    """In snapshots only: a sealed generation of decided requests.

    ``entries`` are of 8 bytes each, little-endian. The other fields are those of
    ``request_memory.SealedGeneration``.
    """

    base: int
    last: int
    newest_ms: int
    entries: bytes


class DecidedRequests(Fact, frozen=True):
    """In snapshots only: the newest decided requests with their epochs, and the forgotten part.

    ``young`` is id -> epoch. ``floor`` and ``horizon_ms`` are those of ``RequestMemory``.
    """

    floor: int
    horizon_ms: int
    young: dict[str, int]


DecidedFact = CommandRefused | DecidedGeneration | DecidedRequests


# Commands about requests that exist already.


class Cancel(Command, frozen=True, tag="cancel"):
    """Undo a request that is pending, or running before its point of no return."""

    target: str


class RejectRequest(Command, frozen=True, tag="reject_request"):
    """End a pending request that cannot be carried out. The coordinator of ``term`` sends it."""

    of_services: ClassVar = True

    term: int
    target: str
    why: str


RequestsCommand = Cancel | RejectRequest


# Limits of remembered requests: their number and their age.


GENERATIONS: Final = Count(
    name="request_memory",
    counts="generations of decided requests, half a MiB each",
    default=128,
    most=4096,
)
"""Sealed generations that are kept, beside the one that is being filled.

The default takes 64 MiB. The limit is part of the log's format.
"""
HISTORY_S: Final = Count(
    name="request_history_s",
    counts="seconds that a finished request is kept in the state",
    default=2_592_000,
    most=315_360_000,
)
"""A month, as in ScyllaDB."""
FINISHED: Final = Count(
    name="finished_requests",
    counts="finished requests that are kept at most, the newest, however young the others are",
    default=10_000,
    most=100_000,
)
"""Each takes a kilobyte in every process. The number overrides the time, because memory is the
limit.
"""


# Topology requests at one epoch.


class RequestsImage(msgspec.Struct, frozen=True, dict=True):
    """The requests of a cluster.

    ``unfinished_by_id`` holds the pending and running ones of ``requests``. ``forgotten`` is the
    forgotten request that ended last; all that ended later are in ``requests``. ``changes`` maps a
    keyspace's id to the id of the unfinished request that changes its replication.
    """

    requests: Map[str, Request] = Map()
    unfinished_by_id: Map[str, Request] = Map()
    forgotten: RequestForgotten | None = None
    changes: Map[str, str] = Map()

    def unfinished(self) -> list[Request]:
        """Return the pending and running requests, the oldest first."""
        return [*self._in_order]

    @cached_property
    def _in_order(self) -> tuple[Request, ...]:
        """Kept, because each look of the coordinator reads them several times."""
        return tuple(
            sorted(self.unfinished_by_id.values(), key=lambda r: (r.submitted_epoch, r.request_id))
        )

    def pending(self) -> list[Request]:
        """Return the requests that wait to be started, the oldest first."""
        return [r for r in self.unfinished() if r.status is RequestStatus.PENDING]

    def going(self) -> frozenset[str]:
        """Return the nodes that are about to leave. Room and racks are counted without them."""
        return frozenset(r.node_id for r in self.unfinished_by_id.values() if r.removes_node)

    def replaced(self) -> frozenset[str]:
        """Return the nodes that are about to be replaced.

        Their tablets wait for the new nodes.
        """
        return frozenset(r.replaced_id for r in self.unfinished_by_id.values() if r.replaced_id)

    def in_replacement(self) -> frozenset[str]:
        """Return the nodes of open replacements, the dead and the new ones.

        No tablet moves from or to them. A new node takes the tablets of the dead one first, so the
        plan of a replacement is what happens.
        """
        new = frozenset(r.node_id for r in self.unfinished_by_id.values() if r.replaced_id)
        return self.replaced() | new

    def resizing(self) -> tuple[str, ...]:
        """Return the ids of the requests that change a table's number of tablets."""
        return tuple(sorted(r.request_id for r in self.unfinished_by_id.values() if r.resizes))

    def table_repairs(self) -> dict[str, Request]:
        """Return the requests that repair all tablets of a table, by the table's id."""
        found = (r for r in self.unfinished_by_id.values() if r.repairs and not r.repairs_tablet)
        return {request.table_id: request for request in found}

    def reconfigurations(self) -> list[Request]:
        """Return the requests that change the archive's members, the oldest first.

        One is served at a time.
        """
        return [r for r in self.unfinished() if r.reconfigures]

    def finished(self) -> list[Request]:
        """Return the finished requests, the oldest first."""
        return self.finished_first(len(self.requests))

    def finished_first(self, count: int) -> list[Request]:
        """Return the ``count`` oldest finished requests, the oldest first."""
        ended = (r for r in self.requests.values() if r.status not in UNFINISHED)
        return nsmallest(count, ended, key=lambda r: (r.finished_epoch, r.request_id))


# Ids: UUIDs that begin with a time, so that ids too old to be remembered can be recognized.
#
# People and services draw version 7 (time and random bits). Version 8 holds a time and a hash. It is
# for senders that must find the same id again, after a crash or in a test.


_FORM: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[78][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_TIME_BITS: Final = 48
_TIME_BYTES: Final = _TIME_BITS // 8
NEWEST_MS: Final = (1 << _TIME_BITS) - 1
"""The latest time that an id can hold."""
TIME_CHARS: Final = 13
"""Characters at the start of an id that are its time. If an id is newer by a millisecond or more,
these characters are greater.
"""


def uuid7(ms: int, entropy: int) -> str:
    """Return the id of a time in milliseconds since 1970; ``entropy`` is 74 random bits."""
    return _text(ms, 7, entropy)


def uuid8(ms: int, digest: bytes) -> str:
    """Return the id of a time and a digest, which has at least ten bytes."""
    return _text(ms, 8, int.from_bytes(digest[:10], "big"))


def named(name: str, ms: int = 0) -> str:
    """Return the id of a name and a time. Equal arguments give equal ids."""
    return uuid8(ms, blake2b(name.encode(), digest_size=16).digest())


def is_id(text: str) -> bool:
    """Return True for an id in its canonical form. Ids of other programs may not be canonical."""
    return _FORM.fullmatch(text) is not None


def parse(text: str) -> bytes | None:
    """Return the 16 bytes of a canonical id, or None for any other text."""
    return bytes.fromhex(text.replace("-", "")) if is_id(text) else None


def state_time_ms(state_id: bytes) -> int:
    """Return the time inside a state id, in milliseconds since 1970; 0 for a log without epochs."""
    return int.from_bytes(state_id[:_TIME_BYTES], "big")


def asking_ms(state_id: bytes, now_ms: int, horizon_ms: int = -1) -> int:
    """Return the time for a new id of a caller that has read the log up to this state.

    Ids from the future are rejected, but a process whose clock is ahead must be able to send
    commands. The time is therefore the state's. If the state's time is later than ``now_ms``, such
    a clock made it, and ``now_ms`` counts. A caller that received a horizon needs an id newer than
    ``horizon_ms``.
    """
    return max(min(state_time_ms(state_id), now_ms), horizon_ms + 1)


def time_ms(request_id: str) -> int:
    """Return the time inside a canonical id, or inside its first ``TIME_CHARS`` characters."""
    return int(request_id[:8] + request_id[9:13], 16)


def _text(ms: int, version: int, entropy: int) -> str:
    # The layout of RFC 9562: 48 bits of time, the version, 12 bits, the variant, 62 bits.
    time = ms & NEWEST_MS
    mid, low = (entropy >> 62) & 0xFFF, entropy & ((1 << 62) - 1)
    number = time << 80 | version << 76 | mid << 64 | 0b10 << 62 | low
    digits = f"{number:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
