"""The log makes sound states: random histories, in which nodes join and leave and steps are undone."""

from stele.domain.snapshot import state_hash
from stele.domain.soundness.check import flaws_of
from stele.domain.soundness.described import checked, described
from tests.domain.test_domains import histories


def test_no_state_that_the_log_has_made_has_a_flaw() -> None:
    seen = 0
    for story in histories():
        for image in story.images:
            found = [*map(str, flaws_of(image))]
            assert not found, (image.epoch, found[:5])
            seen += len(image.topology.transitions)
    assert seen, "none of them was under way"


def test_a_state_is_the_same_once_it_was_written_down_and_read() -> None:
    for story in histories():
        for image in story.images[::9]:
            again = checked(described(image))
            assert not again.flaws
            assert again.image is not None
            assert state_hash(again.image) == state_hash(image)
