"""``stele nodes``: every node that ever was, and how it stands."""

from __future__ import annotations

from stele.cli.optional import ask
from stele.cli.options import Read, Where
from stele.cli.output import console, duration, percent, print_value_as_json, styled, table
from stele.cli.reading import Reading
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.schema.facts import Keyspace
from stele.runtime.answers.session_guard import NodeLiveness

RING_SIZE = 1 << 64

Held = dict[str, dict[str, int]]
"""Placement -> node -> how many tokens of the ring it is read for."""


def nodes(read: Read = Read(), where: Where = Where()) -> None:  # noqa: B008
    """All nodes with state, place, liveness and cleanup, and how much of each keyspace they hold."""
    with where.client() as client:
        reading = read.of(client)
        found = reading.nodes()
        keyspaces = reading.keyspaces()
        held = held_tokens(reading, keyspaces)
        live = ask(client, "session-guard", "/v1/nodes", list[NodeLiveness]) or []
    if read.as_json:
        holds = {k.name: _shares(held[k.placement]) for k in keyspaces}
        print_value_as_json(
            {
                "epoch": reading.epoch,
                "state_id": reading.state_id,
                "nodes": found,
                "holds": holds,
                "liveness": live,
            }
        )
        return
    heard = {row.node_id: row for row in live}
    by_placement = {name: ", ".join(_names(keyspaces, name)) for name in held}
    columns = ("node", "state", "dc", "rack", "tokens", "up", "heard", "cleanup")
    shares = tuple(f"holds {names}" for names in by_placement.values())
    shown = table(
        f"nodes at epoch {reading.epoch}",
        *columns,
        *shares,
        "address",
        right=("tokens", *shares),
    )
    for node in found:
        row = heard.get(node.node_id)
        shown.add_row(
            node.node_id,
            styled(f"{node.state}, excluded" if node.excluded else node.state),
            node.dc,
            node.rack,
            str(len(node.tokens)),
            styled("" if row is None else row.liveness),
            "" if row is None else f"{duration(row.silent_for_s)} ago",
            f"since epoch {node.cleanup_since}" if node.cleanup_since else "",
            *(percent(held[name].get(node.node_id, 0), RING_SIZE) for name in by_placement),
            node.address,
        )
    console().print(shown)


def held_tokens(reading: Reading, keyspaces: list[Keyspace]) -> Held:
    """For every placement in use, what each node is read for."""
    held: Held = {}
    for name in sorted({keyspace.placement for keyspace in keyspaces}):
        share = held[name] = dict[str, int]()
        for page in reading.placement(name, 10_000):
            for row in page.rows:
                for node_id in row.reads:
                    share[node_id] = share.get(node_id, 0) + tokens_in(row)
    return held


def tokens_in(row: RangeReplicas) -> int:
    return (row.end - row.start) % RING_SIZE or RING_SIZE


def _shares(held: dict[str, int]) -> dict[str, float]:
    return {node_id: round(size / RING_SIZE, 6) for node_id, size in sorted(held.items())}


def _names(keyspaces: list[Keyspace], placement: str) -> list[str]:
    return [keyspace.name for keyspace in keyspaces if keyspace.placement == placement]
