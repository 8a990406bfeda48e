"""Decisions that switch balancing off and on, for the cluster, a keyspace or a table.

The log is one sequence, so no request begins by an older view. The epoch that switches off cancels
the balancer's requests that have not begun. Its later requests are refused
(``switches.check_balancing``).
"""

from typing import Final, NamedTuple

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision
from stele.domain.image import Image
from stele.domain.names import BALANCER, RequestStatus
from stele.domain.requests.domain import end_untouched
from stele.domain.requests.model import Request
from stele.domain.schema.checks import Drops, accepted_drops, standing_keyspace, standing_table
from stele.domain.schema.model import (
    Balancing,
    BalancingSwitched,
    Off,
    SwitchBalancingOff,
    SwitchBalancingOn,
)
from stele.domain.schema.switches import gives_all_away, off_for
from stele.domain.tablets.copies import is_required

MAX_MS: Final = 253_402_300_799_999
"""The end of the year 9999. Clocks do not show later times."""


class Scope(NamedTuple):
    """The object of a switch: its id, empty for the cluster, and the tables that it covers.

    ``wider`` are the switches around it that are off, and those of tables that are co-located with
    it.
    """

    of: str
    balancing: Balancing
    tables: frozenset[str]
    wider: tuple[Off, ...] = ()


def switch_balancing_off(context: Context, command: SwitchBalancingOff) -> Decision:
    """Switch balancing off. If it is off already, the new times replace the old ones."""
    scope = _scope(context, command.name)
    if isinstance(scope, Rejection):
        return scope
    refused = _check_times(command)
    if refused is not None:
        return refused
    switched = Balancing(
        off_since=context.epoch,
        until_ms=command.until_ms,
        abort_at_ms=command.abort_at_ms,
        actor=context.envelope.actor,
        reason=context.envelope.reason,
    )
    why = f"{Off(command.name, switched).words()} since epoch {context.epoch}"
    # The same epoch cancels these requests, so no move begins after the command has returned.
    waiting = _not_begun(context.image, scope.tables)
    ended = end_untouched(context, waiting, RequestStatus.CANCELLED, why)
    return BalancingSwitched(scope.of, switched), *ended


def switch_balancing_on(context: Context, command: SwitchBalancingOn) -> Decision:
    """Switch balancing on. Without effect if it is on already."""
    scope = _scope(context, command.name)
    if isinstance(scope, Rejection):
        return scope
    off_since = scope.balancing.off_since
    # The balancer ends an expired switch by its epoch. A later switch must not end with it.
    if command.off_since not in (0, off_since):
        return Rejection(
            "switched_meanwhile",
            f"The switch of epoch {command.off_since} is not in force any more.",
            "`stele balance status` shows which ones are.",
            {"off_since": str(off_since)},
        )
    if off_since:
        return (BalancingSwitched(scope.of, Balancing()),)
    # Success would be misleading here, because the wider switch still holds these tablets.
    if scope.wider:
        off = scope.wider[0]
        return Rejection(
            "balancing_off",
            f"Balancing of {command.name} is not off by itself: {off.words()}.",
            f"{off.remedy()} switches that on.",
            {"name": off.name, "off_since": str(off.balancing.off_since)},
        )
    return ()


def _scope(context: Context, name: str) -> Scope | Rejection:
    image, schema = context.image, context.image.schema
    if not name:
        return Scope("", schema.balancing, frozenset(t.table_id for t in schema.with_tablets()))
    drops = accepted_drops(image, context.envelope.actor)
    if "." in name:
        return _table_scope(image, name, drops)
    keyspace = standing_keyspace(image, name, drops)
    if isinstance(keyspace, Rejection):
        return keyspace
    if not keyspace.tablets:
        return _not_balanced(f"Keyspace {name}")
    tables = frozenset(table.table_id for table in schema.tables_of(keyspace))
    wider = (Off("", schema.balancing),) if schema.balancing.off_since else ()
    return Scope(keyspace.keyspace_id, keyspace.balancing, tables, wider)


def _table_scope(image: Image, name: str, drops: Drops) -> Scope | Rejection:
    schema = image.schema
    table = standing_table(image, name, drops)
    if isinstance(table, Rejection):
        return table
    if not table.placement:
        return _not_balanced(f"Table {name}")
    wider = tuple(off for off in off_for(schema, table) if off.name != name)
    owner = schema.map_owner(table)  # requests on its tablets name the owner
    return Scope(table.table_id, table.balancing, frozenset({owner.table_id}), wider)


def _not_balanced(what: str) -> Rejection:
    return Rejection(
        "no_tablets",
        f"{what} has no tablets: it is spread over the ring, and never balanced.",
        "`stele table list` shows which tables have some.",
    )


def _check_times(command: SwitchBalancingOff) -> Rejection | None:
    until_ms, abort_at_ms = command.until_ms, command.abort_at_ms
    if not (0 <= until_ms <= MAX_MS and 0 <= abort_at_ms <= MAX_MS):
        return Rejection(
            "bad_time",
            "until_ms and abort_at_ms are milliseconds since 1970.",
            "Or 0: it has no limit, and what is under way finishes.",
        )
    # An expired switch cancels nothing, so this cancellation would never happen.
    if 0 < until_ms <= abort_at_ms:
        return Rejection(
            "bad_time",
            "Balancing would be on again before what is under way is cancelled.",
            "Switch it off for longer, or cancel earlier.",
        )
    return None


def _not_begun(image: Image, tables: frozenset[str]) -> list[Request]:
    """Return the balancer's pending requests that a switch cancels.

    These are not moves that empty nodes, moves for a change of replication, repairs or restores.
    """
    pending, tables_of = image.requests.pending(), image.schema.tables
    own = [r for r in pending if r.actor == BALANCER and r.table_id in tables]
    own = [r for r in own if not r.stays_in_place]
    nodes = {request.from_node for request in own} - {""}
    emptied = {node_id for node_id in nodes if gives_all_away(image, node_id)}
    return [
        request
        for request in own
        if request.from_node not in emptied
        and not is_required(image, tables_of[request.table_id], request)
    ]
