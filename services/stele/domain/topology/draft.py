"""An epoch in the making: its facts so far, and the image that they make."""

from stele.domain.context import Context
from stele.domain.facts import AnyFact
from stele.domain.image import Image


class Draft:
    """Several transitions move in one epoch, so each is computed on what those before it have written."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.image: Image = context.image
        self.facts: list[AnyFact] = []

    def add(self, *facts: AnyFact) -> None:
        self.facts.extend(facts)
        self.image = self.context.fold(self.image, facts)

    @property
    def version(self) -> int:
        """The topology version that the epoch makes."""
        return self.image.topology.version
