"""An image written back as facts, and read again: image -> facts -> image is the snapshot format.

The list is canonical: equal images give equal lists. The state's hash is over the domains' hashes, which depend
neither on history nor on how a domain keeps its rows (design, I8).
"""

import hashlib
from collections.abc import Iterable

import msgspec

from stele.domain.evolve import apply_facts
from stele.domain.facts import AnyFact
from stele.domain.hashing import HASH_BYTES
from stele.domain.image import EMPTY_FOR_FOLLOWERS, Image
from stele.domain.overrides.domain import DOMAIN as OVERRIDES
from stele.domain.registry import DOMAINS


def image_to_facts(image: Image) -> list[AnyFact]:
    """All that is true in the image, from nothing, in one fixed order."""
    facts: list[AnyFact] = []
    for domain in DOMAINS:
        facts.extend(domain.to_facts(getattr(image, domain.name)))  # type: ignore[arg-type]
    return facts


def facts_to_image(facts: Iterable[AnyFact], epoch: int, state_id: bytes) -> Image:
    """The image that these facts describe, at its place in the log."""
    return msgspec.structs.replace(
        apply_facts(EMPTY_FOR_FOLLOWERS, facts), epoch=epoch, state_id=state_id
    )


def domain_hashes(image: Image, *, shared: bool = True) -> dict[str, int]:
    """Each domain's hash, a number below 2**128: two states that differ are told apart by domain.

    With ``shared`` those that every process keeps, without it the others.
    """
    chosen = (domain for domain in DOMAINS if domain.shared is shared)
    return {domain.name: domain.hash_of(getattr(image, domain.name)) for domain in chosen}


def state_hash(image: Image) -> str:
    """SHA-256 of epoch, state id and the domains' hashes, as 64 hex digits: equal states, equal hashes.

    A domain that holds nothing counts for nothing, so that a build that does not know it has the same hash.
    """
    return _hash(image, domain_hashes(image))


def content_hash(image: Image) -> str:
    """The same of what is true, wherever in the log: without epoch, state id and what is known of overrides."""
    hashes = {name: n for name, n in domain_hashes(image).items() if name != OVERRIDES.name}
    return _hash(msgspec.structs.replace(image, epoch=0, state_id=b""), hashes)


def requests_hash(image: Image) -> str:
    """The same of the decided requests, for those that decide."""
    return _hash(image, domain_hashes(image, shared=False))


def _hash(image: Image, hashes: dict[str, int]) -> str:
    digest = hashlib.sha256(f"{image.epoch}:{image.state_id.hex()}".encode())
    for name, number in hashes.items():
        if not number:
            continue
        digest.update(name.encode() + number.to_bytes(HASH_BYTES, "big"))
    return digest.hexdigest()
