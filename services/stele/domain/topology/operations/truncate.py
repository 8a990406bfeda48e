"""Truncate: all data of a keyspace that was written before is gone, on every replica, and never comes back.

truncate -> (gone).
There is no way back from it: entering it gives the keyspace's data another id, so whatever was written by
older versions does not count any more (docs/decisions/016-truncated-data-has-another-id.md). It is left when
every member has deleted the old data, or is excluded.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from stele.domain.base import Rejection
from stele.domain.context import Context, Decision
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.names import OrderKind, RequestKind, TransitionState
from stele.domain.requests.rows import new_request
from stele.domain.schema.facts import KeyspaceChanged
from stele.domain.topology.facts import Transition
from stele.domain.topology.operations.base import (
    GLOBAL_PRIORITY,
    Operation,
    State,
    every_member,
    replicas_of_keyspace,
)
from stele.domain.topology.operations.commands import Truncate
from stele.domain.topology.operations.keyspaces import free_keyspace


def truncate(context: Context, command: Truncate) -> Decision:
    """Queue it for a keyspace that stands."""
    keyspace = free_keyspace(context.image, command.name)
    if isinstance(keyspace, Rejection):
        return keyspace
    return (new_request(context, RequestKind.TRUNCATE, keyspace_id=keyspace.keyspace_id),)


def on_open(image: Image, transition: Transition, version: int) -> Iterable[AnyFact]:
    keyspace = image.schema.by_id[transition.keyspace_id]
    yield KeyspaceChanged(msgspec.structs.replace(keyspace, truncated_version=version))


TRUNCATE: Final = Operation(
    kind=RequestKind.TRUNCATE,
    command=Truncate,
    ask=truncate,
    priority=GLOBAL_PRIORITY,
    first=TransitionState.TRUNCATE,
    states={TransitionState.TRUNCATE: State(everybody_does=OrderKind.TRUNCATE)},
    needed=every_member,
    touched=replicas_of_keyspace,
    on_open=on_open,
)
