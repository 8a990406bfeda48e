"""Which of many places for a token evens out the loads most, under several replication factors at once.

How uneven loads are is the sum, over nodes and factors, of a penalty for each node's deviation from its
fair share. Of one token it is a quadratic function of the token's place in its range, so the best place
of each range is known at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from stele.domain.ring.cuts import Cuts, DcRing, Loads, cuts_at, loads_of
from stele.domain.ring.shares import Shares
from stele.domain.ring.strategy import Positions

STEEPNESS: Final = 2.0
"""A deviation x costs ``x**2 + STEEPNESS * x**4``: one node that is far off counts more than many nearly
right. Steeper makes nodes of few tokens less even: their deviations are too large for one quadratic step."""
RANGE_WEIGHT: Final = 0.001
"""Of the squared sizes of ranges, in mean ranges. Without it a few ranges stay huge, that later nobody can
cut without taking too much, while other tokens get to own nothing."""
NARROWEST: Final = 1 / 64
"""The smallest part of a range that is cut off."""
PLACES_FOR_A_TOKEN: Final = 4
MIN_PLACES: Final = 1024
"""Places that are looked at; where there are more, the most promising."""
TOKENS_FOR_A_SCORE: Final = 64
"""Of more tokens than these, two and more are chosen by one look at all places."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Even loads for one replication factor; ``fair`` is each node's share, in rings."""

    factor: int
    weight: float
    fair: Shares


class Balance:
    """One look at a ring: picks places for some tokens that do not touch one another."""

    def __init__(self, ring: DcRing, goals: Sequence[Goal], wanted: int) -> None:
        self._goals = goals
        self._newcomer = ring.newcomer
        self._several = 1 + wanted // TOKENS_FOR_A_SCORE
        sizes = ring.sizes()
        loads = [loads_of(ring, sizes, goal.factor) for goal in goals]
        self._held = [one.by_node for one in loads]
        most = max(MIN_PLACES, PLACES_FOR_A_TOKEN * wanted)
        self._places = self._promising(loads, sizes, most)
        self._cuts = [cuts_at(one, self._places) for one in loads]
        self._reached = np.minimum.reduce([cuts.reached for cuts in self._cuts])
        self._ranges = RANGE_WEIGHT * (sizes[self._places] * len(sizes)) ** 2
        self._count = len(sizes)
        self._open = sizes[self._places] * len(sizes) > NARROWEST

    def pick(self, done: int, stop: int, total: int) -> Iterator[tuple[int, float]]:
        """Ranges, and in each the part before the token, for those ``done`` up to ``stop`` of ``total``.

        There are fewer if the rest would touch one another; at least one if there are any.
        """
        while done < stop and self._open.any():
            part, cost = self._best(target=(done + 1) / total)
            touched = set[int]()
            several = min(self._several, stop - done)
            for at in np.argsort(cost, kind="stable")[: 4 * several].tolist():
                losers = {int(node) for cuts in self._cuts for node in cuts.losers[:, at]}
                if not self._open[at] or not touched.isdisjoint(losers):
                    continue
                touched |= losers
                self._take(at, float(part[at]))
                yield int(self._places[at]), float(part[at])
                done, several = done + 1, several - 1
                if not several:
                    break

    def _promising(self, loads: Sequence[Loads], sizes: Shares, most: int) -> Positions:
        """The ranges whose halves would be the best cuts, by the first loser alone."""
        if len(sizes) <= most:
            return np.arange(len(sizes))
        gain = (RANGE_WEIGHT / 2 * len(sizes) ** 2) * sizes**2
        for goal, one in zip(self._goals, loads, strict=True):
            slope, _ = _penalty(one.by_node / goal.fair - 1)
            gain += goal.weight / 2 * one.gains * (slope / goal.fair)[one.losers]
        return np.sort(np.argsort(-gain, kind="stable")[:most])

    def _best(self, target: float) -> tuple[Shares, Shares]:
        """For each place the best part to cut off, and what all penalties then change by.

        The newcomer's is for the distance to ``target``, the part of its fair share that it should have.
        """
        square, linear, fixed = 2 * self._ranges, -2 * self._ranges, np.zeros(len(self._places))
        for goal, cuts, held in zip(self._goals, self._cuts, self._held, strict=True):
            slope, curve = _penalty(held / goal.fair - 1)
            losers, first = cuts.losers, cuts.losers[0]
            lost, at_most = cuts.taken / goal.fair[losers], cuts.at_most / goal.fair[first]
            fixed += goal.weight * ((curve[losers] * lost - slope[losers]) * lost).sum(axis=0)
            linear += goal.weight * at_most * (2 * curve[first] * lost[0] - slope[first])
            square += goal.weight * curve[first] * at_most**2
            own = goal.fair[self._newcomer]
            off = (held[self._newcomer] + cuts.taken.sum(axis=0)) / own - target
            gain = cuts.at_most / own
            fixed += goal.weight * off**2
            linear += goal.weight * 2 * off * gain
            square += goal.weight * gain**2
        part = np.clip(-linear / (2 * square), NARROWEST, 1 - NARROWEST)
        cost = (square * part + linear) * part + fixed
        return part, np.where(self._open, cost, np.inf)

    def _take(self, at: int, part: float) -> None:
        """Count the token in, and close all places whose ranges it touches."""
        for cuts, held in zip(self._cuts, self._held, strict=True):
            _move(cuts, held, at, part, self._newcomer)
        place, reached = self._places[at], self._reached[at]
        for turn in (-self._count, 0, self._count):
            apart = (self._places + turn < reached) | (self._reached + turn > place)
            self._open &= apart


def _penalty(deviation: Shares) -> tuple[Shares, Shares]:
    """First derivative, and half of the second, of what the deviations cost."""
    squared = deviation**2
    return (2 + 4 * STEEPNESS * squared) * deviation, 1 + 6 * STEEPNESS * squared


def _move(cuts: Cuts, held: Shares, at: int, part: float, newcomer: int) -> None:
    taken = cuts.taken[:, at].copy()
    taken[0] += part * cuts.at_most[at]
    for loser, amount in zip(cuts.losers[:, at].tolist(), taken.tolist(), strict=True):
        held[loser] -= amount
        held[newcomer] += amount
