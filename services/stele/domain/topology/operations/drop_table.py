"""Drop a table: after no version in use serves it, its row is removed and its name is free.

drop_table -> (gone)

See ``drop_keyspace``. Migrations of its tablets end without effect. If the table is co-located with
another one, that table stays with its map and its migrations.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model.operations import DropTable
from stele.domain.model.schema import TableChanged
from stele.domain.model.transitions import Transition
from stele.domain.names import RequestKind, TransitionState
from stele.domain.rules.requests import new_request
from stele.domain.rules.schema import check_no_views
from stele.domain.topology.operations.base import Operation, State, nobody, replicas_of_data
from stele.domain.topology.operations.keyspaces import (
    check_alone,
    cleaned_everywhere,
    dropped_table,
    free_table,
)

replace = msgspec.structs.replace


def drop_table(context: Context, command: DropTable) -> Decision:
    """Queue the drop of an existing table without views whose tablet map no other table shares."""
    table = free_table(context.image, command.name)
    if isinstance(table, Rejection):
        return table
    refused = check_alone(context.image, table) or check_no_views(context.image, table)
    if refused is not None:
        return refused
    return (new_request(context, RequestKind.DROP_TABLE, table_id=table.table_id),)


def on_open(image: Image, transition: Transition, version: int) -> Iterable[AnyFact]:
    table = image.schema.tables[transition.table_id]
    # The row stays until the fence is known, so the name is not free before (rule 36).
    yield TableChanged(replace(table, dropped_version=version))


def on_done(image: Image, transition: Transition, epoch: int) -> Iterable[AnyFact]:
    yield from dropped_table(image, image.schema.tables[transition.table_id])
    yield from cleaned_everywhere(image, epoch)


DROP_TABLE: Final = Operation(
    kind=RequestKind.DROP_TABLE,
    command=DropTable,
    ask=drop_table,
    priority=0,
    needed=nobody,
    first=TransitionState.DROP_TABLE,
    states={TransitionState.DROP_TABLE: State()},
    on_open=on_open,
    touched=replicas_of_data,
    on_done=on_done,
)
