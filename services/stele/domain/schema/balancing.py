"""Switching balancing off and on, for the cluster, a keyspace or a table.

The log is one line, so nothing begins by an older view: what the balancer has asked for and has not begun ends
in the epoch that switches off, and what it asks for after that is refused (``switches.check_balancing``).
"""

from typing import Final, NamedTuple

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision, unknown_keyspace, unknown_table
from stele.domain.image import Image
from stele.domain.names import BALANCER, RequestStatus
from stele.domain.requests.decide import end_untouched
from stele.domain.requests.facts import Request
from stele.domain.schema.facts import (
    Balancing,
    BalancingSwitched,
    Off,
    SwitchBalancingOff,
    SwitchBalancingOn,
)
from stele.domain.schema.switches import gives_all_away, off_for
from stele.domain.tablets.copies import is_required

MAX_MS: Final = 253_402_300_799_999
"""The end of the year 9999, beyond which clocks do not show times."""


class Scope(NamedTuple):
    """What is switched: by its id, empty for the cluster. ``wider`` are the switches that are off around it, or
    of tables that are co-located with it.
    """

    of: str
    balancing: Balancing
    tables: frozenset[str]
    wider: tuple[Off, ...] = ()


def switch_balancing_off(context: Context, command: SwitchBalancingOff) -> Decision:
    """Also where it is off already: then by these times."""
    scope = _scope(context.image, command.name)
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
    waiting = _not_begun(context.image, scope.tables)
    ended = end_untouched(context, waiting, RequestStatus.CANCELLED, why)
    return BalancingSwitched(scope.of, switched), *ended


def switch_balancing_on(context: Context, command: SwitchBalancingOn) -> Decision:
    """Nothing where it is on already."""
    scope = _scope(context.image, command.name)
    if isinstance(scope, Rejection):
        return scope
    off_since = scope.balancing.off_since
    if command.off_since not in (0, off_since):
        return Rejection(
            "switched_meanwhile",
            f"The switch of epoch {command.off_since} is not in force any more.",
            "`stele balance status` shows which ones are.",
            {"off_since": str(off_since)},
        )
    if off_since:
        return (BalancingSwitched(scope.of, Balancing()),)
    if scope.wider:
        off = scope.wider[0]
        return Rejection(
            "balancing_off",
            f"Balancing of {command.name} is not off by itself: {off.words()}.",
            f"{off.remedy()} switches that on.",
            {"name": off.name, "off_since": str(off.balancing.off_since)},
        )
    return ()


def _scope(image: Image, name: str) -> Scope | Rejection:
    schema = image.schema
    if not name:
        return Scope("", schema.balancing, frozenset(t.table_id for t in schema.with_tablets()))
    if "." in name:
        return _table_scope(image, name)
    keyspace = schema.named(name)
    if keyspace is None or keyspace.dropped_version:
        return unknown_keyspace(name)
    if not keyspace.tablets:
        return _not_balanced(f"Keyspace {name}")
    tables = frozenset(table.table_id for table in schema.tables_of(keyspace))
    wider = (Off("", schema.balancing),) if schema.balancing.off_since else ()
    return Scope(keyspace.keyspace_id, keyspace.balancing, tables, wider)


def _table_scope(image: Image, name: str) -> Scope | Rejection:
    schema = image.schema
    table = schema.table_named(name)
    if table is None or schema.data_of(table).dropped_version:
        return unknown_table(name)
    if not table.placement:
        return _not_balanced(f"Table {name}")
    wider = tuple(off for off in off_for(schema, table) if off.name != name)
    owner = schema.map_owner(table)  # what is asked for of its tablets is asked for of that one
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
    if 0 < until_ms <= abort_at_ms:
        return Rejection(
            "bad_time",
            "Balancing would be on again before what is under way is cancelled.",
            "Switch it off for longer, or cancel earlier.",
        )
    return None


def _not_begun(image: Image, tables: frozenset[str]) -> list[Request]:
    """What the balancer has asked for; but not what empties nodes, what a change of replication asks for, and
    what moves nothing: repairs and restores.
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
