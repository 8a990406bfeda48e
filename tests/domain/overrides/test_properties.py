"""Properties of every override: numbers and ids only increase."""

from collections.abc import Iterable, Iterator

import msgspec
import pytest

from stele.domain.evolve import evolve
from stele.domain.fencing import check_token
from stele.domain.image import Image
from stele.domain.names import NodeState
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.snapshot import content_hash, facts_to_image, image_to_facts, state_hash
from stele.domain.soundness import flaws_of, under_way
from stele.domain.view import diff
from stele.log.codec import decode_epoch, encode_epoch
from tests.domain.epochs import History
from tests.domain.overrides.overriding import SEEDS, at, is_at_rest, revert, run_of

STEPS = 23
"""Every so many epochs one is overridden, each by several older ones."""


def overridden(seed: int) -> Iterator[tuple[tuple[Image, ...], Image, Image, History]]:
    """Yield all earlier images, the newest of them, the older one, and the log after the override."""
    images = run_of(seed)
    for newest in range(len(images) - 1, 20, -STEPS):
        known = images[: newest + 1]
        older = [image for image in known[:-1] if is_at_rest(image)]
        for target in older[:: max(1, len(older) // 3)]:
            history = at(images, newest)
            refused = revert(history, target)
            if refused is None:
                yield known, known[-1], target, history
            else:
                assert refused.code == "node_left", refused


every_seed = pytest.mark.parametrize("seed", SEEDS)


@every_seed
def test_override_never_reuses_versions_fences_or_ids(seed: int) -> None:
    seen = 0
    for known, before, _, history in overridden(seed):
        after = history.image
        assert after.topology.version > max(image.topology.version for image in known)
        assert after.topology.fence_version == after.topology.version
        assert not after.topology.transitions
        assert not after.topology.sessions()
        open_ = [r for r in after.requests.unfinished() if not r.reconfigures]
        assert not open_
        new = _ids(after) - _ids(before)
        assert not new & set().union(*map(_ids, known)), "what was dropped has another id"
        assert _data_ids(after) - _data_ids(before) <= _data_ids(after) - set().union(
            *map(_data_ids, known)
        )
        for node_id, node in before.membership.nodes.items():
            now = after.membership.nodes[node_id]
            assert (now.host_id, now.shards) == (node.host_id, node.shards)
            assert not (node.state is NodeState.LEFT and now.state is not NodeState.LEFT)
            assert not (node.excluded and not (now.excluded or now.state is NodeState.LEFT))
        assert after.ring.nodes.names[: len(before.ring.nodes.names)] == before.ring.nodes.names
        for name in ("founding", "services", "archive", "features"):
            kept, was = getattr(after, name), getattr(before, name)
            if name == "features":
                kept, was = kept.enabled, was.enabled
            assert kept == was
        assert after.topology.coordinator == before.topology.coordinator
        seen += 1
    assert seen > 3


def _ids(image: Image) -> set[str]:
    return {*image.schema.by_id, *image.schema.tables, *image.membership.nodes}


def _data_ids(image: Image) -> set[str]:
    return {data.data_id for data in image.schema.all_data()}


def test_stale_version_stays_stale_after_an_override() -> None:
    """A fenced request stays fenced. An earlier one continues only with the replicas that it has asked."""
    went_on = 0
    for _, before, _, history in (each for seed in SEEDS for each in overridden(seed)):
        after = history.image
        for data in after.schema.all_data():
            for row in _some(after.ring.placements[data.placement].rows):
                for version in range(1, after.topology.version):
                    if check_token(after, data.data_id, row.end, version) is not None:
                        continue
                    assert check_token(before, data.data_id, row.end, version) is None
                    was = before.schema.of_data(data.data_id)
                    assert was is not None
                    old = before.ring.placements[was.placement].row_for(row.end)
                    assert (old.reads, old.writes) == (row.reads, row.writes)
                    went_on += 1
    assert went_on


def _some(rows: Iterable[RangeReplicas]) -> list[RangeReplicas]:
    return [*rows][::5]


@every_seed
def test_overridden_state_is_sound_at_rest_and_equals_the_older_one(seed: int) -> None:
    for _, before, target, history in overridden(seed):
        after = history.image
        assert not [*map(str, flaws_of(after))]
        assert not [*map(str, under_way(after))]
        assert {k.name for k in after.schema.by_id.values()} == {
            k.name for k in target.schema.by_id.values()
        }
        assert {*after.schema.table_ids} == {*target.schema.table_ids}
        assert after.features.settings == target.features.settings
        for name in target.schema.ids:
            theirs, ours = target.placement_of(name), after.placement_of(name)
            if theirs is not None:
                assert ours is not None
                assert [(r.start, r.reads, r.writes) for r in ours.rows] == [
                    (r.start, r.reads, r.writes) for r in theirs.rows
                ]
        override = after.overrides.last
        assert override is not None
        assert (override.epoch, override.of_epoch) == (after.epoch, target.epoch)
        assert override.hash_before == content_hash(history.images[-2])
        assert override.hash_after == content_hash(after)
        assert diff(before, after)["overrides"]


@every_seed
def test_epoch_of_an_override_folds_like_any_other(seed: int) -> None:
    """Encoded, decoded and folded by a follower, the epoch gives the same state and snapshot."""
    for _, _, _, history in overridden(seed):
        epoch = decode_epoch(encode_epoch(history.epochs[-1]))
        follower = evolve(history.images[-2], epoch)
        assert state_hash(follower) == state_hash(history.image)
        again = facts_to_image(image_to_facts(follower), follower.epoch, follower.state_id)
        assert state_hash(again) == state_hash(follower)
        assert msgspec.structs.replace(again, decided=None) == msgspec.structs.replace(
            follower, decided=None
        )


@every_seed
def test_override_can_be_overridden(seed: int) -> None:
    for _, before, _, history in [*overridden(seed)][:4]:
        overridden_by = history.image
        if not is_at_rest(before):
            continue
        history._outcomes.clear()
        refused = revert(history, before)
        if refused is None:
            assert history.image.topology.version > overridden_by.topology.version
        else:
            assert refused.code == "node_left"
