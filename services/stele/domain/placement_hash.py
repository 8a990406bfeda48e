"""One hash for the placements of a cluster, from any copy: an image, a Delta table, a topic."""

import hashlib
from collections.abc import Iterable, Mapping

import msgspec

from stele.domain.ring.ranges import RangeReplicas

Rows = Mapping[str, Iterable[RangeReplicas]]
"""Rows by the placement's name, in any order."""

_JSON = msgspec.json.Encoder()


def canonical_placements(placements: Rows) -> bytes:
    """Return JSON that is equal for equal placements.

    Names are sorted, rows ascend, and replicas keep their order.
    """
    # Rows of a table or a topic come in any order.
    ordered = [
        (name, sorted(placements[name], key=lambda row: row.start)) for name in sorted(placements)
    ]
    return _JSON.encode(ordered)


def placement_hash(placements: Rows) -> str:
    """Return SHA-256 of the canonical JSON, as 64 hex digits.

    Equal placements have equal hashes.
    """
    return hashlib.sha256(canonical_placements(placements)).hexdigest()
