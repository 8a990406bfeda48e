"""``stele nodes``: every node that ever existed, its state, and its share of each keyspace."""

from __future__ import annotations

from typing import Final

from rich.console import RenderableType

from stele.cli.client import Client, ask
from stele.cli.errors import CliError
from stele.cli.history import last_seen
from stele.cli.options import Format, ReadPoint, Where
from stele.cli.output import (
    NO_ADDRESS,
    ago,
    percent,
    size,
    styled,
    table,
)
from stele.cli.reading import StateReading
from stele.domain.model.membership import Node
from stele.domain.model.requests import Request
from stele.domain.model.schema import Keyspace, Table, owner_of
from stele.domain.names import NodeState
from stele.domain.ring.ranges import RING_SIZE, held_tokens
from stele.runtime.answers.node import NodeView
from stele.runtime.answers.session_guard import Liveness, NodeLiveness
from stele.words.names import departure

Held = dict[str, dict[str, int]]
"""Keyspace -> node -> number of tokens of the ring that the node serves reads for."""

Stored = dict[str, NodeView]
"""The view of each node that answered, with the bytes that it stores."""

UNKNOWN = "unknown"
MOST_LOOKED_FOR: Final = 50
"""Limit of lookups of how nodes left. Others are only shown as left."""


def nodes(read: ReadPoint = ReadPoint(), form: Format = Format(), where: Where = Where()) -> None:
    """List all nodes: state, place, liveness, cleanup, and their share of each keyspace.

    The share is the part of the ring for which the node serves reads; the shares of all nodes add up to the
    replication factor. The bytes are what the node reports, unknown if it does not answer. Past epochs have
    neither bytes nor liveness, because the log does not keep them.
    """
    newest = read.epoch is None
    with where.client() as client:
        reading = read.of(client)
        found = reading.nodes()
        on_the_ring = (k for k in reading.keyspaces() if not k.tablets)
        keyspaces = sorted(on_the_ring, key=lambda k: k.name)
        held = _held(reading, keyspaces)
        asked = ask(client, "session-guard", "/v1/nodes", list[NodeLiveness]) if newest else None
        live = asked or []
        heard = {row.node_id: row for row in live}
        stored = _stored(client, found, heard) if newest and keyspaces else {}
        tables = reading.tables() if stored else []
        sizes = {k.name: stored_bytes(k, tables, stored) for k in keyspaces} if newest else {}
        left = _departures(client, reading, found)
    if form.is_document:
        now = {"stored_bytes": sizes, "liveness": live}
        form.print_document(
            reading.document(
                nodes=found,
                departures=left,
                holds={name: _shares(by_node) for name, by_node in held.items()},
                **(now if newest else {}),
            )
        )
        return
    up = ("up", "heard") if newest else ()
    holds = tuple(f"holds {keyspace.name}" for keyspace in keyspaces)
    several = ("shards",) if any(node.shards > 1 for node in found) else ()
    shown = table(
        f"nodes at epoch {reading.epoch}",
        *("node", "state", "dc", "rack", "tokens"),
        *up,
        "cleanup",
        *several,
        *holds,
        "address",
        right=("tokens", "shards", *holds),
    )
    for node in found:
        shown.add_row(
            node.node_id,
            styled(
                f"{node.state}, excluded" if node.excluded else node.state, left.get(node.node_id)
            ),
            node.dc,
            node.rack,
            str(len(node.tokens)),
            *(_up(heard.get(node.node_id)) if newest else ()),
            f"since epoch {node.cleanup_since}" if node.cleanup_since else "",
            *([str(node.shards)] if several else []),
            *(_cell(node, held[k.name], sizes.get(k.name)) for k in keyspaces),
            node.address or NO_ADDRESS,
        )
    form.print_table(shown)


def _departures(client: Client, reading: StateReading, found: list[Node]) -> dict[str, str]:
    """Return how each node left, from its last request.

    The history has the requests that the state has forgotten.
    """
    gone = [node for node in found if node.state is NodeState.LEFT]
    known = dict[str, Request | None]()
    for node in gone[-MOST_LOOKED_FOR:]:
        try:
            known[node.node_id] = reading.request(node.request_id).request
        except CliError:
            known[node.node_id] = last_seen(client, node.request_id, reading.epoch)
    return {node.node_id: departure(node, known.get(node.node_id)) for node in gone}


def _held(reading: StateReading, keyspaces: list[Keyspace]) -> Held:
    """Return the tokens held. Keyspaces of equal replication share one query."""
    by_placement = {
        name: held_tokens(row for page in reading.placement(name, 10_000) for row in page.rows)
        for name in sorted({keyspace.placement for keyspace in keyspaces})
    }
    return {keyspace.name: by_placement[keyspace.placement] for keyspace in keyspaces}


def _stored(client: Client, found: list[Node], heard: dict[str, NodeLiveness]) -> Stored:
    """Return the views of the nodes that answer.

    An answer of another node at the address is dropped.
    """
    stored: Stored = {}
    for node in found:
        row = heard.get(node.node_id)
        is_down = row is not None and row.liveness is Liveness.DOWN
        if not node.address or node.state is NodeState.LEFT or is_down:
            continue
        try:
            view = client.get_one(f"{node.address}/v1/node", NodeView)
        except CliError:
            continue
        if (view.node_id, view.host_id) == (node.node_id, node.host_id):
            stored[node.node_id] = view
    return stored


def _up(row: NodeLiveness | None) -> tuple[RenderableType, str]:
    return (styled(""), "") if row is None else (styled(row.liveness), ago(row.silent_for_s))


def _cell(node: Node, held: dict[str, int], sizes: dict[str, int] | None) -> str:
    """Return ``50.0 %, 1.2 MB``, or ``50.0 %`` for a past epoch; empty for a node that left."""
    if node.state is NodeState.LEFT:
        return ""
    share = percent(held.get(node.node_id, 0), RING_SIZE)
    if sizes is None:
        return share
    size_bytes = sizes.get(node.node_id)
    return f"{share}, {UNKNOWN if size_bytes is None else size(size_bytes)}"


def stored_bytes(keyspace: Keyspace, tables: list[Table], stored: Stored) -> dict[str, int]:
    """Return the bytes of the keyspace and its tables at each node that answered."""
    owners = {keyspace.keyspace_id}
    owners |= {t.table_id for t in tables if t.keyspace_id == keyspace.keyspace_id}
    return {
        node_id: sum(s.bytes for data, s in view.keyspaces.items() if owner_of(data) in owners)
        for node_id, view in stored.items()
    }


def _shares(held: dict[str, int]) -> dict[str, float]:
    return {node_id: round(size / RING_SIZE, 6) for node_id, size in sorted(held.items())}
