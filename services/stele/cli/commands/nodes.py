"""``stele nodes``: every node that ever was, and how it stands."""

from __future__ import annotations

from stele.cli.models import StateView
from stele.cli.optional import ask
from stele.cli.options import Read, Where
from stele.cli.output import console, duration, percent, print_json, styled, table
from stele.runtime.answers import NodeLiveness

RING_SIZE = 1 << 64


def nodes(read: Read = Read(), where: Where = Where()) -> None:  # noqa: B008
    """All nodes with state, place, share of the ring, liveness and cleanup."""
    with where.client() as client:
        if read.as_json:
            print_json(read.state_json(client))
            return
        view = read.state(client)
        live = ask(client, "session-guard", "/v1/nodes", list[NodeLiveness]) or []
    heard = {row.node_id: row for row in live}
    share = held_share(view)
    columns = (
        "node",
        "state",
        "dc",
        "rack",
        "tokens",
        "holds",
        "up",
        "heard",
        "cleanup",
        "address",
    )
    found = table(f"nodes at epoch {view.epoch}", *columns, right=("tokens", "holds"))
    for node in view.nodes:
        row = heard.get(node.node_id)
        found.add_row(
            node.node_id,
            styled(node.state),
            node.dc,
            node.rack,
            str(len(node.tokens)),
            percent(share.get(node.node_id, 0), RING_SIZE),
            styled("" if row is None else row.liveness),
            "" if row is None else f"{duration(row.silent_for_s)} ago",
            node.cleanup,
            node.address,
        )
    console().print(found)


def held_share(view: StateView) -> dict[str, int]:
    """Node -> how many tokens of the ring it replicates, in the placement with the most ranges."""
    rows = max(view.placements.values(), key=len, default=())
    share: dict[str, int] = {}
    for row in rows:
        for node_id in row.reads:
            size = (row.end - row.start) % RING_SIZE or RING_SIZE
            share[node_id] = share.get(node_id, 0) + size
    return share
