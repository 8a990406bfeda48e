"""The tables of docs/internals/stories.md, from the sentences: ``python -m tests.docs.stories_page``."""

from __future__ import annotations

from collections.abc import Iterator

from stele_simulator.processes.stories.player import SENTENCE_GROUPS
from tests.docs.pages import REPOSITORY

PAGE = REPOSITORY / "docs" / "internals" / "stories.md"


def sections() -> Iterator[str]:
    for group in SENTENCE_GROUPS:
        yield f"### {group.title}\n\n{group.text}\n\n| sentence | |\n|---|---|\n"
        for sentence in group.sentences:
            shown = "<br>".join(f"`{each}`" for each in sentence.shown)
            yield f"| {shown} | {sentence.help} |\n"
        yield "\n"
