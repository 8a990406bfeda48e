"""The kinds of operations, one file each."""

from typing import Final

from stele.domain.names import RequestKind
from stele.domain.topology.operations.base import Operation, State
from stele.domain.topology.operations.drop_keyspace import DROP_KEYSPACE
from stele.domain.topology.operations.join import JOIN
from stele.domain.topology.operations.leave import LEAVE

__all__ = ["OPERATIONS", "Operation", "State"]

OPERATIONS: Final[dict[RequestKind, Operation]] = {
    operation.kind: operation for operation in (JOIN, LEAVE, DROP_KEYSPACE)
}
