"""Whether a description of a cluster makes sense; what does not is told with its place in the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from stele.domain.balance.cluster import Cluster, Node, Table, Tablet

_AT: Final = " - at `$"


class BadCluster(ValueError):
    """``path`` is the place in the file, like ``tables[0].tablets[3].replicas[1]``; empty: the whole of it."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path


def read_cluster(raw: bytes) -> Cluster:
    """The cluster that a JSON file describes, checked. Raises BadCluster."""
    try:
        cluster = msgspec.json.decode(raw, type=Cluster)
    except msgspec.ValidationError as error:
        text, found, path = str(error).partition(_AT)
        if not found:
            raise BadCluster("", text) from None
        raise BadCluster(_exact(raw, path.rstrip("`").lstrip(".")), text) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadCluster("", f"this is no JSON: {error}") from None
    check(cluster)
    return cluster


def _exact(raw: bytes, path: str) -> str:
    """msgspec names places in lists as ``[...]``; the first item there that is wrong is looked for."""
    head, found, rest = path.partition("[...]")
    if not found:
        return path
    for at, item in enumerate(msgspec.json.decode(raw)[head]):
        place = _wrong(item, Node if head == "nodes" else Table)
        if place is not None:
            return f"{head}[{at}]{place}"
    return head + found + rest


def _wrong(item: object, kind: type[msgspec.Struct]) -> str | None:
    """Where an item is no ``kind``; none: it is one."""
    try:
        msgspec.convert(item, kind)
    except msgspec.ValidationError as error:
        place = str(error).partition(_AT)[2].rstrip("`")
        if kind is not Table or not place.startswith(".tablets[...]"):
            return _numbered(item, place)
        assert isinstance(item, dict)
        for at, tablet in enumerate(item["tablets"]):
            inner = _wrong(tablet, Tablet)
            if inner is not None:
                return f".tablets[{at}]{inner}"
    return None


def _numbered(item: object, place: str) -> str:
    """The number of the replica that is wrong."""
    if not place.startswith(".replicas[...]"):
        return place
    assert isinstance(item, dict)
    for at, replica in enumerate(item["replicas"]):
        try:
            msgspec.convert({"id": 0, "replicas": [replica]}, Tablet)
        except msgspec.ValidationError:
            return place.replace("[...]", f"[{at}]", 1)
    return place


def check(cluster: Cluster) -> None:
    """Raises BadCluster for the first thing that cannot be."""
    nodes = dict[str, Node]()
    for at, node in enumerate(cluster.nodes):
        if node.id in nodes:
            raise BadCluster(f"nodes[{at}].id", f"there is another node '{node.id}'")
        nodes[node.id] = node
    tables = dict[str, Table]()
    for at, table in enumerate(cluster.tables):
        if table.full_name in tables:
            raise BadCluster(f"tables[{at}].name", f"there is another table {table.full_name}")
        tables[table.full_name] = table
        _check_racks(f"tables[{at}].racks", table, nodes)
        _check_tablets(f"tables[{at}]", table, nodes)
    for at, table in enumerate(cluster.tables):
        _check_colocation(f"tables[{at}].colocated_with", table, tables)


def _check_racks(path: str, table: Table, nodes: Mapping[str, Node]) -> None:
    for dc, racks in table.racks.items():
        place, there = f"{path}.{dc}", {node.rack for node in nodes.values() if node.dc == dc}
        if len({*racks}) < len(racks) or not racks:
            raise BadCluster(place, "each rack is named once, and at least one is")
        missing = sorted({*racks} - there)
        if missing:
            raise BadCluster(place, f"there is no node in rack '{missing[0]}' of dc '{dc}'")
        if len(racks) > table.replication_factor:
            wrong = f"{len(racks)} racks, but the replication factor is {table.replication_factor}"
            raise BadCluster(place, wrong)


def _check_tablets(path: str, table: Table, nodes: Mapping[str, Node]) -> None:
    ids = set[int | str]()
    for at, tablet in enumerate(table.tablets):
        place = f"{path}.tablets[{at}]"
        if tablet.id in ids:
            raise BadCluster(f"{place}.id", f"there is another tablet {tablet.id}")
        ids.add(tablet.id)
        _check_replicas(place, tablet, nodes, table.replication_factor)


def _check_replicas(path: str, tablet: Tablet, nodes: Mapping[str, Node], factor: int) -> None:
    if not tablet.replicas:
        raise BadCluster(f"{path}.replicas", "a tablet has at least one replica")
    seen = set[str]()
    for at, (name, shard) in enumerate(tablet.replicas):
        place = f"{path}.replicas[{at}]"
        node = nodes.get(name)
        if node is None:
            raise BadCluster(place, f"there is no node '{name}'")
        if shard >= node.shards:
            raise BadCluster(place, f"'{name}' has no shard {shard}: it has {node.shards}")
        if name in seen:
            raise BadCluster(place, f"'{name}' has a replica of this tablet already")
        seen.add(name)
    for dc, count in Counter(nodes[name].dc for name in seen).items():
        if count > factor:
            wrong = f"{count} replicas in dc '{dc}', but the replication factor is {factor}"
            raise BadCluster(f"{path}.replicas", wrong)


def _check_colocation(path: str, table: Table, tables: Mapping[str, Table]) -> None:
    if table.colocated_with is None:
        return
    base = tables.get(table.colocated_with)
    if base is None:
        raise BadCluster(path, f"there is no table {table.colocated_with}")
    if base is table or base.colocated_with is not None:
        raise BadCluster(path, f"{base.full_name} goes together with another table itself")
    if base.racks != table.racks:
        raise BadCluster(path, f"{base.full_name} is to be in other racks")
    if len(base.tablets) != len(table.tablets):
        wrong = f"{base.full_name} has {len(base.tablets)} tablets, this one {len(table.tablets)}"
        raise BadCluster(path, wrong)
    for at, (its, ours) in enumerate(zip(base.tablets, table.tablets, strict=True)):
        if its.replicas != ours.replicas:
            raise BadCluster(path, f"tablet {at} is not where that of {base.full_name} is")
