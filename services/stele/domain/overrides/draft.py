"""The facts of an override as they are made, and the image that they lead to so far."""

from stele.domain.context import Context
from stele.domain.facts import AnyFact
from stele.domain.image import Image, without_memory


class Draft:
    """Later facts are made from what earlier ones of the same epoch made true."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.before = context.image
        self.image: Image = without_memory(context.image)
        self.facts: list[AnyFact] = []

    def add(self, *facts: AnyFact) -> None:
        if facts:
            self.image = self.context.fold(self.image, facts)
            self.facts += facts
