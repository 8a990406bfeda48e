"""The report of a failed run: the invariant, and the two facts that contradict each other."""


class Violation(Exception):
    """An invariant of docs/design.md does not hold."""

    def __init__(self, invariant: str, expected: str, found: str) -> None:
        self.invariant = invariant
        self.expected = expected
        self.found = found
        super().__init__(f"{invariant}: {expected} - but {found}")


def require(holds: bool, invariant: str, expected: str, found: str) -> None:
    """Raise a Violation unless it holds; ``found`` is the fact that contradicts ``expected``."""
    if not holds:
        raise Violation(invariant, expected, found)
