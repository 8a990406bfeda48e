"""Known bugs of hot tablets: what is counted, what rates make of splits and merges, and what they move."""
# ruff: noqa: SLF001 - bugs are planted in private places too

from typing import Any, Final

from stele.domain.balance import even_sizes
from stele.domain.balance.state import heat_of
from stele.domain.tablets import heat, resizing, sizing, tablet_stats
from stele.domain.tablets.heat import with_heat
from stele.domain.tablets.sizing import ByRate, Goals, Present, Sized
from stele.domain.tablets.tablet_stats import LOWER, READS, WRITES, Part, Reals, noted
from stele.node import rates
from stele.node.rates import Rate, smoothed
from stele.node.replica import Replica
from stele.node.wire import Answer, Op, Write
from stele.sim.patching import Patch

TINY: Final = 1e-9


def what_is_refused_counts(patch: Patch) -> None:
    """A node counts operations that it does not serve: all that a client tries again are told."""
    plain = Replica._served

    def counted(self: Replica, op: Op, answer: Answer) -> Answer:
        found = plain(self, op, answer)
        if not found.done:
            self._rates.count(op.data_id, op.token, written=isinstance(op, Write))
        return found

    patch.attribute(Replica, "_served", counted)


def rates_are_told_at_once(patch: Patch) -> None:
    """What a tablet served in its first moments on a node is its rate."""
    patch.attribute(rates, "KNOWN_AFTER", 0.0)


def bursts_are_told(patch: Patch) -> None:
    """A rate is what was served since the last report."""

    def of_late(
        before: Rate,
        served: tuple[float, float, float],
        age_s: float,
        elapsed_s: float,
        half_life_s: float,
    ) -> Rate:
        return Rate(*(count / elapsed_s for count in served))

    patch.function(smoothed, of_late)


def halves_of_split_tablets_are_made_up(patch: Patch) -> None:
    """After a split each tablet serves as much in one half as in the other, so that another split helps."""
    plain = tablet_stats._split

    def made_up(part: Part, times: int) -> Part:
        found = plain(part, times)
        found.stats[LOWER] = (found.stats[READS] + found.stats[WRITES]) / 2
        return found

    patch.attribute(tablet_stats, "_split", made_up)


def what_is_told_no_more_is_idle(patch: Patch) -> None:
    """Nobody remembers what a tablet served before it moved, or its node was restarted."""
    patch.function(noted, lambda left, before, now: left)


def a_single_hot_key_is_split_away(patch: Patch) -> None:
    """What is too hot is split, whether that helps or not, up to what shards may have."""
    patch.attribute(sizing, "HELPS", 2.0)


def hot_tables_are_merged(patch: Patch) -> None:
    """A table that was split for what it serves is merged for its size, and split again."""
    patch.attribute(sizing, "_most_by_rate", lambda present, goals: Sized(0, ""))


def splits_by_rate_take_the_room_of_others(patch: Patch) -> None:
    """A hot table is split though shards have no room, and others are merged for it."""
    patch.attribute(resizing._Room, "has_some", lambda self, each: True)


def rates_that_waver_revoke_a_split(patch: Patch) -> None:
    """A split that was asked for is judged as if it had not been."""
    plain = sizing._fewest_by_rate

    def anew(present: Present, goals: Goals) -> Sized:
        return plain(Present(present.count, present.size_bytes, 0, present.hottest), goals)

    patch.attribute(sizing, "_fewest_by_rate", anew)


def rates_stand_above_options(patch: Patch) -> None:
    """What a table serves splits it beyond what it may have."""

    def unlimited(options: Any, present: Present, goals: Goals) -> ByRate:
        split, keep = sizing._fewest_by_rate(present, goals), sizing._most_by_rate(present, goals)
        return ByRate(split, keep)

    patch.function(sizing.by_rate, unlimited)


def noise_moves_tablets(patch: Patch) -> None:
    """Each report's rates count as they are, and something is always a little uneven."""

    def whatever(before: Reals | None, now: Reals) -> Reals:
        return now

    patch.attribute(heat, "_steady", whatever)


def nobody_remembers_what_rates_counted_as(patch: Patch) -> None:
    """Each look of the balancer begins anew with rates."""
    patch.function(with_heat, lambda image, loads: loads)


def a_few_operations_weigh_like_gigabytes(patch: Patch) -> None:
    """In a cluster that is nearly idle the one tablet that is read has a node for itself."""
    plain = heat_of

    def of_the_mean(per_s: Reals, least_per_s: float) -> Reals:
        return plain(per_s, TINY)

    patch.function(heat_of, of_the_mean)


def hot_tablets_come_last(patch: Patch) -> None:
    """Small tablets fill up the other nodes first, and the hot ones stay together."""
    patch.attribute(even_sizes, "_large_to", lambda board, source, target: False)


HOT_TEST_MUTANTS: Final = (
    what_is_refused_counts,
    rates_are_told_at_once,
    bursts_are_told,
    halves_of_split_tablets_are_made_up,
    what_is_told_no_more_is_idle,
    a_single_hot_key_is_split_away,
    hot_tables_are_merged,
    splits_by_rate_take_the_room_of_others,
    rates_that_waver_revoke_a_split,
    rates_stand_above_options,
    noise_moves_tablets,
    nobody_remembers_what_rates_counted_as,
    a_few_operations_weigh_like_gigabytes,
    hot_tablets_come_last,
)
