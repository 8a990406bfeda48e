"""Known bugs of switched off balancing: what moves all the same, what is cancelled with it, when it ends."""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from immutables import Map

from stele.domain.commands import SwitchBalancingOn
from stele.domain.image import Image
from stele.domain.names import BALANCER
from stele.domain.schema import balancing, switches
from stele.domain.schema.facts import Off, SchemaImage, Table
from stele.domain.tablets import switched
from stele.domain.tablets.stuck import Stuck
from stele.sim.patching import Patch

replace = msgspec.structs.replace


def balancer_plans_what_is_off(patch: Patch) -> None:
    """The balancer asks for moves, splits and merges of tables that are off, which the log has to refuse."""
    patch.function(switched.standing_still, lambda image, now_ms: {})


def log_takes_what_is_off(patch: Patch) -> None:
    """The log takes what the balancer has planned by an older view, in which balancing was on."""
    patch.function(switches.check_balancing, lambda image, actor, table, from_node="": None)


def balancer_moves_a_table_that_is_off(patch: Patch) -> None:
    """Neither who plans nor who decides heeds that balancing is off."""
    balancer_plans_what_is_off(patch)
    log_takes_what_is_off(patch)


def what_was_asked_for_begins_after_the_switch(patch: Patch) -> None:
    """What the balancer had asked for before it was switched off begins later."""
    patch.attribute(balancing, "_not_begun", lambda image, tables: [])


def switch_that_has_expired_stays_off(patch: Patch) -> None:
    """The time limit of a switch passes, and nothing moves."""
    patch.attribute(Off, "expired", lambda self, now_ms: False)


def switch_is_ended_by_the_time_of_another(patch: Patch) -> None:
    """Who was late to see that a switch was set anew ends the new one."""
    patch.function(switched.expired, _any_switch(switched.expired))


def nodes_that_leave_keep_what_is_off(patch: Patch) -> None:
    """Nobody can leave while balancing is off."""
    patch.function(switches.gives_all_away, lambda image, node_id: False)


def grace_period_is_that_of_all_tables(patch: Patch) -> None:
    """What has begun is cancelled of tables that are on, too."""
    plain = switches.off_for

    def of_any(schema: SchemaImage, table: Table, now_ms: int = 0) -> Iterator[Off]:
        for other in schema.with_tablets():
            yield from plain(schema, other, now_ms)

    patch.attribute(switched, "off_for", of_any)


def what_users_began_is_cancelled(patch: Patch) -> None:
    """After the grace period a user's own moves are cancelled with the balancer's."""
    plain = switched.aborted

    def of_all(image: Image, now_ms: int) -> Iterator[Stuck]:
        rows = {id_: replace(r, actor=BALANCER) for id_, r in image.requests.open.items()}
        requests = replace(image.requests, open=Map(rows))
        return plain(replace(image, requests=requests), now_ms)

    patch.function(switched.aborted, of_all)


def _any_switch(
    plain: Callable[[Image, int], tuple[SwitchBalancingOn, ...]],
) -> Callable[[Image, int], tuple[SwitchBalancingOn, ...]]:
    def forgetful(image: Image, now_ms: int) -> tuple[SwitchBalancingOn, ...]:
        return tuple(SwitchBalancingOn(switch.name) for switch in plain(image, now_ms))

    return forgetful


BALANCING_MUTANTS: Final = (
    balancer_moves_a_table_that_is_off,
    switch_that_has_expired_stays_off,
)
BALANCING_TEST_MUTANTS: Final = (
    balancer_plans_what_is_off,
    log_takes_what_is_off,
    what_was_asked_for_begins_after_the_switch,
    switch_is_ended_by_the_time_of_another,
    nodes_that_leave_keep_what_is_off,
    grace_period_is_that_of_all_tables,
    what_users_began_is_cancelled,
)
"""Found by tests alone: the one half of them makes up for the other, or needs a late view."""
