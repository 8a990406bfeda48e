"""Planted bugs of the router, and of what a store's agent asks of the requests of clients."""

from collections.abc import Mapping
from typing import Any

from stele import client
from stele.agent.agent import Agent
from stele.domain.image import Image
from stele.router import over_http, router
from stele.router.over_http import ChangeEvent
from stele.router.router import Replicas, Router, StaleRoute
from stele_simulator.patching import Patch
from stele_simulator.planting import RUN, planted


@planted(RUN, rule="I10")
def requests_of_clients_are_not_held(patch: Patch) -> None:
    """A barrier passes while a client's request of the version before it is under way at the node."""
    patch.attribute(Agent, "hold", lambda self, version, data_id, token: None)
    patch.attribute(Agent, "release", lambda self, hold: None)


@planted(RUN)
def read_is_enough_by_one_answer(patch: Patch) -> None:
    """A client accepts the first answer to a read."""
    patch.attribute(Replicas, "read", lambda self, answers: bool(answers))


@planted(RUN)
def refusals_count_as_answers(patch: Patch) -> None:
    """A rejected write counts as an acknowledgement."""
    plain = router._call

    async def call(send: Any, place: Any, timeout_s: float) -> Any:
        try:
            return await plain(send, place, timeout_s)
        except StaleRoute:
            return b""

    patch.function(plain, call)


@planted(RUN, rule="I10")
def router_keeps_the_rows_it_has_met(patch: Patch) -> None:
    """Where a name's rows are is looked up once, and not again when the ring has changed."""

    def take(self: Router, image: Image) -> None:
        self._image = image
        self._wake()

    patch.attribute(Router, "take", take)


@planted(RUN, rule="I10")
def differences_bring_the_versions_alone(patch: Patch) -> None:
    """A router takes the newest version with the rows of before."""

    def same(ring: Any, diff: Mapping[str, Any]) -> Any:
        return ring

    patch.function(over_http._ring, same)


@planted(RUN, rule="I10")
def router_steps_over_what_routes(patch: Patch) -> None:
    """No epoch is taken for one that may have moved a key."""
    patch.attribute(ChangeEvent, "routes", property(lambda self: False))


@planted(RUN, rule="I10")
def router_stays_with_a_log_that_was_given_up(patch: Patch) -> None:
    """A router whose state is of another history asks the next metadata-log instead."""
    patch.function(client.check, _away)


def _away(path: str, status: int, body: bytearray) -> None:
    if status != client.HTTP_OK:
        raise TimeoutError(path)
