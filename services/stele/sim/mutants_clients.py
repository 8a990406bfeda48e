"""Planted bugs of stores that serve clients, who are no members: found by tests of the library alone."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from stele.agent.embedded import Member
from stele.agent.transfers import Transfers
from stele.domain.fencing import check_client, check_token
from stele.domain.routed import Routed
from stele.sim.patching import Patch


def clients_are_held_to_the_fence_alone(patch: Patch) -> None:
    """A client writes by the placement of before while data is streamed: all members have moved on."""
    patch.function(check_client, check_token)


def request_is_judged_before_it_alone(patch: Patch) -> None:
    """What was begun in time and ended behind the fence is acknowledged."""

    @asynccontextmanager
    async def hasty(self: Member, routed: Routed) -> AsyncIterator[None]:
        self.check(routed)
        hold = self.agent.hold(routed.version, routed.data_id, routed.token)
        try:
            yield
        finally:
            self.agent.release(hold)

    patch.attribute(Member, "request", hasty)


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


CLIENT_MUTANTS: Final = (
    clients_are_held_to_the_fence_alone,
    request_is_judged_before_it_alone,
    pages_begin_at_the_cursor_of_the_span_before,
)
