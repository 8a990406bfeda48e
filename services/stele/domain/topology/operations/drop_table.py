"""Drop a table: no version that is in use serves it any more, then its row goes and its name is free.

drop_table -> (gone). See ``drop_keyspace``; migrations of its tablets come to nothing, unless they are those
of a table that it is co-located with: that one stays, with its map.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.names import RequestKind, TransitionState
from stele.domain.requests.facts import Request
from stele.domain.requests.rows import new_request
from stele.domain.schema.facts import Table, TableChanged
from stele.domain.topology.facts import Transition
from stele.domain.topology.operations.base import Operation, State, nobody, replicas_of_data
from stele.domain.topology.operations.commands import DropTable
from stele.domain.topology.operations.keyspaces import (
    check_alone,
    cleaned_everywhere,
    dropped_table,
    free_table,
)

replace = msgspec.structs.replace


def drop_table(context: Context, command: DropTable) -> Decision:
    """Queue the drop of a table that stands, and whose tablets are not those of others too."""
    table = free_table(context.image, command.name)
    if isinstance(table, Rejection):
        return table
    refused = check_alone(context.image, table)
    if refused is not None:
        return refused
    return (new_request(context, RequestKind.DROP_TABLE, table_id=table.table_id),)


def drop_of(image: Image, table: Table) -> Request | None:
    """The request that drops a table, or is about to."""
    mine = (r for r in image.requests.open.values() if r.table_id == table.table_id)
    return next((r for r in mine if r.kind is RequestKind.DROP_TABLE), None)


def on_open(image: Image, transition: Transition, version: int) -> Iterable[AnyFact]:
    table = image.schema.tables[transition.table_id]
    yield TableChanged(replace(table, dropped_version=version))


def on_done(image: Image, transition: Transition, epoch: int) -> Iterable[AnyFact]:
    yield from dropped_table(image, image.schema.tables[transition.table_id])
    yield from cleaned_everywhere(image, epoch)


DROP_TABLE: Final = Operation(
    kind=RequestKind.DROP_TABLE,
    command=DropTable,
    ask=drop_table,
    priority=0,
    first=TransitionState.DROP_TABLE,
    states={TransitionState.DROP_TABLE: State()},
    needed=nobody,
    touched=replicas_of_data,
    on_open=on_open,
    on_done=on_done,
)
