"""A legacy cluster read over CQL: system tables of one node, and the driver's own map of tokens to replicas.

The driver computes replicas by itself, from the same tokens and replication: so they are those of another
implementation, and not what the servers do. `nodetool describering` says that.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from cassandra import DriverException, InvalidRequest
from cassandra.cluster import (
    EXEC_PROFILE_DEFAULT,
    Cluster,
    ExecutionProfile,
    NoHostAvailable,
    Session,
)
from cassandra.policies import RoundRobinPolicy
from cassandra.query import dict_factory

from stele.cli.errors import CliError, UnreachableError
from stele.domain.legacy.description import (
    LOCAL,
    Answer,
    Legacy,
    LegacyKeyspace,
    LegacyNode,
    class_name,
)
from stele.domain.legacy.texts.lines import TextError
from stele.domain.legacy.texts.rows import Peer, keyspace_of, peer_of
from stele.domain.legacy.texts.status import StatusRow

CQL_PORT = 9042
UP_WITHIN_S = 10.0
"""How long the driver may take to reach all nodes, before those that it has not reached count as unknown."""
POLL_S = 0.1
GOSSIP = "SELECT host_id, status, status_with_port FROM system_views.gossip_info"
CLUSTER_STATUS = "SELECT host_id, status FROM system.cluster_status"
STATES = {"NORMAL": "N", "shutdown": "N", "BOOT": "J", "BOOT_REPLACE": "J"}
STATES |= {"LEAVING": "L", "MOVING": "M", "JOINING": "J"}
GONE = ("LEFT", "removed", "removing", "")


def of_contact(contact: str, timeout_s: float, status: tuple[StatusRow, ...] | None) -> Legacy:
    """All from one node, each query within ``timeout_s``. ``status`` says how nodes stand, where it is given.

    Raises CliError.
    """
    host, port = _place(contact)
    profile = ExecutionProfile(
        RoundRobinPolicy(), request_timeout=timeout_s, row_factory=dict_factory
    )
    cluster = Cluster(
        [host],
        port=port,
        connect_timeout=timeout_s,
        control_connection_timeout=timeout_s,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
    )
    try:
        return _Reader(cluster, cluster.connect(wait_for_all_pools=False), status).legacy()
    except NoHostAvailable as error:
        why = "; ".join(str(each) for each in error.errors.values()) or str(error)
        raise UnreachableError(
            f"No node answers CQL at {host}:{port}: {why}.", "Is it --contact HOST:PORT?"
        ) from error
    except (DriverException, TextError) as error:
        raise CliError(f"{contact} could not be read: {error}.") from error
    finally:
        cluster.shutdown()


def _place(contact: str) -> tuple[str, int]:
    """``host``, ``host:port`` or ``[host]:port``; an IPv6 address has more than one colon."""
    if contact.count(":") > 1 and not contact.startswith("["):
        return contact, CQL_PORT
    host, colon, port = contact.rpartition(":")
    if not colon or contact.endswith("]"):
        return contact.removeprefix("[").removesuffix("]"), CQL_PORT
    if not port.isdigit():
        raise CliError(f"'{contact}' is no HOST:PORT.")
    return host.removeprefix("[").removesuffix("]"), int(port)


class _Reader:
    def __init__(
        self, cluster: Cluster, session: Session, status: tuple[StatusRow, ...] | None
    ) -> None:
        self.cluster = cluster
        self.session = session
        self.status = {row.host_id: row.status for row in status} if status else {}
        self.of_files = status is not None
        self.host = cluster.get_control_connection_host()

    def legacy(self) -> Legacy:
        local = self._rows("SELECT * FROM system.local")[0]
        peers = [
            peer_of(0, each)
            for each in (local, *self._try("SELECT * FROM system.peers_v2", "system.peers"))
        ]
        peers = [*{peer.host_id: peer for peer in peers}.values()]
        keyspaces = tuple(self._keyspaces())
        return Legacy(
            cluster=str(local["cluster_name"]),
            partitioner=class_name(str(local["partitioner"])),
            nodes=tuple(self._nodes(peers)),
            keyspaces=keyspaces,
            schema_versions=_versions(peers),
            answers={k.name: self._answers(k, peers) for k in keyspaces if k.strategy != LOCAL},
        )

    def _rows(self, query: str) -> list[dict[str, Any]]:
        """Of the one node that is asked: each has its own system tables."""
        return [*self.session.execute(query, host=self.host)]

    def _try(self, query: str, instead: str = "") -> list[dict[str, Any]]:
        """What a table holds that not every release has."""
        try:
            return self._rows(query)
        except InvalidRequest:
            return self._rows(f"SELECT * FROM {instead}") if instead else []

    def _keyspaces(self) -> Iterable[LegacyKeyspace]:
        scylla = self._try(
            "SELECT keyspace_name, initial_tablets FROM system_schema.scylla_keyspaces"
        )
        tablets = {row["keyspace_name"] for row in scylla if row["initial_tablets"] is not None}
        for row in self._rows("SELECT * FROM system_schema.keyspaces"):
            replication = {**row["replication"]}
            found = keyspace_of(0, row | {"replication": replication})
            yield LegacyKeyspace(
                name=found.name,
                strategy=found.strategy,
                options=found.options,
                tablets=found.name in tablets,
            )

    def _nodes(self, peers: list[Peer]) -> Iterable[LegacyNode]:
        """Those of the tables, and those that only gossip knows: they are about to join."""
        states = {} if self.of_files else self._states()
        known = {peer.host_id for peer in peers}
        up = set[str]() if self.of_files else self._up(known)
        for peer in peers:
            reached = "U" if peer.host_id in up else "?"
            yield LegacyNode(
                host_id=peer.host_id,
                address=peer.address,
                dc=peer.dc,
                rack=peer.rack,
                status=self.status.get(peer.host_id, reached + states.get(peer.host_id, "?")),
                tokens=peer.tokens,
                release=peer.release,
            )
        others = self.status or states
        for host_id in sorted(others.keys() - known):
            status = others[host_id] if self.status else f"?{others[host_id]}"
            yield LegacyNode(host_id=host_id, address=host_id, dc="-", rack="-", status=status)

    def _states(self) -> dict[str, str]:
        """Of Cassandra from 4.1 on, and of Scylla."""
        rows = self._try(GOSSIP) or self._try(CLUSTER_STATUS)
        found = dict[str, str]()
        for row in rows:
            said = str(row.get("status_with_port") or row["status"] or "").partition(",")[0]
            if said not in GONE:
                found[str(row["host_id"])] = STATES.get(said, "?")
        return found

    def _up(self, wanted: set[str]) -> set[str]:
        """The nodes that the driver has reached itself."""
        until_s = time.monotonic() + UP_WITHIN_S
        while True:
            hosts = self.cluster.metadata.all_hosts()
            up = {str(host.host_id) for host in hosts if host.is_up}
            if wanted <= up or time.monotonic() > until_s:
                return up
            time.sleep(POLL_S)

    def _answers(self, keyspace: LegacyKeyspace, peers: list[Peer]) -> tuple[Answer, ...]:
        tokens = self.cluster.metadata.token_map
        if tokens is None:
            raise CliError("The driver has no map of the ring: the nodes do not tell their tokens.")
        ring = [token.value for token in tokens.ring]
        address = {peer.host_id: peer.address for peer in peers}
        return tuple(
            Answer(
                start,
                end.value,
                tuple(
                    address.get(str(host.host_id), str(host.address))
                    for host in tokens.get_replicas(keyspace.name, end)
                ),
            )
            for start, end in zip((ring[-1], *ring), tokens.ring, strict=False)
        )


def _versions(peers: list[Peer]) -> dict[str, tuple[str, ...]]:
    versions = dict[str, tuple[str, ...]]()
    for peer in peers:
        versions[peer.schema_version] = (*versions.get(peer.schema_version, ()), peer.address)
    return versions
