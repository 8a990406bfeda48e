"""The snapshot format: an image as facts, and an image from facts.

The list of facts is canonical: equal images give equal lists. The state's hash covers the domains'
hashes, which depend neither on history nor on how a domain keeps its rows (docs/design.md, rule 17
and I8).
"""

import hashlib
from collections.abc import Iterable

import msgspec

from stele.domain.evolve import apply_facts
from stele.domain.facts import AnyFact
from stele.domain.hashing import HASH_BYTES
from stele.domain.image import EMPTY_FOR_FOLLOWERS, Image
from stele.domain.overrides import DOMAIN as OVERRIDES
from stele.domain.registry import DOMAINS


def image_to_facts(image: Image) -> list[AnyFact]:
    """Return the facts that build the image from the empty one, in one fixed order."""
    facts: list[AnyFact] = []
    for domain in DOMAINS:
        facts.extend(domain.to_facts(getattr(image, domain.name)))  # type: ignore[arg-type]
    return facts


def facts_to_image(facts: Iterable[AnyFact], epoch: int, state_id: bytes) -> Image:
    """Return the image that these facts describe, at its place in the log."""
    # A snapshot with decided requests adds their memory by its own facts.
    return msgspec.structs.replace(
        apply_facts(EMPTY_FOR_FOLLOWERS, facts), epoch=epoch, state_id=state_id
    )


def domain_hashes(image: Image, *, shared: bool = True) -> dict[str, int]:
    """Return each domain's hash, a number below 2**128.

    They show which domains of two states differ.

    ``shared`` selects the domains that every process keeps, or the others.
    """
    chosen = (domain for domain in DOMAINS if domain.shared is shared)
    return {domain.name: domain.hash_of(getattr(image, domain.name)) for domain in chosen}


def state_hash(image: Image) -> str:
    """Return SHA-256 of epoch, state id and the domains' hashes, as 64 hex digits.

    Equal states have equal hashes.

    An empty domain has no influence, so a build that does not have the domain computes the same
    hash.
    """
    return _hash(image, domain_hashes(image))


def content_hash(image: Image) -> str:
    """Return the hash of the content alone: without epoch, state id and the record of overrides."""
    hashes = {name: n for name, n in domain_hashes(image).items() if name != OVERRIDES.name}
    return _hash(msgspec.structs.replace(image, epoch=0, state_id=b""), hashes)


def requests_hash(image: Image) -> str:
    """Return the hash of the decided requests, which only deciding processes keep."""
    return _hash(image, domain_hashes(image, shared=False))


def _hash(image: Image, hashes: dict[str, int]) -> str:
    digest = hashlib.sha256(f"{image.epoch}:{image.state_id.hex()}".encode())
    for name, number in hashes.items():
        # An empty domain is skipped, so that builds with and without it compute the same hash.
        if not number:
            continue
        digest.update(name.encode() + number.to_bytes(HASH_BYTES, "big"))
    return digest.hexdigest()
