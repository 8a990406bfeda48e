"""The description of a legacy cluster over CQL: one node's system tables, and a token map.

The token map is the driver's. The driver computes the replicas of each range from the tokens and
replication options, as the servers do. It is a second implementation of the rule, but it does not
ask the servers. ``nodetool describering`` does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Set
from typing import Any, Final

from cassandra import DriverException, InvalidRequest
from cassandra.auth import PlainTextAuthProvider
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
from stele.domain.legacy import (
    FORMAT,
    LOCAL,
    LegacyCluster,
    LegacyKeyspace,
    LegacyNode,
    LegacyRange,
    class_name,
)

CQL_PORT: Final = 9042
UP_WITHIN_S = 10.0
"""Nodes that the driver has not reached within this time count as not known to be up."""
POLL_S: Final = 0.1
_GOSSIP: Final = "SELECT host_id, status, status_with_port FROM system_views.gossip_info"
_CLUSTER_STATUS: Final = "SELECT host_id, status FROM system.cluster_status"
_STATES: Final = {
    "NORMAL": "N",
    "shutdown": "N",
    "BOOT": "J",
    "BOOT_REPLACE": "J",
    "JOINING": "J",
    "LEAVING": "L",
    "MOVING": "M",
}
"""The letter of ``nodetool status`` for each state in gossip."""
_GONE: Final = {"LEFT", "removed", "removing", ""}


def describe_cluster(
    contact: str, timeout_s: float, credentials: tuple[str, str] | None = None
) -> LegacyCluster:
    """Describe the cluster of the node at ``contact`` (HOST[:PORT]).

    ``timeout_s`` limits the connection and each query. ``credentials`` are user name and password.
    Raises CliError.
    """
    host, port = _host_and_port(contact)
    profile = ExecutionProfile(
        RoundRobinPolicy(), request_timeout=timeout_s, row_factory=dict_factory
    )
    cluster = Cluster(
        [host],
        port=port,
        auth_provider=None if credentials is None else PlainTextAuthProvider(*credentials),
        connect_timeout=timeout_s,
        control_connection_timeout=timeout_s,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
    )
    try:
        return _SystemTables(cluster, cluster.connect(wait_for_all_pools=False)).description()
    except NoHostAvailable as error:
        reason = "; ".join(str(each) for each in error.errors.values()) or str(error)
        raise UnreachableError(
            f"Cannot connect to {host}:{port} over CQL: {reason}.",
            "Check the address, --username and --password-file.",
        ) from error
    except DriverException as error:
        raise CliError(f"Cannot read the system tables of {contact}: {error}.") from error
    finally:
        cluster.shutdown()


def _host_and_port(contact: str) -> tuple[str, int]:
    """Split ``host``, ``host:port`` or ``[host]:port``.

    An IPv6 address without a port needs no brackets.
    """
    if contact.count(":") > 1 and not contact.startswith("["):
        return contact, CQL_PORT
    host, colon, port = contact.rpartition(":")
    if not colon or contact.endswith("]"):
        return contact.removeprefix("[").removesuffix("]"), CQL_PORT
    if not port.isdigit():
        raise CliError(f"'{contact}' is not HOST or HOST:PORT.")
    return host.removeprefix("[").removesuffix("]"), int(port)


class _SystemTables:
    """Reads the system tables through one session."""

    def __init__(self, cluster: Cluster, session: Session) -> None:
        self._cluster = cluster
        self._session = session
        # Each node has its own system tables, so all queries go to the same node.
        self._host = cluster.get_control_connection_host()

    def description(self) -> LegacyCluster:
        local = self._rows("SELECT * FROM system.local")[0]
        nodes = self._nodes(local)
        return LegacyCluster(
            format=FORMAT,
            cluster=str(local["cluster_name"]),
            partitioner=class_name(str(local["partitioner"])),
            nodes=tuple(nodes),
            keyspaces=tuple(self._keyspaces(nodes)),
        )

    def _rows(self, query: str) -> list[dict[str, Any]]:
        return [*self._session.execute(query, host=self._host)]

    def _optional_rows(self, query: str) -> list[dict[str, Any]]:
        """Return the rows of a table that not every release has."""
        try:
            return self._rows(query)
        except InvalidRequest:
            return []

    def _nodes(self, local: dict[str, Any]) -> list[LegacyNode]:
        """Return the nodes of the peers tables and those only in gossip: these will join."""
        peers = self._optional_rows("SELECT * FROM system.peers_v2") or self._rows(
            "SELECT * FROM system.peers"
        )
        rows = {str(row["host_id"]): row for row in (local, *peers)}
        states, up = self._states(), self._up(rows.keys())
        nodes = [
            _node(row, ("U" if host_id in up else "?") + states.get(host_id, "?"))
            for host_id, row in rows.items()
        ]
        nodes += (
            LegacyNode(
                host_id=host_id, address=host_id, dc="-", rack="-", status=f"?{states[host_id]}"
            )
            for host_id in sorted(states.keys() - rows.keys())
        )
        return nodes

    def _states(self) -> dict[str, str]:
        """Return the state of each node in gossip, by host id.

        Cassandra 4.1 and later, and ScyllaDB, have it.
        """
        states = dict[str, str]()
        for row in self._optional_rows(_GOSSIP) or self._optional_rows(_CLUSTER_STATUS):
            state = str(row.get("status_with_port") or row["status"] or "").partition(",")[0]
            if state not in _GONE:
                states[str(row["host_id"])] = _STATES.get(state, "?")
        return states

    def _up(self, expected: Set[str]) -> set[str]:
        """Return the host ids that the driver has reached, at the latest after ``UP_WITHIN_S``."""
        until_s = time.monotonic() + UP_WITHIN_S
        while True:
            hosts = self._cluster.metadata.all_hosts()
            up = {str(host.host_id) for host in hosts if host.is_up}
            if expected <= up or time.monotonic() > until_s:
                return up
            time.sleep(POLL_S)

    def _keyspaces(self, nodes: list[LegacyNode]) -> Iterator[LegacyKeyspace]:
        scylla = self._optional_rows(
            "SELECT keyspace_name, initial_tablets FROM system_schema.scylla_keyspaces"
        )
        tablets = {row["keyspace_name"] for row in scylla if row["initial_tablets"] is not None}
        addresses = {node.host_id: node.address for node in nodes}
        for row in self._rows("SELECT * FROM system_schema.keyspaces"):
            name, options = str(row["keyspace_name"]), {**row["replication"]}
            strategy = class_name(options.pop("class"))
            yield LegacyKeyspace(
                name=name,
                strategy=strategy,
                options={str(key): str(value) for key, value in options.items()},
                tablets=name in tablets,
                schema="" if strategy == LOCAL else self._schema(name),
                ranges=() if strategy == LOCAL else tuple(self._ranges(name, addresses)),
            )

    def _schema(self, keyspace: str) -> str:
        """Return the objects of a keyspace as CQL; empty if the driver does not know the keyspace."""
        found = self._cluster.metadata.keyspaces.get(keyspace)
        if found is None:
            return ""
        text: str = found.export_as_string()
        return text.removeprefix(f"{found.as_cql_query()};").lstrip("\n")

    def _ranges(self, keyspace: str, addresses: dict[str, str]) -> Iterator[LegacyRange]:
        token_map = self._cluster.metadata.token_map
        if token_map is None:
            raise CliError(
                "The driver has no token map, because the peers tables contain no tokens.",
                "Wait until all nodes have joined.",
            )
        previous = token_map.ring[-1]
        for token in token_map.ring:
            hosts = token_map.get_replicas(keyspace, token)
            replicas = (addresses.get(str(host.host_id), str(host.address)) for host in hosts)
            yield LegacyRange(previous.value, token.value, tuple(replicas))
            previous = token


def _node(row: dict[str, Any], status: str) -> LegacyNode:
    """Return the node of a row of system.local, system.peers or system.peers_v2.

    Raises CliError.
    """
    address = row.get("peer") or row.get("broadcast_address")
    missing = [name for name in ("data_center", "rack", "host_id") if not row.get(name)]
    if not address or missing:
        raise CliError(
            f"The row of {address or 'a node'} in the peers table has no {', '.join(missing) or 'address'}.",
            "If the node has left, delete the row from system.peers and system.peers_v2.",
        )
    return LegacyNode(
        host_id=str(row["host_id"]),
        address=str(address),
        dc=str(row["data_center"]),
        rack=str(row["rack"]),
        status=status,
        tokens=tuple(sorted(int(token) for token in row.get("tokens") or ())),
        schema_version=str(row.get("schema_version") or ""),
        release=str(row.get("release_version") or ""),
    )
