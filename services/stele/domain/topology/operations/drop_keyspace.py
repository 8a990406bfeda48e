"""Drop a keyspace: no version that is in use serves it any more, then its row goes and its name is free.

drop_keyspace -> (gone). Whoever still routes by an older version is fenced out in between, so no write
under the old id can be acknowledged once a keyspace of the same name exists.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.names import RequestKind, TransitionState
from stele.domain.requests.rows import new_request
from stele.domain.schema.facts import KeyspaceChanged, KeyspaceDropped
from stele.domain.topology.facts import Transition
from stele.domain.topology.operations.base import (
    Operation,
    State,
    nobody,
    replicas_of_data,
)
from stele.domain.topology.operations.commands import DropKeyspace
from stele.domain.topology.operations.keyspaces import (
    cleaned_everywhere,
    dropped_table,
    free_keyspace,
    left_placement,
)

replace = msgspec.structs.replace


def drop_keyspace(context: Context, command: DropKeyspace) -> Decision:
    """Queue the drop of a keyspace that stands."""
    keyspace = free_keyspace(context.image, command.name)
    if isinstance(keyspace, Rejection):
        return keyspace
    request = new_request(context, RequestKind.DROP_KEYSPACE, keyspace_id=keyspace.keyspace_id)
    return (request,)


def on_open(image: Image, transition: Transition, version: int) -> Iterable[AnyFact]:
    keyspace = image.schema.by_id[transition.keyspace_id]
    yield KeyspaceChanged(replace(keyspace, dropped_version=version))


def on_done(image: Image, transition: Transition, epoch: int) -> Iterable[AnyFact]:
    """Its tables, its row, and its placement when nobody else uses it."""
    keyspace = image.schema.by_id[transition.keyspace_id]
    for table in image.schema.tables_of(keyspace):
        yield from dropped_table(image, table)
    yield KeyspaceDropped(keyspace.keyspace_id)
    if not keyspace.tablets:
        yield from left_placement(image, keyspace)
    yield from cleaned_everywhere(image, epoch)


DROP_KEYSPACE: Final = Operation(
    kind=RequestKind.DROP_KEYSPACE,
    command=DropKeyspace,
    ask=drop_keyspace,
    priority=0,
    first=TransitionState.DROP_KEYSPACE,
    states={TransitionState.DROP_KEYSPACE: State()},
    needed=nobody,
    touched=replicas_of_data,
    on_open=on_open,
    on_done=on_done,
)
