"""Scenarios told as text: what is asked and what breaks, then the epochs and placements that must follow."""

from pathlib import Path

import pytest

from stele.sim.processes.story import StoryError, tell

STORIES = sorted((Path(__file__).parent / "stories").glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=[path.stem for path in STORIES])
def test_story_goes_as_it_is_written(path: Path) -> None:
    tell(path)


def test_a_story_that_goes_otherwise_says_in_which_line(tmp_path: Path) -> None:
    story = tmp_path / "wrong.txt"
    story.write_text(
        "cluster A@100 B@200 rf 1\nleave A\nuntil left_token_ring\nexpect A is normal\n"
    )
    with pytest.raises(StoryError, match=r"wrong.txt:4: expect A is normal: it is decommissioning"):
        tell(story)


def test_a_sentence_that_nobody_understands_is_refused(tmp_path: Path) -> None:
    story = tmp_path / "odd.txt"
    story.write_text("make me a sandwich\n")
    with pytest.raises(StoryError, match="nobody understands"):
        tell(story)
