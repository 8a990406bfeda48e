"""The tables of docs/internals/stories.md, from the sentences: ``python -m tests.docs.stories_page``."""

from __future__ import annotations

from collections.abc import Iterator

from stele_simulator.processes.stories.telling import ROOMS
from tests.docs.pages import REPOSITORY, with_generated_part

PAGE = REPOSITORY / "docs" / "internals" / "stories.md"


def sections() -> Iterator[str]:
    for room in ROOMS:
        yield f"### {room.title}\n\n{room.text}\n\n| sentence | |\n|---|---|\n"
        for sentence in room.sentences:
            shown = "<br>".join(f"`{each}`" for each in sentence.shown)
            yield f"| {shown} | {sentence.help} |\n"
        yield "\n"


def page_with(page: str) -> str:
    """Return the page with new content between its marks."""
    return with_generated_part(page, "stories", "".join(sections()))
