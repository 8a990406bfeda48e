"""The description of a Cassandra or ScyllaDB cluster that is imported, and the JSON file that holds it.

The structs below are the only definition of the file; ``docs/schemas/legacy_cluster.json`` is generated from
them.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from stele.domain.base import Rejection
from stele.domain.commands import AlterSchema, Envelope
from stele.domain.context import bad_name
from stele.domain.ddl.schema import SCHEMA_OBJECTS
from stele.domain.decide import decide
from stele.domain.evolve import apply_facts
from stele.domain.facts import AnyFact
from stele.domain.image import EMPTY_FOR_FOLLOWERS, Image
from stele.domain.json_documents import JsonDocumentError, decode_document
from stele.domain.model.cluster import ClusterCreated
from stele.domain.model.features import FeaturesEnabled
from stele.domain.model.membership import Node, NodeChanged
from stele.domain.model.schema import AnyChange, Keyspace, KeyspaceChanged, placement_name
from stele.domain.names import PARTITIONER, NodeState
from stele.domain.ring.placement import Placement, text_of
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN, Range
from stele.domain.rules.ring import ring_now

FORMAT: Final = "stele-legacy-1"
MURMUR3: Final = "Murmur3Partitioner"
LOCAL: Final = "LocalStrategy"
SIMPLE: Final = "SimpleStrategy"
NETWORK: Final = "NetworkTopologyStrategy"

_UUID: Final = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_Name = Annotated[str, Meta(min_length=1)]
_Token = Annotated[int, Meta(ge=MIN_TOKEN, le=MAX_TOKEN)]


class LegacyNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node of the legacy cluster."""

    host_id: Annotated[
        str, Meta(pattern=f"^{_UUID}$", description="As `nodetool status` shows it.")
    ]
    address: Annotated[_Name, Meta(description="The address by which `replicas` name the node.")]
    dc: str
    rack: str
    status: Annotated[
        str,
        Meta(
            pattern="^[UD?][NLJM?]$",
            description="As `nodetool status` shows it: U (up), D (down) or ? (not known),"
            " then N (normal), L (leaving), J (joining), M (moving) or ? (not known).",
        ),
    ]
    tokens: tuple[_Token, ...] = ()
    schema_version: Annotated[
        str,
        Meta(
            pattern=f"^({_UUID})?$",
            description="As `nodetool describecluster` shows it. Empty: the node did not answer.",
        ),
    ] = ""
    release: Annotated[str, Meta(description="For example 5.0.2. Empty: not known.")] = ""


class LegacyRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The replicas of the tokens in (start, end]. A range with start >= end wraps around the ring."""

    start: _Token
    end: _Token
    replicas: Annotated[tuple[_Name, ...], Meta(description="Addresses of nodes, in any order.")]


class LegacyKeyspace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A keyspace of the legacy cluster."""

    name: _Name
    strategy: Annotated[
        _Name,
        Meta(description="The replication class without its package: NetworkTopologyStrategy."),
    ]
    options: Annotated[
        dict[str, str],
        Meta(
            description="The other replication options: the replication factor of each dc, as a string."
        ),
    ] = {}
    tablets: Annotated[bool, Meta(description="Whether ScyllaDB spreads it by tablets.")] = False
    schema: Annotated[
        str,
        Meta(
            description="Its types, functions, aggregates, tables, indexes and views as CQL, as `DESCRIBE"
            " KEYSPACE` of cqlsh prints them."
        ),
    ] = ""
    ranges: Annotated[
        tuple[LegacyRange, ...],
        Meta(description="The replicas of every range, as the legacy cluster computes them."),
    ] = ()


class LegacyCluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A legacy cluster at one moment, without data."""

    format: Annotated[str, Meta(pattern=f"^{FORMAT}$")]
    cluster: Annotated[_Name, Meta(description="The name of the cluster.")]
    partitioner: Annotated[_Name, Meta(description="The class without its package.")]
    nodes: Annotated[tuple[LegacyNode, ...], Meta(min_length=1)]
    keyspaces: Annotated[
        tuple[LegacyKeyspace, ...], Meta(description="All keyspaces, those of the system included.")
    ]


def class_name(path: str) -> str:
    """Return the name of a Java class without its package."""
    return path.rpartition(".")[2]


def decode_description(raw: bytes) -> LegacyCluster:
    """Decode and check a description of a legacy cluster. Raises JsonDocumentError."""
    legacy = decode_document(raw, LegacyCluster)
    addresses = {node.address for node in legacy.nodes}
    names = set[str]()
    for number, keyspace in enumerate(legacy.keyspaces):
        path = f"keyspaces[{number}]"
        if keyspace.name in names:
            raise JsonDocumentError(
                f"{path}.name",
                f"expected one entry for each keyspace, found a second '{keyspace.name}'",
            )
        names.add(keyspace.name)
        for at, range_ in enumerate(keyspace.ranges):
            for address in range_.replicas:
                if address not in addresses:
                    raise JsonDocumentError(
                        f"{path}.ranges[{at}].replicas",
                        f"expected addresses of `nodes`, found '{address}'",
                    )
    return legacy


def encode_description(legacy: LegacyCluster) -> bytes:
    """Encode a description with a line for each node, keyspace and range, in a fixed order.

    The order does not depend on the order of the input, so that two descriptions can be compared with ``cmp``.
    """
    head = msgspec.json.encode(msgspec.structs.replace(legacy, nodes=(), keyspaces=()))
    nodes = sorted(legacy.nodes, key=lambda node: node.host_id)
    keyspaces = sorted(legacy.keyspaces, key=lambda keyspace: keyspace.name)
    return b"".join(
        (
            head.removesuffix(b'"nodes":[],"keyspaces":[]}'),
            b'\n"nodes":' + _lines(map(msgspec.json.encode, nodes)),
            b',\n"keyspaces":' + _lines(map(_encoded_keyspace, keyspaces)),
            b"}\n",
        )
    )


def _encoded_keyspace(keyspace: LegacyKeyspace) -> bytes:
    options = dict(sorted(keyspace.options.items()))
    head = msgspec.json.encode(msgspec.structs.replace(keyspace, options=options, ranges=()))
    ranges = sorted(keyspace.ranges, key=lambda range_: range_.start)
    return head.removesuffix(b"[]}") + _lines(map(msgspec.json.encode, ranges)) + b"}"


def _lines(items: Iterable[bytes]) -> bytes:
    """Return a JSON array with a line for each item."""
    joined = b",\n".join(items)
    return b"[\n" + joined + b"\n]" if joined else b"[]"


# The import of a legacy cluster: the state that it becomes, or all reasons why it cannot be
# imported.
#
# The state is that of a fresh cluster with the same nodes, tokens and keyspaces. Its replicas must
# be equal to those that the legacy cluster reports for every range, because no data moves.


_ID_NAMESPACE: Final = uuid.UUID("2f6b2c2e-3f0e-4a53-8a0b-6a51c3fd1c44")
_FACTOR: Final = re.compile(r"\d{1,3}")
_PENDING: Final = {
    "J": ("it is joining", "Wait until it has joined, or stop it and remove it."),
    "L": ("it is leaving", "Wait until it has left."),
    "M": ("it is moving", "Wait until it has moved."),
}


class ImportProblem(msgspec.Struct, frozen=True):
    """A reason why the cluster cannot be imported as it is, and the remedy."""

    where: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}. {self.remedy}"


class ReplicaDifference(msgspec.Struct, frozen=True):
    """A range of a keyspace whose replicas differ.

    Replicas are sorted addresses. None means that the side has no such range.
    """

    keyspace: str
    start: int
    end: int
    legacy: tuple[str, ...] | None
    computed: tuple[str, ...] | None

    def __str__(self) -> str:
        legacy, computed = (
            "no such range" if replicas is None else ", ".join(replicas) or "none"
            for replicas in (self.legacy, self.computed)
        )
        range_ = text_of(Range(self.start, self.end))
        return f"keyspace {self.keyspace}, {range_}: legacy {legacy}; computed {computed}"


class ImportResult(NamedTuple):
    """The result of an import.

    ``image`` is None where there are problems or differences. ``left_out`` names the keyspaces that are not
    imported. ``compared`` is the number of ranges that were compared, by keyspace.
    """

    image: Image | None
    problems: tuple[ImportProblem, ...]
    differences: tuple[ReplicaDifference, ...]
    left_out: tuple[str, ...]
    compared: dict[str, int]


def import_cluster(
    legacy: LegacyCluster,
    *,
    ignored: Collection[str] = (),
    without: Collection[str] = (),
    schemas: Mapping[str, Sequence[AnyChange]] = MappingProxyType({}),
) -> ImportResult:
    """Import a legacy cluster.

    ``ignored`` are addresses or host ids of nodes that may be down: they become members all the same (CEP-21,
    ``nodetool cms initialize --ignore``). ``without`` are keyspaces to leave out. Keyspaces with LocalStrategy
    are always left out. ``schemas`` are the parsed ``schema`` texts by keyspace.
    """
    problems = [*_cluster_problems(legacy, ignored), *_unknown_keyspaces(legacy, without)]
    left_out = list[str]()
    replications, ranges = dict[str, dict[str, int]](), dict[str, tuple[LegacyRange, ...]]()
    for keyspace in legacy.keyspaces:
        if keyspace.strategy == LOCAL or keyspace.name in without:
            left_out.append(keyspace.name)
            continue
        try:
            replications[keyspace.name] = _replication(legacy, keyspace)
        except _UnsupportedReplication as error:
            remedy = f"{error.remedy}, or leave it out: --without {keyspace.name}."
            problems.append(ImportProblem(f"keyspace {keyspace.name}", error.what, remedy))
            continue
        if keyspace.ranges:
            ranges[keyspace.name] = keyspace.ranges
        else:
            problems.append(
                ImportProblem(
                    f"keyspace {keyspace.name}",
                    "its `ranges` are missing, so its replicas cannot be compared",
                    f"Add them from `nodetool describering {keyspace.name}`.",
                )
            )
    # Joining nodes serve no reads yet. They are reported as problems and must not add differences to that.
    members = tuple(node for node in legacy.nodes if not node.status.endswith("J"))
    ring = msgspec.structs.replace(legacy, nodes=members)
    image = _state(ring, replications) if _has_unique_owners(members) else None
    differences = list[ReplicaDifference]()
    if image is not None:
        changes = [each for name in sorted(replications) for each in schemas.get(name, ())]
        with_tables = _with_schema(image, changes)
        if isinstance(with_tables, Rejection):
            remedy = with_tables.hint or "Change it in the legacy cluster or in the description."
            # A rejection names the change itself if there are several.
            where = "schema" if len(changes) > 1 else f"schema of {changes[0].name}"
            problems.append(ImportProblem(where, with_tables.message.rstrip("."), remedy))
        else:
            image = with_tables
        for name in sorted(ranges):
            placement = image.placement_of(name)
            assert placement is not None
            differences += _differences(name, ranges[name], placement, members)
    return ImportResult(
        image=None if problems or differences else image,
        problems=tuple(problems),
        differences=tuple(differences),
        left_out=tuple(sorted(left_out)),
        compared={name: len(ranges.get(name, ())) for name in sorted(replications)},
    )


# Problems of the cluster


def _cluster_problems(legacy: LegacyCluster, ignored: Collection[str]) -> Iterator[ImportProblem]:
    if legacy.partitioner != MURMUR3:
        yield ImportProblem(
            "cluster",
            f"its partitioner is {legacy.partitioner}, and Stele supports {MURMUR3} only",
            f"Copy the data into a cluster with {MURMUR3}.",
        )
    known = {name for node in legacy.nodes for name in (node.address, node.host_id)}
    for name in sorted({*ignored} - known):
        yield ImportProblem(
            f"--ignore {name}", "there is no such node", "Name an address or a host id."
        )
    yield from _duplicates(legacy)
    for node in legacy.nodes:
        yield from _node_problems(node, may_be_down=_is_ignored(node, ignored))
    yield from _schema_problems(legacy, ignored)


def _is_ignored(node: LegacyNode, ignored: Collection[str]) -> bool:
    return node.address in ignored or node.host_id in ignored


def _duplicates(legacy: LegacyCluster) -> Iterator[ImportProblem]:
    """Yield host ids, addresses and tokens that several nodes have."""
    owners = dict[tuple[str, str], list[str]]()
    for node in legacy.nodes:
        owners.setdefault(("host id", node.host_id), []).append(node.address)
        owners.setdefault(("address", node.address), []).append(node.host_id)
        for token in node.tokens:
            owners.setdefault(("token", str(token)), []).append(node.address)
    for (kind, value), names in owners.items():
        if len(names) > 1:
            yield ImportProblem(
                f"{kind} {value}",
                f"{' and '.join(names)} have it",
                "Find out which of them is right, and decommission or remove the other.",
            )


def _node_problems(node: LegacyNode, *, may_be_down: bool) -> Iterator[ImportProblem]:
    place = f"node {node.address}"
    pending = _PENDING.get(node.status[1:])
    if pending is not None:
        # A joining node may be known from gossip alone, without dc, rack and tokens.
        yield ImportProblem(place, f"{pending[0]} ({node.status})", pending[1])
    else:
        for kind, name in (("dc", node.dc), ("rack", node.rack)):
            rejection = bad_name(kind, name)
            if rejection is not None:
                yield ImportProblem(place, rejection.message.rstrip("."), rejection.hint)
        if node.status == "DN" and not may_be_down:
            remedy = f"Start it, remove it, or import it with --ignore {node.address}."
            yield ImportProblem(place, "it is down (DN)", remedy)
        elif node.status not in {"UN", "DN"}:
            yield ImportProblem(
                place,
                f"its state is not known ({node.status})",
                "Write a description with `stele import describe`, set `status` in it to what `nodetool status`"
                " shows, and read that file.",
            )
        if not node.tokens:
            yield ImportProblem(place, "it has no tokens", "Decommission or remove it first.")
    if MIN_TOKEN in node.tokens:
        yield ImportProblem(
            place,
            f"its token {MIN_TOKEN} is the lower bound of the ring, which no node can own in Stele",
            f"Move it by one first: `nodetool move -- {MIN_TOKEN + 1}`.",
        )


def _schema_problems(legacy: LegacyCluster, ignored: Collection[str]) -> Iterator[ImportProblem]:
    """Yield a problem where schema versions differ, or where that of a member is not known."""
    addresses = dict[str, list[str]]()
    for node in legacy.nodes:
        if not _is_ignored(node, ignored) and not node.status.endswith("J"):
            addresses.setdefault(node.schema_version, []).append(node.address)
    silent = addresses.pop("", [])
    if len(addresses) > 1:
        versions = "; ".join(
            f"{version} on {', '.join(nodes)}" for version, nodes in sorted(addresses.items())
        )
        yield ImportProblem(
            "schema",
            f"there are {len(addresses)} schema versions: {versions}",
            "Wait until they agree (`nodetool describecluster`).",
        )
    if silent:
        yield ImportProblem(
            "schema",
            f"the versions of {', '.join(sorted(silent))} are not known",
            "Start these nodes, or name them with --ignore if they are down.",
        )


def _unknown_keyspaces(legacy: LegacyCluster, without: Collection[str]) -> Iterator[ImportProblem]:
    known = {keyspace.name for keyspace in legacy.keyspaces}
    if not known:
        yield ImportProblem(
            "schema", "there are no keyspaces", "Add those of system_schema.keyspaces."
        )
    for name in sorted({*without} - known):
        yield ImportProblem(
            f"--without {name}", "there is no such keyspace", "Check the name, or omit the option."
        )


# Replication of a keyspace


class _UnsupportedReplication(Exception):
    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy


def _replication(legacy: LegacyCluster, keyspace: LegacyKeyspace) -> dict[str, int]:
    """Return the replication factor of each dc, without dcs of factor 0. Raises _UnsupportedReplication.

    SimpleStrategy in one dc is taken for NetworkTopologyStrategy. SimpleStrategy ignores racks, so replicas may
    differ where there are several; the comparison of ranges shows that.
    """
    nodes = Counter(node.dc for node in legacy.nodes if node.tokens)
    factors = _factors(keyspace, nodes)
    invalid = next((each for each in factors.values() if not _FACTOR.fullmatch(each)), None)
    if invalid is not None:
        raise _UnsupportedReplication(
            f"'{invalid[:40]}' is not a replication factor (transient replicas are not supported)",
            "Alter it first",
        )
    replication = {dc: int(factor) for dc, factor in sorted(factors.items()) if int(factor)}
    if not replication:
        raise _UnsupportedReplication("it has no replicas", "Alter it first")
    for dc, factor in replication.items():
        if factor > nodes[dc]:
            raise _UnsupportedReplication(
                f"its replication factor in {dc} is {factor}, above the {nodes[dc]} of its nodes with tokens",
                "Add nodes, or lower the factor and repair it",
            )
    return replication


def _factors(keyspace: LegacyKeyspace, nodes: Mapping[str, int]) -> dict[str, str]:
    """Return the replication factor of each dc as the keyspace has it. Raises _UnsupportedReplication."""
    alter = (
        f"Run ALTER KEYSPACE {keyspace.name} WITH replication = {{'class': 'NetworkTopologyStrategy', …}}"
        " and repair it"
    )
    if bad_name("keyspace", keyspace.name, dots=False) is not None:
        raise _UnsupportedReplication("Stele does not allow this name for a keyspace", "Rename it")
    if keyspace.tablets:
        raise _UnsupportedReplication(
            "its tables have tablets, which are not imported",
            "Copy its data into a keyspace without tablets",
        )
    if keyspace.strategy == NETWORK:
        return keyspace.options
    if keyspace.strategy != SIMPLE:
        raise _UnsupportedReplication(f"{keyspace.strategy} is not supported", alter)
    if len(nodes) != 1:
        raise _UnsupportedReplication(
            f"SimpleStrategy over {len(nodes)} dcs is not supported, because it ignores dcs", alter
        )
    if keyspace.options.keys() != {"replication_factor"}:
        raise _UnsupportedReplication(
            f"SimpleStrategy needs the option replication_factor alone, not {keyspace.options}",
            alter,
        )
    return dict.fromkeys(nodes, keyspace.options["replication_factor"])


# State


def _has_unique_owners(nodes: Collection[LegacyNode]) -> bool:
    """Whether a ring can be built: there are tokens, and no token or host id occurs twice."""
    tokens = [token for node in nodes for token in node.tokens]
    hosts = {node.host_id for node in nodes}
    return bool(tokens) and len({*tokens}) == len(tokens) and len(hosts) == len(nodes)


def _state(legacy: LegacyCluster, replications: Mapping[str, Mapping[str, int]]) -> Image:
    """Return the state with all nodes NORMAL and all keyspaces at rest, in topology version 1.

    The ids are the same at each call, and differ from those of another cluster with the same name.
    """
    cluster_id = f"{legacy.cluster}/{_stable_id(legacy, 'cluster')}"
    facts: list[AnyFact] = [ClusterCreated(legacy.cluster, cluster_id, PARTITIONER)]
    facts += (
        NodeChanged(
            Node(
                node_id=node.host_id,
                host_id=node.host_id,
                address=node.address,
                dc=node.dc,
                rack=node.rack,
                num_tokens=len(node.tokens),
                state=NodeState.NORMAL,
                tokens=tuple(sorted(node.tokens)),
                release_version=node.release,
            )
        )
        for node in legacy.nodes
    )
    image = apply_facts(EMPTY_FOR_FOLLOWERS, facts)
    for name, replication in sorted(replications.items()):
        placement = placement_name({**replication})
        keyspace = Keyspace(
            keyspace_id=_stable_id(legacy, f"keyspace {name}"),
            name=name,
            replication={**replication},
            placement=placement,
        )
        facts = [KeyspaceChanged(keyspace)]
        if placement not in image.ring.placements:
            facts += image.ring.creation(placement, ring_now(image).placement({**replication}))
        image = apply_facts(image, facts)
    return image


def _with_schema(image: Image, changes: Sequence[AnyChange]) -> Image | Rejection:
    """Return the state with these objects, created in one batch as by ``stele schema apply``.

    Ids follow from the cluster's id and the objects' order, so they are the same at each call.
    """
    if not changes:
        return image
    image = apply_facts(image, (FeaturesEnabled((SCHEMA_OBJECTS,)),))
    decision = decide(image, Envelope(request_id="", command=AlterSchema((*changes,))), at_ms=0)
    return decision if isinstance(decision, Rejection) else apply_facts(image, decision)


def _stable_id(legacy: LegacyCluster, name: str) -> str:
    hosts = ",".join(sorted(node.host_id for node in legacy.nodes))
    return str(uuid.uuid5(_ID_NAMESPACE, f"{legacy.cluster}/{hosts}/{name}"))


# Comparison of replicas


def _differences(
    keyspace: str,
    ranges: Collection[LegacyRange],
    placement: Placement,
    nodes: Collection[LegacyNode],
) -> Iterator[ReplicaDifference]:
    """Yield all differences in ring order. The order of replicas affects no quorum and is not compared."""
    addresses = {node.host_id: node.address for node in nodes}
    computed = {
        Range(row.start, row.end): tuple(sorted(addresses[node] for node in row.writes))
        for row in placement.rows
    }
    legacy = dict[Range, tuple[str, ...]]()
    for each in ranges:
        for range_ in _unwrapped(each):
            legacy[range_] = tuple(sorted({*each.replicas, *legacy.get(range_, ())}))
    for range_ in sorted({*computed, *legacy}):
        if computed.get(range_) != legacy.get(range_):
            yield ReplicaDifference(
                keyspace, range_.start, range_.end, legacy.get(range_), computed.get(range_)
            )


def _unwrapped(range_: LegacyRange) -> Iterator[Range]:
    """Yield the range, split at the lower bound of the ring where it wraps around."""
    if range_.start < range_.end or range_.end == MIN_TOKEN:
        yield Range(range_.start, range_.end)
    else:
        yield Range(range_.start, MIN_TOKEN)
        yield Range(MIN_TOKEN, range_.end)
