"""The page of stories lists all sentences, and its example story passes."""

from pathlib import Path

from stele_simulator.processes.stories.telling import tell
from tests.docs.pages import blocks
from tests.docs.stories_page import PAGE, page_with


def test_page_is_up_to_date_with_the_sentences() -> None:
    page = PAGE.read_text()
    assert page == page_with(page), "run `python -m tests.docs.stories_page`"


def test_story_on_the_page_passes(tmp_path: Path) -> None:
    [story] = [block for block in blocks("docs/internals/stories.md") if block.language == "text"]
    path = tmp_path / "shown.txt"
    path.write_text("\n".join(story.lines))
    tell(path)
