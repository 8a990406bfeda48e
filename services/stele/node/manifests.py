"""Manifests: what a node wrote for a snapshot of a table, and which files hold the rows of a range.

The log has the SHA-256 of each manifest, and a manifest that of each file; so a file that is damaged or missing
is noticed before any of its rows is used.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from stele.domain.ring.quorum import quorum_of
from stele.domain.ring.ranges import Range
from stele.domain.ring.tokens import MIN_TOKEN
from stele.domain.table_snapshots.facts import TableSnapshot
from stele.domain.tablets.ranges import TOKEN_BITS, tablet_of

MANIFEST: Final = "manifest.json"
FORM: Final = 1


class SnapshotFile(msgspec.Struct, frozen=True):
    """An Avro container of rows, in order of token and key."""

    name: str
    sha256: str
    size_bytes: int
    rows: int


class SnapshotTablet(msgspec.Struct, frozen=True):
    """A tablet's rows, as one of its replicas had them. ``replicas`` are all who had it."""

    tablet: int
    replicas: tuple[str, ...]
    files: tuple[SnapshotFile, ...] = ()


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All that one node wrote for a snapshot. The tablets are those of a map of so many."""

    form: int = FORM
    cluster_id: str
    snapshot_id: str
    name: str
    table: str
    table_id: str
    data_id: str
    epoch: int
    node_id: str
    tablets: int
    rows: int
    size_bytes: int
    written: tuple[SnapshotTablet, ...]


class Missing(Exception):
    """Not all that was acknowledged can be read; the text says what is missing."""


_ENCODER: Final = msgspec.json.Encoder(order="deterministic")
_DECODER: Final = msgspec.json.Decoder(Manifest)


def encode_manifest(manifest: Manifest) -> bytes:
    return msgspec.json.format(_ENCODER.encode(manifest), indent=1)


def decode_manifest(content: bytes) -> Manifest:
    """Raises msgspec.DecodeError."""
    return _DECODER.decode(content)


def tablets_within(count: int, range_: Range) -> range:
    """Which tablets of a map of so many share tokens with a range."""
    first = (range_.start + 1 - MIN_TOKEN) * count >> TOKEN_BITS
    return range(first, tablet_of(count, range_.end) + 1)


def files_of(
    range_: Range, snapshot: TableSnapshot, manifests: Mapping[str, Manifest]
) -> list[tuple[str, SnapshotFile]]:
    """The files that hold a range's rows, and who wrote each; ``manifests`` are those that can be read, by
    node.

    Raises Missing when they are of too few replicas: each quorum that has acknowledged a write must have one of
    them.
    """
    found = list[tuple[str, SnapshotFile]]()
    for tablet in tablets_within(snapshot.tablets, range_):
        wrote = [
            (node_id, each)
            for node_id, manifest in sorted(manifests.items())
            for each in manifest.written
            if each.tablet == tablet
        ]
        replicas = wrote[0][1].replicas if wrote else ()
        if len(wrote) < quorum_of(len(replicas)):
            had = (
                f"{', '.join(n for n, _ in wrote)} of {', '.join(replicas)}" if wrote else "nobody"
            )
            raise Missing(
                f"tablet {tablet} of snapshot {snapshot.name} can be read of {had}, which is no quorum"
            )
        found += [(node_id, file) for node_id, each in wrote for file in each.files]
    return found
