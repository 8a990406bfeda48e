"""Truncate: data written before is deleted on every replica and never returns.

It applies to a table, or to a keyspace without tablets.

truncate -> (gone)

There is no way back. Entering the state gives the data another id, so writes of older versions no
longer count (docs/decisions/016-truncated-data-has-another-id.md). It is left after every member
has deleted the old data, or is excluded.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model.operations import Truncate
from stele.domain.model.schema import KeyspaceChanged, TableChanged
from stele.domain.model.transitions import Transition
from stele.domain.names import OrderKind, RequestKind, TransitionState
from stele.domain.rules.requests import new_request
from stele.domain.topology.operations.base import (
    GLOBAL_PRIORITY,
    Operation,
    State,
    every_member,
    replicas_of_data,
)
from stele.domain.topology.operations.keyspaces import (
    free_keyspace,
    free_table,
    has_no_data,
    repairs_forgotten,
)


def truncate(context: Context, command: Truncate) -> Decision:
    """Queue it for the existing table or keyspace of this name."""
    if context.image.schema.table_named(command.name) is not None:
        table = free_table(context.image, command.name)
        if isinstance(table, Rejection):
            return table
        return (new_request(context, RequestKind.TRUNCATE, table_id=table.table_id),)
    keyspace = free_keyspace(context.image, command.name)
    if isinstance(keyspace, Rejection):
        return keyspace
    if keyspace.tablets:
        return has_no_data(command.name)
    return (new_request(context, RequestKind.TRUNCATE, keyspace_id=keyspace.keyspace_id),)


def on_open(image: Image, transition: Transition, version: int) -> Iterable[AnyFact]:
    if transition.table_id:
        table = image.schema.tables[transition.table_id]
        # The version gives the data another id from this epoch on (rule 36).
        yield TableChanged(msgspec.structs.replace(table, truncated_version=version))
        if len(image.schema.group_of(table)) == 1:  # what others have there stays repaired
            yield from repairs_forgotten(image, table.table_id)
    else:
        keyspace = image.schema.by_id[transition.keyspace_id]
        yield KeyspaceChanged(msgspec.structs.replace(keyspace, truncated_version=version))


TRUNCATE: Final = Operation(
    kind=RequestKind.TRUNCATE,
    command=Truncate,
    ask=truncate,
    priority=GLOBAL_PRIORITY,
    needed=every_member,
    ends_by_silence=True,
    first=TransitionState.TRUNCATE,
    states={TransitionState.TRUNCATE: State(everybody_does=OrderKind.TRUNCATE)},
    on_open=on_open,
    touched=replicas_of_data,
)
