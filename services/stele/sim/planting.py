"""Planting a bug in what an operation says of itself."""

from typing import Any

import msgspec

from stele.domain.names import RequestKind
from stele.domain.topology.operations.table import OPERATIONS
from stele.sim.patching import Patch


def change_operation(patch: Patch, kind: RequestKind, **parts: Any) -> None:
    """With other ``parts`` than it has."""
    patch.item(OPERATIONS, kind, msgspec.structs.replace(OPERATIONS[kind], **parts))
