"""The size of a whole store."""

from stele.node.store import Size, SqliteStore


async def size_of(store: SqliteStore) -> Size:
    sizes = (await store.sizes()).values()
    return Size(sum(size.keys for size in sizes), sum(size.size_bytes for size in sizes))
