"""Structs for the page that repeat fields of the state."""

from typing import Any, TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


def copied(kind: type[S], source: object, **others: Any) -> S:
    """Return a struct with ``others``, and with the attributes of ``source`` for other fields."""
    same = {
        name: getattr(source, name)
        for name in kind.__struct_fields__
        if name not in others and hasattr(source, name)
    }
    return kind(**same, **others)
