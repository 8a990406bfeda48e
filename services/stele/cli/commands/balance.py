"""``stele balance status|plan|why``."""

from __future__ import annotations

from cyclopts import App

from stele.cli.balance_file import exit_of, print_plan
from stele.cli.options import Json, Where
from stele.cli.output import console, joined, print_value_as_json, styled
from stele.cli.output import table as table_of
from stele.cli.reading import as_counted
from stele.runtime.answers.tablet_balancer import BalanceAnswer, BalancePlan, TabletWhy

SERVICE = "tablet-balancer"
app = App(name="balance", help="How tablets are spread over the nodes, and what moves.")


@app.command
def plan(json: Json = Json(), where: Where = Where()) -> int:  # noqa: B008
    """All moves that are left until everything is even, each with its reason, and how even it is then.

    What really moves is planned anew at each step. Nothing is done.
    """
    with where.client() as client:
        found = client.get(SERVICE, "/v1/balance/plan", BalancePlan)
    if json.as_json:
        print_value_as_json(found)
    else:
        console().print(f"plan at epoch {found.epoch}")
        print_plan(found.plan)
    return exit_of(found.plan)


@app.command
def why(
    table: str,
    tablet: int,
    *,
    json: Json = Json(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Why a tablet is where it is: for each of its replicas and each other node, what speaks for a move, or
    forbids it.

    Args:
        table: KEYSPACE.TABLE.
        tablet: Its number.
    """
    with where.client() as client:
        found = client.get(SERVICE, "/v1/balance/why", TabletWhy, table=table, tablet=tablet)
    if json.as_json:
        print_value_as_json(found)
        return
    title = f"tablet {tablet} of {table} at epoch {found.epoch}"
    shown = table_of(title, "replica on", "could go to", "would it", "rule", "because")
    for verdict in found.verdicts:
        if verdict.source != verdict.target:
            accepted = "yes" if verdict.accepted else "no"
            shown.add_row(verdict.source, verdict.target, accepted, verdict.rule, verdict.reason)
    console().print(shown)


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
