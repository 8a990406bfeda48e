"""``stele balance status``."""

from __future__ import annotations

from cyclopts import App

from stele.cli.options import Json, Where
from stele.cli.output import console, joined, print_value_as_json, styled
from stele.cli.output import table as table_of
from stele.cli.reading import as_counted
from stele.runtime.answers.tablet_balancer import BalanceAnswer

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
    held = table_of("", "node", "tablets", right=("tablets",))
    for node_id, count in sorted(found.held.items(), key=lambda pair: as_counted(pair[0])):
        held.add_row(node_id, str(count))
    shown.print(held)
    if found.planned:
        planned = table_of("planned at the last look", "tablet", "from", "to", "kind", "because")
        for move in found.planned:
            tablet = f"{move.table} {move.tablet}"
            planned.add_row(tablet, move.from_node, move.to_node, move.kind, move.why)
        shown.print(planned)
