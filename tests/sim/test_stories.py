"""Scenarios as text: requests and faults, then the epochs and placements that must follow."""

from pathlib import Path

import pytest

from stele_simulator.mutants import PLANTED
from stele_simulator.patching import Patch
from stele_simulator.processes.stories.player import SENTENCE_GROUPS, play_story, read_lines
from stele_simulator.processes.stories.sentences import Sentence
from stele_simulator.processes.stories.story import StoryError
from stele_simulator.violation import Violation
from tests.sampling import sampled

STORIES = sorted((Path(__file__).parent / "stories").glob("*.txt"))
SENTENCES = [each for group in SENTENCE_GROUPS for each in group.sentences]


def matching(text: str) -> list[Sentence]:
    return [sentence for group in SENTENCE_GROUPS for sentence, _ in group.matching(text)]


@pytest.mark.parametrize("path", sampled(STORIES, 6))
def test_story_runs_as_written(path: Path) -> None:
    play_story(path)


@pytest.mark.parametrize("sentence", SENTENCES, ids=[each.play.__name__ for each in SENTENCES])
def test_sentence_matches_only_its_own_pattern(sentence: Sentence) -> None:
    assert sentence.shown and sentence.help
    for text in sentence.shown:
        assert matching(text) == [sentence], text


def test_every_sentence_of_stories_is_unambiguous_and_used() -> None:
    said = {line.text for path in STORIES for line in read_lines(path.read_text())}
    found = {text: matching(text) for text in said}
    assert {text: len(each) for text, each in found.items()} == dict.fromkeys(said, 1)
    assert {each.play for [each] in found.values()} == {each.play for each in SENTENCES}


def test_decision_of_an_old_term_has_effects_if_terms_are_not_checked() -> None:
    with Patch() as patch, pytest.raises(Violation) as raised:
        PLANTED["term_is_not_checked"].plant(patch)
        play_story(Path(__file__).parent / "stories" / "coordinator_wakes_deaf.txt")
    assert raised.value.invariant == "one coordinator has effects"


def test_failing_story_names_its_line(tmp_path: Path) -> None:
    story = tmp_path / "wrong.txt"
    story.write_text(
        "cluster A@100 B@200 rf 1\nleave A\nuntil left_token_ring\nexpect A is normal\n"
    )
    with pytest.raises(StoryError, match=r"wrong.txt:4: expect A is normal: it is decommissioning"):
        play_story(story)


def test_unknown_sentence_is_refused_with_the_page_of_sentences(
    tmp_path: Path,
) -> None:
    story = tmp_path / "odd.txt"
    story.write_text("make me a sandwich\n")
    with pytest.raises(
        StoryError, match=r"no pattern matches this sentence; docs/internals/stories.md"
    ):
        play_story(story)
