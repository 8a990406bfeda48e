"""Names of keyspaces and tables: free, taken, or free in a moment."""

from stele.domain.base import Rejection
from stele.domain.schema.facts import Keyspace, Table


def check_name_is_free(what: str, name: str, known: Keyspace | Table | None) -> Rejection | None:
    """None unless something stands under this name, or is being dropped; ``what`` it is, for people."""
    if known is None:
        return None
    if known.dropped_version:
        return Rejection(
            f"{what}_being_dropped",
            f"{what.capitalize()} '{name}' is being dropped; its name is free once that is done.",
            "Wait a moment and try again: `stele requests` shows how far it is.",
        )
    return Rejection(
        f"{what}_exists",
        f"{what.capitalize()} '{name}' exists already.",
        "Use it, drop it first, or choose another name.",
    )
