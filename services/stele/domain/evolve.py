"""``evolve(image, epoch) -> Image``: make an epoch's facts true. Total, deterministic, no decisions."""

from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np

from stele.domain import facts
from stele.domain.entities import Request
from stele.domain.facts import AnyFact, Epoch
from stele.domain.image import (
    FINISHED_REQUESTS,
    FeaturesImage,
    Image,
    MembershipImage,
    RequestsImage,
    RingImage,
    SchemaImage,
)
from stele.domain.names import UNFINISHED
from stele.domain.requests.decisions import decided_ids
from stele.domain.requests.memory import Generation, RequestMemory, limit_of, restored
from stele.domain.ring.ranges import Placement, apply

replace = msgspec.structs.replace


def evolve(image: Image, epoch: Epoch) -> Image:
    """The image after ``epoch``, which must be the next one: the log's fold checks that before."""
    assert epoch.prev_state_id == image.state_id
    assert epoch.epoch == image.epoch + 1
    for fact in epoch.facts:
        image = apply_fact(image, fact)
    decided = image.decided
    if decided is not None:
        decided = _remember(decided, epoch, limit_of(image.features.settings))
    return replace(image, epoch=epoch.epoch, state_id=epoch.state_id, decided=decided)


def _remember(decided: RequestMemory, epoch: Epoch, limit: int) -> RequestMemory:
    request_ids = decided_ids(epoch)
    if request_ids:
        decided = decided.with_decisions(request_ids, epoch.epoch, limit)
    return decided.limited(limit)


def apply_fact(image: Image, fact: AnyFact) -> Image:
    """The image with one more fact; also how a snapshot is read back."""
    return _APPLY[type(fact)](image, fact)


def _cluster_created(image: Image, fact: facts.ClusterCreated) -> Image:
    return replace(
        image, cluster=fact.cluster, cluster_id=fact.cluster_id, partitioner=fact.partitioner
    )


def _node_changed(image: Image, fact: facts.NodeChanged) -> Image:
    nodes = image.membership.nodes.set(fact.node.node_id, fact.node)
    return replace(image, membership=MembershipImage(nodes))


def _request_changed(image: Image, fact: facts.RequestChanged) -> Image:
    requests = image.requests.requests.set(fact.request.request_id, fact.request)
    finished = [r for r in requests.values() if r.status not in UNFINISHED]
    if len(finished) > FINISHED_REQUESTS:
        requests = requests.delete(min(finished, key=_oldest_first).request_id)
    return replace(image, requests=RequestsImage(requests))


def _oldest_first(request: Request) -> tuple[int, str]:
    return request.finished_epoch, request.request_id


def _keyspace_changed(image: Image, fact: facts.KeyspaceChanged) -> Image:
    keyspaces = image.schema.keyspaces.set(fact.keyspace.name, fact.keyspace)
    return replace(image, schema=SchemaImage(keyspaces))


def _keyspace_dropped(image: Image, fact: facts.KeyspaceDropped) -> Image:
    return replace(image, schema=SchemaImage(image.schema.keyspaces.delete(fact.name)))


def _placement_changed(image: Image, fact: facts.PlacementChanged) -> Image:
    placements = image.ring.placements
    before = placements.get(fact.placement)
    after = Placement.of(fact.added) if before is None else apply(before, fact.removed, fact.added)
    return replace(image, ring=RingImage(placements.set(fact.placement, after)))


def _placement_dropped(image: Image, fact: facts.PlacementDropped) -> Image:
    return replace(image, ring=RingImage(image.ring.placements.delete(fact.placement)))


def _topology_changed(image: Image, fact: facts.TopologyChanged) -> Image:
    assert fact.topology.fence_version <= fact.topology.version
    return replace(image, topology=replace(image.topology, topology=fact.topology))


def _operation_changed(image: Image, fact: facts.OperationChanged) -> Image:
    return replace(image, topology=replace(image.topology, operation=fact.operation))


def _coordinator_changed(image: Image, fact: facts.CoordinatorChanged) -> Image:
    return replace(image, topology=replace(image.topology, coordinator=fact.coordinator))


def _features_enabled(image: Image, fact: facts.FeaturesEnabled) -> Image:
    enabled = tuple(sorted({*image.features.enabled, *fact.features}))
    return replace(image, features=FeaturesImage(enabled, image.features.settings))


def _setting_changed(image: Image, fact: facts.SettingChanged) -> Image:
    settings = image.features.settings
    if fact.value:
        settings = settings.set(fact.name, fact.value)
    elif fact.name in settings:
        settings = settings.delete(fact.name)
    return replace(image, features=FeaturesImage(image.features.enabled, settings))


def _command_refused(image: Image, _: facts.CommandRefused) -> Image:
    """Nothing is true now that was not before; ``evolve`` remembers that it was refused."""
    return image


def _decided_generation(image: Image, fact: facts.DecidedGeneration) -> Image:
    known = image.decided or RequestMemory()
    entries = np.frombuffer(fact.entries, dtype="<u8").astype(np.uint64)
    generation = Generation(fact.base, fact.last, fact.newest_ms)
    return replace(image, decided=known.with_generation(generation, entries))


def _decided_requests(image: Image, fact: facts.DecidedRequests) -> Image:
    return replace(image, decided=restored(fact.young, fact.floor, fact.horizon_ms))


_APPLY: Final[dict[type, Callable[[Image, Any], Image]]] = {
    facts.ClusterCreated: _cluster_created,
    facts.NodeChanged: _node_changed,
    facts.RequestChanged: _request_changed,
    facts.KeyspaceChanged: _keyspace_changed,
    facts.KeyspaceDropped: _keyspace_dropped,
    facts.PlacementChanged: _placement_changed,
    facts.PlacementDropped: _placement_dropped,
    facts.TopologyChanged: _topology_changed,
    facts.OperationChanged: _operation_changed,
    facts.CoordinatorChanged: _coordinator_changed,
    facts.FeaturesEnabled: _features_enabled,
    facts.SettingChanged: _setting_changed,
    facts.CommandRefused: _command_refused,
    facts.DecidedGeneration: _decided_generation,
    facts.DecidedRequests: _decided_requests,
}
