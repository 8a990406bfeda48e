"""The page of stories lists the sentences that there are, and its own story goes as it is written."""

from pathlib import Path

from stele_simulator.processes.stories.telling import tell
from tests.docs.pages import blocks
from tests.docs.stories_page import PAGE, page_with


def test_the_page_is_made_from_the_sentences() -> None:
    page = PAGE.read_text()
    assert page == page_with(page), "python -m tests.docs.stories_page writes it anew"


def test_the_story_on_the_page_goes_as_it_is_written(tmp_path: Path) -> None:
    [story] = [block for block in blocks("docs/internals/stories.md") if block.language == "text"]
    path = tmp_path / "shown.txt"
    path.write_text("\n".join(story.lines))
    tell(path)
