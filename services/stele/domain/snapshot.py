"""An image written back as facts, and read again: image -> facts -> image is the snapshot format.

The list is canonical: equal images give equal lists, so its hash names the state (design, I8).
"""

import hashlib
from collections.abc import Iterable

import msgspec

from stele.domain import facts
from stele.domain.evolve import apply_fact
from stele.domain.facts import AnyFact
from stele.domain.image import EMPTY_FOR_FOLLOWERS, Image, sorted_values

_SORTED_JSON = msgspec.json.Encoder(order="deterministic")


def image_to_facts(image: Image) -> list[AnyFact]:
    """All that is true in the image, from nothing, in one fixed order; decided requests come last."""
    return [*_state(image), *_decided(image)]


def _state(image: Image) -> list[AnyFact]:
    return [
        *_cluster(image),
        *(facts.NodeChanged(node) for node in sorted_values(image.membership.nodes)),
        *(facts.RequestChanged(r) for r in sorted_values(image.requests.requests)),
        *(facts.KeyspaceChanged(k) for k in sorted_values(image.schema.keyspaces)),
        *_placements(image),
        *_topology(image),
        *_features(image),
    ]


def facts_to_image(found: Iterable[AnyFact], epoch: int, state_id: bytes) -> Image:
    """The image that these facts describe, at its place in the log."""
    image = EMPTY_FOR_FOLLOWERS
    for fact in found:
        image = apply_fact(image, fact)
    return msgspec.structs.replace(image, epoch=epoch, state_id=state_id)


def state_hash(image: Image) -> str:
    """SHA-256 of epoch, state id and facts, as 64 hex digits: equal states, equal hashes.

    Decided requests are left out, because a process that only follows does not keep them.
    """
    return _hash(image, _state(image))


def requests_hash(image: Image) -> str:
    """The same of the decided requests, for those that decide."""
    return _hash(image, _decided(image))


def _hash(image: Image, found: Iterable[AnyFact]) -> str:
    digest = hashlib.sha256(f"{image.epoch}:{image.state_id.hex()}:".encode())
    digest.update(_SORTED_JSON.encode(list(found)))
    return digest.hexdigest()


def _cluster(image: Image) -> Iterable[AnyFact]:
    if image.cluster:
        yield facts.ClusterCreated(image.cluster, image.cluster_id, image.partitioner)


def _placements(image: Image) -> Iterable[AnyFact]:
    for name in sorted(image.ring.placements):
        yield facts.PlacementChanged(name, (), tuple(image.ring.placements[name].rows))


def _topology(image: Image) -> Iterable[AnyFact]:
    yield facts.TopologyChanged(image.topology.topology)
    yield facts.OperationChanged(image.topology.operation)
    yield facts.CoordinatorChanged(image.topology.coordinator)


def _features(image: Image) -> Iterable[AnyFact]:
    if image.features.enabled:
        yield facts.FeaturesEnabled(image.features.enabled)
    for name in sorted(image.features.settings):
        yield facts.SettingChanged(name, image.features.settings[name])


def _decided(image: Image) -> Iterable[AnyFact]:
    decided = image.decided
    if decided is None:
        return
    yield facts.DecidedRequests(decided.floor, decided.horizon_ms, decided.young.epochs())
    for generation in decided.generations:
        entries = decided.entries_of(generation).astype("<u8").tobytes()
        yield facts.DecidedGeneration(*generation, entries)
