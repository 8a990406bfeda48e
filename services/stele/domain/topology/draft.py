"""A draft of one epoch: its facts so far, and the image after them."""

from stele.domain.context import Context
from stele.domain.facts import AnyFact
from stele.domain.image import Image


class Draft:
    """Facts of an epoch in which several transitions move; each sees the changes of those before
    it.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.image: Image = context.image
        self.facts: list[AnyFact] = []

    def add(self, *facts: AnyFact) -> None:
        self.facts.extend(facts)
        self.image = self.context.fold(self.image, facts)

    @property
    def version(self) -> int:
        """The topology version that the epoch creates."""
        return self.image.topology.version
