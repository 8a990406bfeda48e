"""Several texts about one cluster put together, with all in which they contradict each other."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from stele.domain.legacy.description import Legacy, LegacyKeyspace, LegacyNode, Problem
from stele.domain.legacy.texts.describecluster import Describecluster
from stele.domain.legacy.texts.describering import Describering
from stele.domain.legacy.texts.ring import RingRow
from stele.domain.legacy.texts.rows import Peer
from stele.domain.legacy.texts.status import StatusRow

AGAIN: Final = "Take all texts anew, from one node, while nothing of the cluster changes."


class Texts(NamedTuple):
    """What was read, by command. ``describering`` is by keyspace; ``keyspaces`` are those of system_schema."""

    status: tuple[StatusRow, ...]
    ring: tuple[RingRow, ...]
    cluster: Describecluster
    describering: Mapping[str, Describering]
    keyspaces: tuple[LegacyKeyspace, ...] | None = None
    peers: tuple[Peer, ...] = ()


class Joined(NamedTuple):
    legacy: Legacy
    problems: tuple[Problem, ...]


def join(texts: Texts) -> Joined:
    """The nodes are those of the status; all others say more of them, or contradict it."""
    tokens: dict[str, list[int]] = {row.address: [] for row in texts.status}
    for row in texts.ring:
        tokens.setdefault(row.address, []).append(row.token)
    releases = {peer.address: peer.release for peer in texts.peers} | texts.cluster.releases
    nodes = tuple(
        LegacyNode(
            host_id=row.host_id,
            address=row.address,
            dc=row.dc,
            rack=row.rack,
            status=row.status,
            tokens=tuple(sorted(tokens[row.address])),
            release=releases.get(row.address, ""),
        )
        for row in texts.status
    )
    keyspaces = texts.cluster.keyspaces if texts.keyspaces is None else texts.keyspaces
    legacy = Legacy(
        cluster=texts.cluster.cluster,
        partitioner=texts.cluster.partitioner,
        nodes=nodes,
        keyspaces=keyspaces or (),
        schema_versions=_versions(texts),
        unreachable=texts.cluster.unreachable,
        answers={name: found.answers for name, found in texts.describering.items()},
    )
    return Joined(legacy, tuple(_contradictions(texts, legacy)))


def _versions(texts: Texts) -> dict[str, tuple[str, ...]]:
    """Those that describecluster tells of, and those that came with a row or a list of ranges."""
    versions = {version: [*hosts] for version, hosts in texts.cluster.schema_versions.items()}
    for peer in texts.peers:
        if peer.schema_version:
            versions.setdefault(peer.schema_version, []).append(peer.address)
    for keyspace, found in texts.describering.items():
        if found.schema_version not in versions:
            versions[found.schema_version] = [f"describering of {keyspace}"]
    return {version: tuple(dict.fromkeys(hosts)) for version, hosts in versions.items()}


def _contradictions(texts: Texts, legacy: Legacy) -> Iterator[Problem]:
    nodes = {node.address: node for node in legacy.nodes}
    for rows in _by_address(texts.ring).values():
        first = rows[0]
        node = nodes.get(first.address)
        place = f"ring, line {first.line}"
        if node is None:
            yield Problem(place, f"{first.address} has tokens, and status does not know it", AGAIN)
            continue
        seen = {(row.dc, row.rack, row.status) for row in rows}
        said = (node.dc, node.rack, node.status)
        if seen != {said}:
            other = next(each for each in sorted(seen) if each != said)
            what = f"{first.address} is {' '.join(other)}, and in status {' '.join(said)}"
            yield Problem(place, what, AGAIN)
    for row in texts.status:
        count = len(nodes[row.address].tokens)
        if count != row.tokens:
            what = f"{row.address} has {row.tokens} tokens, and {count} in the ring"
            yield Problem(f"status, line {row.line}", what, AGAIN)
    for peer in texts.peers:
        yield from _of_peer(peer, nodes.get(peer.address))


def _by_address(ring: Iterable[RingRow]) -> dict[str, list[RingRow]]:
    rows: dict[str, list[RingRow]] = {}
    for row in ring:
        rows.setdefault(row.address, []).append(row)
    return rows


def _of_peer(peer: Peer, node: LegacyNode | None) -> Iterator[Problem]:
    place = f"peers, line {peer.line}"
    if node is None:
        yield Problem(
            place,
            f"{peer.address} is not in status: a row of a node that has left",
            "Delete the row on the node that has it (`DELETE FROM system.peers WHERE peer = …`), or take the"
            " texts anew.",
        )
        return
    for what, theirs, ours in (
        ("host id", peer.host_id, node.host_id),
        ("dc", peer.dc, node.dc),
        ("rack", peer.rack, node.rack),
        ("tokens", peer.tokens, node.tokens),
    ):
        if theirs != ours:
            yield Problem(place, f"{what} of {peer.address}: {theirs}, elsewhere {ours}", AGAIN)
