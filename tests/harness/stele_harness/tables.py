"""Readers of the Delta tables and of the topic of placements, as a consumer would write them."""

from __future__ import annotations

import msgspec
import pyarrow.compute as pc

from stele.domain.messages import PlacementRow
from stele.domain.ring.ranges import RangeReplicas
from stele.log.brokers import Brokers
from stele.log.codec import Framing
from stele.placements.fold import Key
from stele.placements.store import Address, Row, TableStore, by_placement, rows_of_cluster
from stele.placements.topic import PLACEMENTS, PLAIN, TopicView, read_rows


class Materialized(msgspec.Struct, frozen=True):
    """How far a cluster's events are in the tables; ``state_id`` is 32 hex digits."""

    epoch: int
    state_id: str


def read_table(address: Address, name: str, cluster: str, version: int | None = None) -> list[Row]:
    """Return the rows of one cluster, unordered, at ``version`` or the newest.

    Raises TableMissing.
    """
    return rows_of_cluster(TableStore(address).table(name, version), cluster)


def reached(address: Address, cluster: str) -> Materialized | None:
    """Return the newest epoch in table ``events``; None: no epoch.

    Other tables follow within moments.
    """
    events = TableStore(address).table("events").to_pyarrow_dataset()
    kinds = pc.field("row_kind").isin(["epoch", "snapshot"])
    wanted = (pc.field("cluster") == cluster) & kinds
    rows = events.to_table(["epoch", "state_id"], wanted).to_pylist()
    if not rows:
        return None
    last = max(rows, key=lambda row: int(row["epoch"]))
    return Materialized(last["epoch"], last["state_id"])


def current_placements(
    address: Address, cluster: str, version: int | None = None
) -> dict[str, list[RangeReplicas]]:
    """Return the rows of table ``placements`` by the placement's name, ascending."""
    return by_placement(read_table(address, "placements", cluster, version))


def read_placements(
    brokers: Brokers, cluster: str, framing: Framing = PLAIN
) -> TopicView[Key, PlacementRow]:
    """Read the topic of placements. Raises as ``read_rows`` does."""
    return read_rows(brokers, cluster, PLACEMENTS, framing)
