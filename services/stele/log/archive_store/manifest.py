"""The manifest of a backup: which blobs it is made of, and what they must be. It is put last, as one blob: a
backup that was cut off has the manifest of the one before, all of whose blobs are still there.
"""

from typing import Final

import msgspec

from stele.log.blobs.port import BlobMissingError, BlobStore, StoreRefusedError

NAME: Final = "manifest.json"
FORMAT: Final = 1


class Entry(msgspec.Struct, frozen=True):
    """A blob of the backup; the hash has 64 hex digits."""

    name: str
    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup holds. Epochs ``first_epoch`` to ``last_epoch``, the last of which made ``state_id``."""

    cluster: str
    cluster_id: str
    log_id: str
    first_epoch: int
    last_epoch: int
    state_id: str
    snapshot_epochs: tuple[int, ...]
    made_ms: int
    """Milliseconds since 1970."""
    made_from: str
    """The addresses of the replicas that were asked."""
    files: tuple[Entry, ...]
    format: int = FORMAT

    def entry(self, name: str) -> Entry | None:
        return next((entry for entry in self.files if entry.name == name), None)


async def manifest_in(store: BlobStore) -> Manifest | None:
    """None when there is none. Raises StoreRefusedError for one that cannot be read, and as the store does."""
    try:
        raw = await store.get(NAME)
    except BlobMissingError:
        return None
    try:
        found = msgspec.json.decode(raw, type=Manifest)
    except msgspec.MsgspecError as error:
        raise StoreRefusedError(
            f"{NAME} in {store.url} cannot be read ({error}). Delete it and back up again: what is there stays."
        ) from error
    if found.format > FORMAT:
        raise StoreRefusedError(
            f"{NAME} in {store.url} has format {found.format}; this build knows {FORMAT}. Take a newer build."
        )
    return found
