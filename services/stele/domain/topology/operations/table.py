"""The kinds of operations, one file each."""

from typing import Final

from stele.domain.names import RequestKind
from stele.domain.topology.operations.base import Operation, State
from stele.domain.topology.operations.drop_keyspace import DROP_KEYSPACE
from stele.domain.topology.operations.exclude import EXCLUDE
from stele.domain.topology.operations.join import JOIN
from stele.domain.topology.operations.leave import LEAVE
from stele.domain.topology.operations.remove import REMOVE
from stele.domain.topology.operations.replace import REPLACE

__all__ = ["OPERATIONS", "Operation", "State"]

OPERATIONS: Final[dict[RequestKind, Operation]] = {
    operation.kind: operation
    for operation in (REPLACE, JOIN, REMOVE, LEAVE, EXCLUDE, DROP_KEYSPACE)
}
