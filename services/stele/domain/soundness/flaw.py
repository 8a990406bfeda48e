"""A flaw of a state, and where it is."""

import msgspec


class Flaw(msgspec.Struct, frozen=True, order=True):
    """``place`` names the row that is wrong; ``what`` is wrong with it, for people."""

    place: str
    what: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}"
