"""How a story is read and played."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from stele.agent import cleanup
from stele.node import replica
from stele_simulator.processes.interposed import Current, interposed
from stele_simulator.processes.memoization import remember
from stele_simulator.processes.releases import bring
from stele_simulator.processes.run import Nobody, seldom_collected
from stele_simulator.processes.stores import watch
from stele_simulator.processes.stories import events, expectations, requests, waits
from stele_simulator.processes.stories.sentences import SentenceGroup
from stele_simulator.processes.stories.story import Line, Story, StoryError
from stele_simulator.processes.story_world import StoryWorld

BATCH_ROWS: Final = 2
"""Pages have a row each, so that streams last."""
SENTENCE_GROUPS: Final[tuple[SentenceGroup, ...]] = (
    events.sentence,
    requests.sentence,
    waits.sentence,
    expectations.sentence,
)


def play_story(path: Path, seed: int = 0, show: Callable[[str], None] | None = None) -> StoryWorld:
    """Play a story and check all invariants on the way. Raises StoryError or Violation."""
    current = Current(Nobody(seed))
    with seldom_collected(), interposed(current, f"story/{seed}") as patch:
        remember(patch)
        bring(patch)
        patch.attribute(replica, "MAX_PAGE_BYTES", 1)
        patch.attribute(cleanup, "BATCH_ROWS", BATCH_ROWS)
        world = StoryWorld(seed, current, keep_trace=show is not None)
        watch(patch, world, lambda: current.who)
        story = Story(world)
        try:
            for line in read_lines(path.read_text()):
                try:
                    play(story, line)
                except (AssertionError, StoryError) as error:
                    raise StoryError(f"{path.name}:{line.number}: {line.text}: {error}") from error
            world.converge()
        finally:
            if show is not None:
                for text in world.lines:
                    show(text)
            world.end()
    return world


def play(story: Story, line: Line) -> None:
    found = [each for group in SENTENCE_GROUPS for each in group.matching(line.text)]
    if not found:
        raise StoryError(
            "no pattern matches this sentence; docs/internals/stories.md lists those that there are"
        )
    [(sentence, groups)] = found
    story.line = line
    sentence.play(story, *groups)


def read_lines(text: str) -> list[Line]:
    """Sentences, one a line, with their tables: the indented lines after one. ``#`` begins a comment."""
    found: list[Line] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#")[0].rstrip()
        if not line:
            continue
        if line.startswith(" "):
            last = found[-1]
            found[-1] = msgspec.structs.replace(last, table=(*last.table, " ".join(line.split())))
        else:
            found.append(Line(number, " ".join(line.split()), ()))
    return found
