"""Making a failing scenario small: leave out what it fails without (delta debugging over its actions)."""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from stele.sim.network import FINE
from stele.sim.run import Failure, Result, run_scenario
from stele.sim.scenario import Action, Scenario

MOST_RUNS: Final = 300
"""Runs that shrinking may take; a failing run is short, it stops where it fails."""

replace = msgspec.structs.replace
Run = Callable[[Scenario], Result]


class Shrunk(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest scenario found that fails by the same invariant, and how many runs it took."""

    scenario: Scenario
    failure: Failure
    runs: int


class _Shrinker:
    def __init__(self, scenario: Scenario, failure: Failure, run: Run, most_runs: int) -> None:
        self.best, self.failure = scenario, failure
        self.runs = 0
        self._run = run
        self._most = most_runs

    def fails(self, candidate: Scenario) -> bool:
        """Keep the candidate when it fails by the same invariant."""
        if self.runs >= self._most or candidate == self.best:
            return False
        self.runs += 1
        failure = self._run(candidate).failure
        if failure is None or failure.invariant != self.failure.invariant:
            return False
        self.best, self.failure = candidate, failure
        return True

    def drop_actions(self) -> None:
        """Leave out halves, quarters ... single actions, for as long as something can go."""
        parts = 2
        while self.best.actions and self.runs < self._most:
            actions = self.best.actions
            chunks = _chunks(actions, parts)
            if any(self.fails(replace(self.best, actions=rest)) for rest in _without_each(chunks)):
                parts = max(2, parts - 1)
            elif parts >= len(actions):
                return
            else:
                parts = min(len(actions), parts * 2)

    def simplify(self) -> None:
        """Finer weather, right clocks, fewer processes, a shorter run."""
        self.fails(replace(self.best, weather=FINE))
        self.fails(replace(self.best, clocks={}))
        for field in (
            "append_tail",
            "append_duplicate",
            "append_loss",
            "tail",
            "duplicate",
            "loss",
        ):
            self.fails(replace(self.best, weather=replace(self.best.weather, **{field: 0.0})))
        for field in ("drivers", "writers", "clients", "num_tokens", "racks"):
            self.fails(replace(self.best, **{field: 1}))
        if self.failure.at_s < self.best.duration_s:
            self.fails(replace(self.best, duration_s=round(self.failure.at_s + 0.5, 3)))


def shrink(
    scenario: Scenario, failure: Failure, run: Run = run_scenario, most_runs: int = MOST_RUNS
) -> Shrunk:
    """A smaller scenario that fails by the same invariant as ``scenario`` does."""
    shrinker = _Shrinker(scenario, failure, run, most_runs)
    late = [action for action in scenario.actions if action.at_s <= failure.at_s]
    shrinker.fails(replace(scenario, actions=tuple(late)))
    shrinker.drop_actions()
    shrinker.simplify()
    shrinker.drop_actions()
    return Shrunk(scenario=shrinker.best, failure=shrinker.failure, runs=shrinker.runs)


def _chunks(actions: tuple[Action, ...], parts: int) -> list[tuple[Action, ...]]:
    size = max(1, -(-len(actions) // parts))
    return [actions[first : first + size] for first in range(0, len(actions), size)]


def _without_each(chunks: list[tuple[Action, ...]]) -> Iterator[tuple[Action, ...]]:
    for left_out in range(len(chunks)):
        kept = (chunk for index, chunk in enumerate(chunks) if index != left_out)
        yield tuple(action for chunk in kept for action in chunk)
