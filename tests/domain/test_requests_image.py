"""What is asked of every image: empty round trip, image -> facts -> image, equal states, equal hashes."""

from typing import NamedTuple

import pytest

from stele.domain.commands import EnableFeatures, Leave, Noop, SetSetting
from stele.domain.evolve import evolve
from stele.domain.facts import Epoch
from stele.domain.image import EMPTY, EMPTY_FOR_FOLLOWERS, Image
from stele.domain.snapshot import facts_to_image, image_to_facts, requests_hash, state_hash
from stele.log.codec import decode_epoch, encode_epoch
from tests.domain.epochs import as_asked_by_uuid, remembered
from tests.domain.history import join, three_nodes


class Story(NamedTuple):
    """``images`` are those before and after all of ``epochs``."""

    epochs: list[Epoch]
    images: list[Image]


@pytest.fixture(scope="module")
def history() -> Story:
    found, driver = three_nodes()
    found.apply(join(4, "r1"))
    driver.run()
    found.apply(Leave("n1"))
    driver.run()
    found.apply(SetSetting("balancing", "off"))
    found.apply(EnableFeatures(()))
    found.apply(Noop())
    return Story(as_asked_by_uuid(found.epochs), remembered(found.epochs))


def _read_back(image: Image) -> Image:
    return facts_to_image(image_to_facts(image), image.epoch, image.state_id)


def test_the_empty_image_is_its_own_snapshot() -> None:
    assert _read_back(EMPTY) == EMPTY


def test_every_image_of_a_history_equals_its_snapshot_and_hash(history: Story) -> None:
    for image in history.images:
        again = _read_back(image)
        assert again == image
        assert state_hash(again) == state_hash(image)


def test_snapshot_and_tail_equal_full_replay_from_every_epoch(history: Story) -> None:
    for start in range(0, len(history.images), 7):
        image = _read_back(history.images[start])
        for epoch in history.epochs[start:]:
            image = evolve(image, epoch)
        assert state_hash(image) == state_hash(history.images[-1])


def test_different_states_have_different_hashes(history: Story) -> None:
    assert len({state_hash(image) for image in history.images}) == len(history.images)


def test_every_epoch_survives_its_encoding(history: Story) -> None:
    for epoch in history.epochs:
        assert decode_epoch(encode_epoch(epoch)) == epoch


def test_a_history_says_who_asked_and_why(history: Story) -> None:
    assert all(epoch.actor and epoch.reason for epoch in history.epochs)


def test_a_process_that_only_follows_has_the_same_state_without_the_memory(
    history: Story,
) -> None:
    follower = EMPTY_FOR_FOLLOWERS
    for epoch in history.epochs:
        follower = evolve(follower, epoch)
    assert follower.decided is None
    assert state_hash(follower) == state_hash(history.images[-1])
    assert _read_back(follower) == follower
    assert requests_hash(follower) != requests_hash(history.images[-1])


def test_what_was_decided_is_part_of_the_snapshot(history: Story) -> None:
    again = _read_back(history.images[-1])
    assert requests_hash(again) == requests_hash(history.images[-1])
    decided = again.decided
    assert decided is not None
    assert decided.candidates(history.epochs[3].request_id) == (4,)
