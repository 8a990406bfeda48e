"""The log makes sound states: random histories, in which nodes join and leave and steps are rolled back."""

from stele.domain.described_state import checked, described
from stele.domain.snapshot import state_hash
from stele.domain.soundness import flaws_of
from tests.domain.test_domains import histories


def test_states_made_by_the_log_have_no_flaws() -> None:
    seen = 0
    for story in histories():
        for image in story.images:
            found = [*map(str, flaws_of(image))]
            assert not found, (image.epoch, found[:5])
            seen += len(image.topology.transitions)
    assert seen, "none of them was under way"


def test_state_is_preserved_by_writing_and_reading() -> None:
    for story in histories():
        for image in story.images[::9]:
            again = checked(described(image))
            assert not again.flaws
            assert again.image is not None
            assert state_hash(again.image) == state_hash(image)
