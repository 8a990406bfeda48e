"""The sentences of stories, each beside the function that plays it."""

import re
from collections.abc import Callable
from inspect import getdoc
from typing import Concatenate, NamedTuple, ParamSpec

from stele_simulator.processes.stories.story import Story

P = ParamSpec("P")


class Sentence(NamedTuple):
    """``play`` takes what the groups of the pattern hold; ``shown`` is the sentence as a writer may say it."""

    pattern: str
    shown: tuple[str, ...]
    play: Callable[Concatenate[Story, ...], None]

    @property
    def help(self) -> str:
        """Return a description of one line."""
        return " ".join((getdoc(self.play) or "").split())


class SentenceGroup:
    """Sentences of one sort; as a decorator, by their patterns, it takes in the functions that play them.

    The first line of ``text`` is its title; what follows holds for all of them.
    """

    def __init__(self, text: str | None) -> None:
        title, _, rest = (text or "").partition("\n")
        self.title = title.strip(" .")
        self.text = rest.strip()
        self.sentences: list[Sentence] = []

    def __call__(
        self, pattern: str, *shown: str
    ) -> Callable[[Callable[Concatenate[Story, P], None]], Callable[Concatenate[Story, P], None]]:
        def register(
            play: Callable[Concatenate[Story, P], None],
        ) -> Callable[Concatenate[Story, P], None]:
            self.sentences.append(Sentence(pattern, shown, play))
            return play

        return register

    def matching(self, text: str) -> list[tuple[Sentence, tuple[str | None, ...]]]:
        """The sentences that the text is, with what their groups hold."""
        matches = ((each, re.fullmatch(each.pattern, text)) for each in self.sentences)
        return [(each, match.groups()) for each, match in matches if match is not None]
