"""The whole state as JSON in small parts, so that even the largest is never encoded at once."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from stele.domain.image import Image
from stele.domain.ring.transition import TransitionPlan
from stele.domain.topology.facts import Transition
from stele.domain.view import sections

_JSON: Final = msgspec.json.Encoder(order="deterministic")
_LARGE: Final = (Transition, TransitionPlan)
"""Rows that hold as many rows as the ring: they are taken apart too."""


def state_parts(image: Image, hash_: str) -> Iterator[bytes]:
    """The parts joined are the JSON of ``domain.view.view``."""
    head = {"epoch": image.epoch, "state_id": image.state_id.hex(), "hash": hash_}
    yield from _parts({**head, **sections(image)})


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, _LARGE):
        value = {name: getattr(value, name) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        separator = b"{"
        for key, each in value.items():
            yield separator + _JSON.encode(key) + b":"
            yield from _parts(each)
            separator = b","
        yield b"}" if value else b"{}"
    elif isinstance(value, Sequence) and not isinstance(value, str):
        separator = b"["
        for each in value:
            yield separator
            yield from _parts(each) if isinstance(each, _LARGE) else (_JSON.encode(each),)
            separator = b","
        yield b"]" if value else b"[]"
    else:
        yield _JSON.encode(value)
