"""``stele nodes``: every node that ever was, how it stands, and what it holds of each keyspace."""

from __future__ import annotations

from rich.console import RenderableType

from stele.cli.client import Client
from stele.cli.errors import CliError
from stele.cli.optional import ask
from stele.cli.options import Read, Where
from stele.cli.output import ago, console, percent, print_value_as_json, size, styled, table
from stele.cli.reading import Reading
from stele.domain.membership.facts import Node
from stele.domain.names import NodeState
from stele.domain.ring.ownership import held_tokens
from stele.domain.ring.tokens import RING_SIZE
from stele.domain.schema.facts import Keyspace
from stele.runtime.answers.node import NodeView
from stele.runtime.answers.session_guard import Liveness, NodeLiveness

Held = dict[str, dict[str, int]]
"""Keyspace -> node -> how many tokens of the ring it is read for."""

Stored = dict[str, NodeView]
"""What each node says that it stores; those that did not answer are missing."""

UNKNOWN = "unknown"


def nodes(read: Read = Read(), where: Where = Where()) -> None:  # noqa: B008
    """All nodes with state, place, liveness and cleanup, and how much of each keyspace they hold.

    The share is that of the ring for which a node serves reads: over all nodes it makes up the replication
    factor. The bytes are what the node itself says that it stores; unknown if it does not answer. At an --epoch
    of the past there are neither bytes nor who is up: of these the log keeps nothing.
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
    if read.as_json:
        now = {
            "stored_bytes": {k.name: _bytes(k, stored) for k in keyspaces},
            "liveness": live,
        }
        print_value_as_json(
            {
                "epoch": reading.epoch,
                "state_id": reading.state_id,
                "nodes": found,
                "holds": {name: _shares(by_node) for name, by_node in held.items()},
                **(now if newest else {}),
            }
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
            styled(f"{node.state}, excluded" if node.excluded else node.state),
            node.dc,
            node.rack,
            str(len(node.tokens)),
            *(_up(heard.get(node.node_id)) if newest else ()),
            f"since epoch {node.cleanup_since}" if node.cleanup_since else "",
            *([str(node.shards)] if several else []),
            *(_cell(node, keyspace, held, stored if newest else None) for keyspace in keyspaces),
            node.address,
        )
    console().print(shown)


def _held(reading: Reading, keyspaces: list[Keyspace]) -> Held:
    """Those of equal replication hold the same; it is asked for once."""
    by_placement = {
        name: held_tokens(row for page in reading.placement(name, 10_000) for row in page.rows)
        for name in sorted({keyspace.placement for keyspace in keyspaces})
    }
    return {keyspace.name: by_placement[keyspace.placement] for keyspace in keyspaces}


def _stored(client: Client, found: list[Node], heard: dict[str, NodeLiveness]) -> Stored:
    """Asks each node that may answer; who answers in its place is not it."""
    stored: Stored = {}
    for node in found:
        row = heard.get(node.node_id)
        if node.state is NodeState.LEFT or (row is not None and row.liveness is Liveness.DOWN):
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


def _cell(node: Node, keyspace: Keyspace, held: Held, stored: Stored | None) -> str:
    """``50.0 %, 1.2 MB``, of the past ``50.0 %``; nothing of a node that has left."""
    if node.state is NodeState.LEFT:
        return ""
    share = percent(held[keyspace.name].get(node.node_id, 0), RING_SIZE)
    if stored is None:
        return share
    size_bytes = _bytes(keyspace, stored).get(node.node_id)
    return f"{share}, {UNKNOWN if size_bytes is None else size(size_bytes)}"


def _bytes(keyspace: Keyspace, stored: Stored) -> dict[str, int]:
    """Of the nodes that answered."""
    sizes = {node_id: view.keyspaces.get(keyspace.keyspace_id) for node_id, view in stored.items()}
    return {node_id: found.bytes if found else 0 for node_id, found in sizes.items()}


def _shares(held: dict[str, int]) -> dict[str, float]:
    return {node_id: round(size / RING_SIZE, 6) for node_id, size in sorted(held.items())}
