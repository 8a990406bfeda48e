"""Drop a keyspace: after no version in use serves it, its row is removed and its name is free.

drop_keyspace -> (gone)

Requests that are routed by an older version are fenced out in between. So no write under the old id
can be acknowledged once a keyspace of the same name exists.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model.operations import DropKeyspace
from stele.domain.model.schema import KeyspaceChanged, KeyspaceDropped
from stele.domain.model.transitions import Transition
from stele.domain.names import RequestKind, TransitionState
from stele.domain.rules.requests import new_request
from stele.domain.rules.schema import dropped_objects
from stele.domain.topology.operations.base import (
    Operation,
    State,
    nobody,
    replicas_of_data,
)
from stele.domain.topology.operations.keyspaces import (
    cleaned_everywhere,
    dropped_table,
    free_keyspace,
    left_placement,
)

replace = msgspec.structs.replace


def drop_keyspace(context: Context, command: DropKeyspace) -> Decision:
    """Queue the drop of an existing keyspace."""
    keyspace = free_keyspace(context.image, command.name)
    if isinstance(keyspace, Rejection):
        return keyspace
    request = new_request(context, RequestKind.DROP_KEYSPACE, keyspace_id=keyspace.keyspace_id)
    return (request,)


def on_open(image: Image, transition: Transition, version: int) -> Iterable[AnyFact]:
    keyspace = image.schema.by_id[transition.keyspace_id]
    # The row stays until the fence is known, so the name is not free before (rule 36).
    yield KeyspaceChanged(replace(keyspace, dropped_version=version))


def on_done(image: Image, transition: Transition, epoch: int) -> Iterable[AnyFact]:
    """Remove its tables, its row, and its placement if no other keyspace uses it."""
    keyspace = image.schema.by_id[transition.keyspace_id]
    for table in image.schema.tables_of(keyspace):
        yield from dropped_table(image, table)
    yield from dropped_objects(image, keyspace)
    yield KeyspaceDropped(keyspace.keyspace_id)
    if not keyspace.tablets:
        yield from left_placement(image, keyspace)
    yield from cleaned_everywhere(image, epoch)


DROP_KEYSPACE: Final = Operation(
    kind=RequestKind.DROP_KEYSPACE,
    command=DropKeyspace,
    ask=drop_keyspace,
    priority=0,
    needed=nobody,
    first=TransitionState.DROP_KEYSPACE,
    states={TransitionState.DROP_KEYSPACE: State()},
    on_open=on_open,
    touched=replicas_of_data,
    on_done=on_done,
)
