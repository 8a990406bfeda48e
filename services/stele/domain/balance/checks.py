"""Check that the description of a cluster is consistent. An error names the field of the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from stele.domain.balance.cluster import Cluster, ClusterNode, ClusterTable, Tablet
from stele.domain.json_documents import JsonDocumentError, decode_document


def read_cluster(raw: bytes) -> Cluster:
    """Decode and check a description of a cluster. Raises JsonDocumentError."""
    cluster = decode_document(raw, Cluster)
    check(cluster)
    return cluster


def check(cluster: Cluster) -> None:
    """Check references and counts. Raises JsonDocumentError for the first field that is wrong."""
    nodes = dict[str, ClusterNode]()
    for at, node in enumerate(cluster.nodes):
        if node.id in nodes:
            raise JsonDocumentError(f"nodes[{at}].id", f"there is another node '{node.id}'")
        nodes[node.id] = node
    tables = dict[str, ClusterTable]()
    for at, table in enumerate(cluster.tables):
        if table.full_name in tables:
            raise JsonDocumentError(
                f"tables[{at}].name", f"there is another table {table.full_name}"
            )
        tables[table.full_name] = table
        _check_racks(f"tables[{at}].racks", table, nodes)
        _check_tablets(f"tables[{at}]", table, nodes)
    for at, table in enumerate(cluster.tables):
        _check_colocation(f"tables[{at}].colocated_with", table, tables)


def _check_racks(path: str, table: ClusterTable, nodes: Mapping[str, ClusterNode]) -> None:
    for dc, racks in table.racks.items():
        place, there = f"{path}.{dc}", {node.rack for node in nodes.values() if node.dc == dc}
        if len({*racks}) < len(racks) or not racks:
            raise JsonDocumentError(place, "each rack is named once, and at least one is")
        missing = sorted({*racks} - there)
        if missing:
            raise JsonDocumentError(place, f"there is no node in rack '{missing[0]}' of dc '{dc}'")
        if len(racks) > table.replication_factor:
            wrong = f"{len(racks)} racks, but the replication factor is {table.replication_factor}"
            raise JsonDocumentError(place, wrong)


def _check_tablets(path: str, table: ClusterTable, nodes: Mapping[str, ClusterNode]) -> None:
    ids = set[int | str]()
    for at, tablet in enumerate(table.tablets):
        place = f"{path}.tablets[{at}]"
        if tablet.id in ids:
            raise JsonDocumentError(f"{place}.id", f"there is another tablet {tablet.id}")
        ids.add(tablet.id)
        _check_replicas(place, tablet, nodes, table.replication_factor)


def _check_replicas(
    path: str, tablet: Tablet, nodes: Mapping[str, ClusterNode], factor: int
) -> None:
    if not tablet.replicas:
        raise JsonDocumentError(f"{path}.replicas", "a tablet has at least one replica")
    seen = set[str]()
    for at, (name, shard) in enumerate(tablet.replicas):
        place = f"{path}.replicas[{at}]"
        node = nodes.get(name)
        if node is None:
            raise JsonDocumentError(place, f"there is no node '{name}'")
        if shard >= node.shards:
            raise JsonDocumentError(place, f"'{name}' has no shard {shard}: it has {node.shards}")
        if name in seen:
            raise JsonDocumentError(place, f"'{name}' has a replica of this tablet already")
        seen.add(name)
    for dc, count in Counter(nodes[name].dc for name in seen).items():
        if count > factor:
            wrong = f"{count} replicas in dc '{dc}', but the replication factor is {factor}"
            raise JsonDocumentError(f"{path}.replicas", wrong)


def _check_colocation(path: str, table: ClusterTable, tables: Mapping[str, ClusterTable]) -> None:
    if table.colocated_with is None:
        return
    base = tables.get(table.colocated_with)
    if base is None:
        raise JsonDocumentError(path, f"there is no table {table.colocated_with}")
    if base is table or base.colocated_with is not None:
        raise JsonDocumentError(path, f"{base.full_name} goes together with another table itself")
    if base.racks != table.racks:
        raise JsonDocumentError(path, f"{base.full_name} is to be in other racks")
    if len(base.tablets) != len(table.tablets):
        wrong = f"{base.full_name} has {len(base.tablets)} tablets, this one {len(table.tablets)}"
        raise JsonDocumentError(path, wrong)
    for at, (its, ours) in enumerate(zip(base.tablets, table.tablets, strict=True)):
        if its.replicas != ours.replicas:
            raise JsonDocumentError(path, f"tablet {at} is not where that of {base.full_name} is")
