"""The demo's story as a table of steps, and the running of it."""

from __future__ import annotations

import asyncio
import signal
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import aiohttp
from rich.console import Console

from stele.cli.errors import CliError
from stele.cli.output import duration
from stele_harness.demo.checks import Report
from stele_harness.demo.load import Load
from stele_harness.demo.scene import Scene
from stele_harness.demo.site import Site
from stele_harness.demo.steps import (
    account,
    columns,
    disaster,
    library,
    materialized,
    membership,
    tablets,
)
from stele_harness.demo.timeline import Timeline
from stele_harness.demo.words import TERMS


class Step(NamedTuple):
    """A step by name; ``needs`` are those whose doing it builds on, ``terms`` what is told in its words."""

    name: str
    title: str
    run: Callable[[Scene], Awaitable[None]]
    needs: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()


JOIN = ("version", "session", "fence")

STEPS: tuple[Step, ...] = (
    Step(
        "members", "Three nodes in three racks become a cluster", membership.members, (), ("epoch",)
    ),
    Step(
        "library", "Real data: the Python standard library", library.run, ("members",), ("quorum",)
    ),
    Step(
        "load", "A client that keeps account begins to write and read", account.load, ("library",)
    ),
    Step("join", "A fourth node joins; kill -9 the coordinator", membership.join, ("load",), JOIN),
    Step("leave", "The first node leaves; kill -9 the metadata-log", membership.leave, ("join",)),
    Step("refusals", "What must not happen is refused", account.refusals, ("leave",)),
    Step(
        "replace",
        "A node dies for good; a new one takes its place",
        membership.replace,
        ("refusals",),
    ),
    Step("together", "Two nodes join at once", membership.together, ("replace",)),
    Step(
        "remove",
        "Another dies for good and is removed, while a living node leaves",
        membership.remove,
        ("together",),
    ),
    Step("columns", "A table's columns change while rows are written", columns.run, ("members",)),
    Step(
        "tablets",
        "A table in tablets: split, spread over a new node, and off it again",
        tablets.run,
        ("library",),
        ("tablet",),
    ),
    Step("changes", "The change log of the table", columns.read_changes, ("columns",)),
    Step("settle", "The load stops: its account", account.settle, ("load",)),
    Step("read-back", "Every file, through every node", account.read_back, ("library", "settle")),
    Step(
        "fences", "Old versions are fenced out", account.fences, ("library",), ("version", "fence")
    ),
    Step("positions", "All processes, one state", account.positions, ("members",)),
    Step("materialized", "What Spark made of the log", materialized.run, ("library",)),
    Step("replay", "The whole log once more, from its beginning", account.replay, ("members",)),
)

DRILL: tuple[Step, ...] = (
    Step("members", "Three nodes in three racks become a cluster", membership.members),
    Step("keyspace", "A keyspace for the load", membership.keyspace),
    Step("load", "A client that keeps account begins to write and read", account.load),
    Step("disaster", "The log is lost under load, and recovered", disaster.run),
    Step("settle", "The load stops: its account", account.settle),
    Step("positions", "All processes, one state", account.positions),
)
"""What `make drill` does."""


def chosen_steps(names: tuple[str, ...]) -> tuple[Step, ...]:
    """The steps asked for and all that they need, in order; all of them for no names.

    Raises CliError for a name that is not one.
    """
    by_name = {step.name: step for step in STEPS}
    wanted: set[str] = set()
    waiting = list(names or by_name)
    while waiting:
        name = waiting.pop()
        if name not in by_name:
            raise CliError(f"There is no step '{name}'.", f"Steps: {', '.join(by_name)}.")
        if name not in wanted:
            wanted.add(name)
            waiting.extend(by_name[name].needs)
    return tuple(step for step in STEPS if step.name in wanted)


async def play(directory: Path, steps: tuple[Step, ...], timeline: Timeline) -> None:
    """Run the steps over the stack in ``directory``. Failures are written into the report."""
    report = timeline.report
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as http:
        scene = Scene(Site(directory, http), timeline, directory, Load(http))
        explained = set[str]()
        try:
            for step in steps:
                with timeline.step(step.title):
                    for term in step.terms:
                        if term not in explained:
                            timeline.explain(TERMS[term])
                            explained.add(term)
                    await step.run(scene)
        except (CliError, aiohttp.ClientError, TimeoutError, BaseExceptionGroup) as error:
            report.failure = _story(error)
            timeline.note(report.failure, "bold red")
        finally:
            await _abandon(scene)


async def _abandon(scene: Scene) -> None:
    """Stop what a failed step has left running."""
    if scene.load.running:
        await scene.load.stop()
    for task in scene.background:
        task.cancel()
    await asyncio.gather(*scene.background, return_exceptions=True)


def _story(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, CliError):
        return error.line()
    return "".join(traceback.format_exception_only(error)).strip()


def verdict(out: Console, report: Report) -> None:
    """The last lines."""
    held = sum(check.held for check in report.checks)
    colour = "bold green" if report.held else "bold red"
    claims = f"{held} of {len(report.checks)} checks held" if report.checks else "nothing to check"
    out.print(f"\n[{colour}]{claims}[/{colour}] in {duration(report.took_s)}")
    if report.failure:
        out.print(f"The demo did not get to its end: {report.failure}", markup=False)
