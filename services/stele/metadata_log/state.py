"""The whole state: as JSON in small parts, so that no large value is encoded at once, or as a
file.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from stele.domain.image import Image, without_memory
from stele.domain.requests.ids import state_time_ms
from stele.domain.ring.transition import TransitionPlan
from stele.domain.snapshot import image_to_facts
from stele.domain.topology.facts import Transition
from stele.domain.view import sections
from stele.log.archive.snapshots import head_of, write
from stele.log.chain import Anchor

_JSON: Final = msgspec.json.Encoder(order="deterministic")
_LARGE: Final = (Transition, TransitionPlan)
"""Rows that contain as many rows as the ring. They are encoded in parts too."""


def state_parts(image: Image, hash_: str) -> Iterator[bytes]:
    """Yield the parts of the JSON of ``domain.view.view``."""
    head = {"epoch": image.epoch, "state_id": image.state_id.hex(), "hash": hash_}
    yield from _parts({**head, **sections(image)})


def dump_of(image: Image) -> bytes:
    """Return a file in the archive's snapshot format, without the memory of decided requests.

    It has no offset in the topic, so no reader continues from it.
    """
    known = without_memory(image)
    file = io.BytesIO()
    write(
        file,
        head_of(known, 0, Anchor(0, b""), state_time_ms(known.state_id)),
        image_to_facts(known),
    )
    return file.getvalue()


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
