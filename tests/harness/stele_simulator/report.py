"""Results as text for people."""

from collections.abc import Iterator
from typing import Final

import msgspec

from stele_simulator.processes.disaster import COLUMNS, Round
from stele_simulator.result import Failure, Result
from stele_simulator.scenario import Action
from stele_simulator.shrink import Shrunk
from stele_simulator.sweep import Sweep

ROUND_SAID: Final = ("after_s", "kind")
"""Fields at the beginning of its line."""


def result_lines(result: Result) -> list[str]:
    """Return lines about the actions and checks of a run."""
    finished = ", ".join(f"{count} {status}" for status, count in result.finished.items()) or "none"
    speed = result.virtual_s / result.real_s if result.real_s else 0.0
    return [
        f"seed {result.seed}: {'passed' if result.passed else 'FAILED'}",
        f"  epochs     {result.epochs} ({result.losers} losers, {result.truncated} no longer in the topic)",
        f"  operations {finished}",
        f"  commands   {result.commands} answered, {result.rejected} refused, {result.barriers} barriers",
        f"  watches    {result.watched} epochs",
        f"  data       {result.writes} writes acknowledged, {result.reads} reads answered",
        f"  faults     {result.faults}, {result.lost_messages} messages lost,"
        f" {result.requests} requests made",
        f"  checks     {result.checks}",
        f"  time       {result.virtual_s:.0f} s virtual, {result.real_s:.2f} s real ({speed:.0f}x)",
        f"  trace      {result.trace_hash}",
    ]


def failure_lines(failure: Failure, events: int = 20) -> list[str]:
    """The two facts that contradict each other, and the last events before."""
    return [
        f"{failure.invariant} does not hold after {failure.at_s:.3f} s:",
        f"  must be: {failure.expected}",
        f"  but is:  {failure.found}",
        f"the last {min(events, len(failure.before))} events before it:",
        *(f"  {line}" for line in failure.before[-events:]),
    ]


def shrunk_lines(shrunk: Shrunk) -> list[str]:
    """Return lines about the smallest disaster that still fails: losses, faults and requests."""
    scenario = shrunk.scenario
    return [
        f"shrunk in {shrunk.runs} runs to {len(scenario.rounds)} rounds, {len(scenario.actions)} faults and"
        f" {len(scenario.requests)} requests ({scenario.nodes} nodes, {scenario.copies} copies,"
        f" {scenario.replicas} replicas of the log, {scenario.tablets} tablets):",
        *(f"  {line}" for line in _rounds(scenario.rounds)),
        *(f"  {action_text(action)}" for action in scenario.actions),
        *(f"  {action_text(action)}, by the commands topic" for action in scenario.requests),
        *(f"  {action_text(action)} the log" for action in scenario.freezes),
        *(f"  {action_text(action)}" for action in scenario.upgrades),
        f"  -> {shrunk.failure.invariant}: {shrunk.failure.found}",
    ]


def _rounds(rounds: tuple[Round, ...]) -> Iterator[str]:
    """When something is lost, and all that a round has besides."""
    at_s = 0.0
    for each in rounds:
        at_s += each.after_s
        parts = msgspec.to_builtins(each)
        told = [f"{name} {value}" for name, value in parts.items() if name not in ROUND_SAID]
        yield " ".join((f"{at_s:8.3f} {each.kind}", *told))
        at_s += each.wait_s


def action_text(action: Action) -> str:
    details = [action.target, action.text]
    details += [f"{action.seconds:g} s"] if action.seconds else []
    details += [f"#{action.number}"] if action.number else []
    return f"{action.at_s:8.3f} {action.kind} {' '.join(text for text in details if text)}"


def sweep_lines(found: Sweep) -> list[str]:
    """A sweep in figures, then what failed and how to see it again."""
    speed = found.virtual_s / found.real_s if found.real_s else 0.0
    lines = [
        f"{found.seeds - len(found.failed)} of {found.seeds} seeds passed",
        f"  {found.virtual_s / 3600:.1f} h virtual, {found.real_s:.0f} s real ({speed:.0f}x a core);"
        f" {found.epochs} epochs, {found.faults} faults, {found.commands} commands,"
        f" {found.writes} writes, {found.checks} checks",
    ]
    return [*lines, *(line for result in found.failed for line in failed_lines(result))]


def failed_lines(result: Result) -> list[str]:
    """Return lines about the failure of one seed of a sweep, and the command that repeats it."""
    assert result.failure is not None
    return [
        f"  seed {result.seed}: {result.failure.invariant}: {result.failure.found}",
        f"    {replay_command(result)}",
    ]


def replay_command(result: Result) -> str:
    return f"stele sim run --seed {result.seed}{' --columns' * (result.profile == COLUMNS)}"
