"""Decide a batch of schema changes: all of them, or none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from stele.domain.base import Rejected, Rejection, required
from stele.domain.context import Context, Decision
from stele.domain.ddl import alter_tables, alter_types, keyspaces
from stele.domain.facts import AnyFact
from stele.domain.model import schema as c
from stele.domain.model.operations import DropKeyspace
from stele.domain.model.schema import (
    CreateKeyspace,
    KeyspaceCreation,
    KeyspaceRemoval,
    TableSchemaChanged,
)
from stele.domain.rules.schema import accepted_drops, check_keyspace_stands
from stele.domain.topology.operations import keyspaces as operation


def create_keyspace(context: Context, change: KeyspaceCreation) -> Iterable[AnyFact]:
    known = context.image.schema.named(change.name)
    if known is not None and change.if_not_exists:
        # The name is not free yet while its keyspace is being dropped.
        required(check_keyspace_stands(known, accepted_drops(context.image)))
        return ()
    command = CreateKeyspace(
        change.name, change.replication, change.tablets, change.initial_tablets, change.racks
    )
    return required(keyspaces.create_keyspace(context, command))


def drop_keyspace(context: Context, change: KeyspaceRemoval) -> Iterable[AnyFact]:
    if change.if_exists and context.image.schema.named(change.name) is None:
        return ()
    return required(operation.drop_keyspace(context, DropKeyspace(change.name)))


# The decision on a batch of schema changes: all take effect in one epoch, or none does.


MAX_CHANGES: Final = 10_000

DECIDED_BY: Final[dict[type[c.SchemaChange], Callable[[Context, Any], Iterable[AnyFact]]]] = {
    c.KeyspaceCreation: create_keyspace,
    c.KeyspaceRemoval: drop_keyspace,
    c.TableCreation: alter_tables.create_table,
    c.TableAlteration: alter_tables.alter_table,
    c.TableRemoval: alter_tables.drop_table,
    c.TypeCreation: alter_types.create_type,
    c.TypeAlteration: alter_types.alter_type,
    c.TypeRemoval: alter_types.drop_type,
    c.FunctionCreation: alter_types.create_function,
    c.FunctionRemoval: alter_types.drop_function,
    c.AggregateCreation: alter_types.create_aggregate,
    c.AggregateRemoval: alter_types.drop_aggregate,
    c.IndexCreation: alter_tables.create_index,
    c.IndexRemoval: alter_tables.drop_index,
    c.ViewCreation: alter_tables.create_view,
    c.ViewAlteration: alter_tables.alter_view,
    c.ViewRemoval: alter_tables.drop_view,
}
assert DECIDED_BY.keys() == {*c.CHANGES}


def alter_schema(context: Context, command: c.AlterSchema) -> Decision:
    """Decide the changes one after the other, each on the state that the earlier ones make."""
    version = context.image.schema.version
    if command.schema_version not in (0, version.epoch):
        return Rejection(
            "schema_changed",
            f"The changes were made for the schema of epoch {command.schema_version}; it has changed at"
            f" epoch {version.epoch}.",
            f"See the difference: `stele schema diff {command.schema_version} {version.epoch}`.",
            {"schema_version": str(version.epoch)},
        )
    if len(command.changes) > MAX_CHANGES:
        return Rejection(
            "too_many_changes",
            f"The command has {len(command.changes)} changes; one batch has at most {MAX_CHANGES}.",
            "Divide it into several commands.",
        )
    step, facts, made = context, list[AnyFact](), tuple[AnyFact, ...]()
    for number, change in enumerate(command.changes, 1):
        # The facts of the last change are not folded here: the writer folds all of them.
        if made:
            step = _after(step, made, number - 1)
        try:
            made = tuple(DECIDED_BY[type(change)](step, change))
        except Rejected as refused:
            return _located(refused.rejection, number, change, len(command.changes))
        facts += made
    return tuple(_last_rows(facts))


def _last_rows(facts: list[AnyFact]) -> Iterator[AnyFact]:
    """Yield the facts without the columns of a table that a later change of the batch replaces."""
    last = {f.schema.table_id: f for f in facts if isinstance(f, TableSchemaChanged)}
    for fact in facts:
        if not isinstance(fact, TableSchemaChanged) or last[fact.schema.table_id] is fact:
            yield fact


def _after(step: Context, made: tuple[AnyFact, ...], number: int) -> Context:
    """Return the context of the next change."""
    after = step.fold(step.image, made)
    # A drop is a request with the command's id. A later drop of the batch needs another id.
    made_request = after.requests is not step.image.requests
    envelope = step.envelope
    if made_request:
        request_id = step.unique(f"request after change {number}")
        envelope = msgspec.structs.replace(envelope, request_id=request_id)
    return step._replace(image=after, envelope=envelope)


def _located(refused: Rejection, number: int, change: c.SchemaChange, count: int) -> Rejection:
    """Return a rejection that names its change, if the batch has several."""
    if count == 1:
        return refused
    tag = change.__struct_config__.tag
    name = getattr(change, "name", "") or getattr(change, "table", "")
    return Rejection(
        refused.code,
        f"Change {number} of {count} ({tag} {name[:130]}): {refused.message}",
        refused.hint,
        {**refused.details, "change": str(number)},
    )
