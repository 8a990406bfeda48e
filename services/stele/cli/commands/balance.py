"""``stele balance status``."""

from __future__ import annotations

from cyclopts import App

from stele.cli.options import Json, Where
from stele.cli.output import (
    console,
    duration,
    joined,
    percent,
    print_value_as_json,
    size,
    styled,
)
from stele.cli.output import table as table_of
from stele.cli.reading import as_counted
from stele.runtime.answers.tablet_balancer import BalanceAnswer, BalancedNode

SERVICE = "tablet-balancer"
app = App(name="balance", help="How tablets are spread over the nodes, and what moves.")


@app.command
def status(json: Json = Json(), where: Where = Where()) -> None:  # noqa: B008
    """Whether every node has its share of every table; what moves next and why, and what cannot."""
    with where.client() as client:
        found = client.get(SERVICE, "/v1/balance", BalanceAnswer)
    if json.as_json:
        print_value_as_json(found)
        return
    shown = console()
    shown.print(styled(found.state), f"at epoch {found.epoch}; {len(found.under_way)} tablets move")
    for request_id, why in found.stuck.items():
        shown.print(f"request {request_id} cannot go on: {why}", soft_wrap=True)
    if found.down:
        shown.print(f"not heard: {joined(found.down)}", soft_wrap=True)
    if found.avoided:
        text = f"moves have failed to {joined(found.avoided)}: nothing goes there for a while"
        shown.print(text, soft_wrap=True)
    if found.full:
        shown.print(f"no room left on {joined(found.full)}: nothing goes there", soft_wrap=True)
    shown.print(f"by {found.balanced_by}: {found.why}", soft_wrap=True)
    numbers = ("tablets", "bytes", "capacity", "of its share")
    nodes = table_of("", "node", *numbers, "reported", right=numbers)
    for node_id, node in sorted(found.nodes.items(), key=lambda pair: as_counted(pair[0])):
        nodes.add_row(node_id, *_row(node))
    shown.print(nodes)
    if found.planned:
        planned = table_of("planned at the last look", "tablet", "from", "to", "kind", "because")
        for move in found.planned:
            tablet = f"{move.table} {move.tablet}"
            planned.add_row(tablet, move.from_node, move.to_node, move.kind, move.why)
        shown.print(planned)


def _row(node: BalancedNode) -> tuple[str, ...]:
    return (
        str(node.tablets),
        "" if node.size_bytes is None else size(node.size_bytes),
        "" if node.capacity_bytes is None else size(node.capacity_bytes),
        "" if node.of_share is None else percent(node.of_share, 1),
        "never" if node.report_age_s is None else f"{duration(node.report_age_s)} ago",
    )
