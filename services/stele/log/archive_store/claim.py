"""Whose a store is: its first blob says so, and whoever is of another cluster leaves it alone."""

from enum import StrEnum
from typing import Final

import msgspec

from stele.log.blobs.port import BlobMissingError, BlobStore, StoreRefusedError

NAME: Final = "stele.json"
FORMAT: Final = 1


class Kind(StrEnum):
    """Who writes to a store: a mirror forgets what a longer segment covers, which a backup's manifest names."""

    MIRROR = "mirror"
    BACKUP = "backup"


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """``format`` is that of the names and files beside it."""

    cluster: str
    cluster_id: str
    kind: Kind
    format: int = FORMAT


class ForeignStoreError(StoreRefusedError):
    """What is in the store is of another cluster, of a later log or another history, or is no archive."""


async def claim_of(store: BlobStore) -> Claim | None:
    """None when the store was never written to. Raises ForeignStoreError, and as the store does."""
    try:
        raw = await store.get(NAME)
    except BlobMissingError:
        return None
    try:
        found = msgspec.json.decode(raw, type=Claim)
    except msgspec.MsgspecError as error:
        raise ForeignStoreError(
            f"{NAME} in {store.url} cannot be read ({error}). Take another prefix, or restore it."
        ) from error
    if found.format > FORMAT:
        raise ForeignStoreError(
            f"{store.url} has format {found.format}; this build knows {FORMAT}. Upgrade this process."
        )
    return found


async def claim(store: BlobStore, own: Claim) -> None:
    """Make sure that the store is its own, for ever. Raises ForeignStoreError, and as the store does."""
    found = await claim_of(store)
    if found is None:
        await store.put_new(NAME, msgspec.json.encode(own))
        found = await claim_of(store)
    if found is None or (found.cluster_id, found.kind) == (own.cluster_id, own.kind):
        return
    if found.cluster_id == own.cluster_id:
        raise ForeignStoreError(
            f"{store.url} holds a {found.kind} of this cluster, not a {own.kind}. Take another prefix."
        )
    raise ForeignStoreError(
        f"{store.url} holds the archive of cluster '{found.cluster}' ({found.cluster_id}), and this is"
        f" '{own.cluster}' ({own.cluster_id}). Take another prefix."
    )
