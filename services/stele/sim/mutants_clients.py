"""Planted bugs of stores that serve clients, who are no members: found by tests of the library alone."""

from typing import Final

from stele.agent.transfers import Transfers
from stele.sim.patching import Patch


def pages_begin_at_the_cursor_of_the_span_before(patch: Patch) -> None:
    """A page that ends with its span goes on in the next one behind the token and key where it was."""
    plain = Transfers._page  # noqa: SLF001 - bugs are planted in private places too

    def page(self: Transfers, ask: object) -> object:
        given = plain(self, ask)  # type: ignore[arg-type]
        if given.cursor is not None:
            at, token, key = given.cursor
            object.__setattr__(given, "cursor", (at + 1, token, key))
        return given

    patch.attribute(Transfers, "_page", page)


CLIENT_MUTANTS: Final = (pages_begin_at_the_cursor_of_the_span_before,)
