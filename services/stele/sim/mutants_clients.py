"""Planted bugs of stores that serve clients, who are no members: found by tests of the library alone."""

from collections.abc import Sequence
from typing import Final

from stele.agent.pages import Cursor, Page, Scans, page_of
from stele.agent.spans import Span
from stele.sim.patching import Patch


def pages_begin_at_the_cursor_of_the_span_before(patch: Patch) -> None:
    """A page that ends with its span goes on in the next one behind the token and key where it was."""

    def page(store: Scans, spans: Sequence[Span], cursor: Cursor | None, limit_bytes: int) -> Page:
        found = page_of(store, spans, cursor, limit_bytes)
        if found.cursor is None:
            return found
        at, token, key = found.cursor
        return found._replace(cursor=(at + 1, token, key))

    patch.function(page_of, page)


CLIENT_MUTANTS: Final = (pages_begin_at_the_cursor_of_the_span_before,)
