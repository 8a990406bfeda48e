"""Planted bugs of the router, and of what a store's agent asks of the requests of clients."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from stele.agent.agent import Agent
from stele.agent.embedded import Member
from stele.agent.probing import check_meant
from stele.domain.fencing import check_client, check_token
from stele.domain.image import Image
from stele.domain.routed import Routed
from stele.router import events, over_http, quorums
from stele.router.errors import StaleRoute
from stele.router.events import Change
from stele.router.router import Router
from stele.router.routes import Replicas
from stele.sim.patching import Patch


def clients_are_held_to_the_fence_alone(patch: Patch) -> None:
    """A client writes by the placement of before while data is streamed: all members have moved on."""
    patch.function(check_client, check_token)


def nodes_answer_for_who_had_their_address(patch: Patch) -> None:
    """Who takes a dead node's place at its address is asked in that one's name, and counts as it."""
    patch.function(check_meant, lambda here, replica: None)


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


def waiting_effects_are_not_judged_again(patch: Patch) -> None:
    """A write that waited for its disk takes its place behind the fence, or once its range has moved away."""
    plain = Member.check

    @asynccontextmanager
    async def in_front(self: Member, routed: Routed) -> AsyncIterator[None]:
        self._check_serves(routed.log_id)
        await self._judge.catch_up([routed])
        plain(self, routed)
        hold = self.agent.hold(routed.version, routed.data_id, routed.token)
        try:
            yield
            self._refuse(self._judge.fenced(routed))
        finally:
            self.agent.release(hold)

    patch.attribute(Member, "request", in_front)
    patch.attribute(Member, "check", lambda self, routed: None)


def requests_of_clients_are_not_held(patch: Patch) -> None:
    """A barrier passes while a client's request of the version before it is under way at the node."""
    patch.attribute(Agent, "hold", lambda self, version, data_id, token: None)
    patch.attribute(Agent, "release", lambda self, hold: None)


def read_is_enough_by_one_answer(patch: Patch) -> None:
    """A client reads at whoever answers first."""
    patch.attribute(Replicas, "read", lambda self, answers: bool(answers))


def write_needs_the_readers_alone(patch: Patch) -> None:
    """While a range moves, a client's write is acknowledged without those it moves to."""

    def written(self: Replicas, acks: set[str]) -> bool:
        return 2 * len(acks & {*self.reads}) > len(self.reads)

    patch.attribute(Replicas, "written", written)


def refusals_count_as_answers(patch: Patch) -> None:
    """Who refuses a write's version counts among those who have it."""
    plain = quorums._call  # noqa: SLF001 - bugs are planted in private places too

    async def call(send: Any, place: Any, timeout_s: float) -> Any:
        try:
            return await plain(send, place, timeout_s)
        except StaleRoute:
            return b""

    patch.function(plain, call)


def router_keeps_the_rows_it_has_met(patch: Patch) -> None:
    """Where a name's rows are is looked up once, and not again when the ring has changed."""

    def take(self: Router, image: Image) -> None:
        self._image = image
        self._wake()

    patch.attribute(Router, "take", take)


def differences_bring_the_versions_alone(patch: Patch) -> None:
    """A router takes the newest version with the rows of before."""

    def same(ring: Any, diff: Mapping[str, Any]) -> Any:
        return ring

    patch.function(events._ring, same)  # noqa: SLF001


def router_steps_over_what_routes(patch: Patch) -> None:
    """No epoch is taken for one that may have moved a key."""
    patch.attribute(Change, "routes", property(lambda self: False))


def router_stays_with_a_log_that_was_given_up(patch: Patch) -> None:
    """A router that is told that its state is of another history asks the next metadata-log instead."""
    patch.function(over_http._check, _away)  # noqa: SLF001


def routers_take_whatever_answers(patch: Patch) -> None:
    """A router goes over to another cluster that answers at its address, and to a log that is empty."""

    def takes(self: Router, image: Image) -> str:
        return ""

    patch.attribute(Router, "refuses", takes)


def _away(path: str, status: int, body: bytearray) -> None:
    if status != over_http.HTTP_OK:
        raise TimeoutError(path)


ROUTER_MUTANTS: Final = (
    requests_of_clients_are_not_held,
    read_is_enough_by_one_answer,
    refusals_count_as_answers,
    router_keeps_the_rows_it_has_met,
    differences_bring_the_versions_alone,
    router_steps_over_what_routes,
    router_stays_with_a_log_that_was_given_up,
)
ROUTER_TEST_MUTANTS: Final = (
    clients_are_held_to_the_fence_alone,
    nodes_answer_for_who_had_their_address,
    request_is_judged_before_it_alone,
    routers_take_whatever_answers,
    waiting_effects_are_not_judged_again,
    write_needs_the_readers_alone,
)
"""No run has come to a client that is that late at a key of which a replica is passed by, nor to a quorum that
hangs on who is at a dead one's address.
"""
