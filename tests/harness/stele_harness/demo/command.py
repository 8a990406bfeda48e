"""``stele demo`` and ``stele drill``: a real cluster on this machine under load, with a report."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.panel import Panel

from stele.cli.errors import CliError, Exit
from stele.cli.output import console, table
from stele.cli.places import is_held, read_stack_file
from stele_harness.demo.checks import Report
from stele_harness.demo.scenario import DRILL, STEPS, Step, chosen_steps, play, verdict
from stele_harness.demo.stack import stack_process, wait_started
from stele_harness.demo.timeline import Timeline
from stele_harness.demo.words import lines, suggestions, take_up, what_next
from stele_harness.stack.foreground import StackOptions
from stele_harness.stack.lifecycle import empty

CLUSTER = "demo"
DIRECTORY = Path("build/demo/stack")
REPORT = Path("build/demo/report.json")
DRILL_DIRECTORY = Path("build/drill/stack")
DRILL_REPORT = Path("build/drill/report.json")


def demo(
    *,
    step: Annotated[tuple[str, ...], Parameter(name="--step", negative="")] = (),
    steps: Annotated[bool, Parameter(name="--steps", negative="")] = False,
    keep: Annotated[bool, Parameter(name="--keep", negative="")] = False,
    directory: Annotated[Path, Parameter(name="--dir")] = DIRECTORY,
    report: Annotated[Path, Parameter(name="--report")] = REPORT,
) -> int:
    """Start a cluster, fill it, change and hurt it under load, then check everything.

    Exit status 0 only when every check held. All processes are stopped, except with --keep.

    Args:
        step: Only this step and those it needs; may be repeated.
        steps: List the steps and leave.
        keep: Leave the cluster running and say how to use it.
        directory: Where the cluster keeps its data; emptied first.
        report: Where the report goes, as JSON.
    """
    out = console()
    if steps:
        found = table("steps of the demo", "step", "what happens", "needs")
        for each in STEPS:
            found.add_row(each.name, each.title, " ".join(each.needs))
        out.print(found)
        return Exit.OK
    chosen = chosen_steps(step)
    options = StackOptions(directory=directory.resolve(), cluster=CLUSTER)
    out.print(
        Panel.fit(
            "Kafka, Redis, every service and three data nodes as processes of this machine; "
            "then real data, load,\njoins, leaves, two kill -9, two nodes that die for good, columns that "
            "change, a table in tablets,\nand every claim checked.",
            title="stele demo",
        )
    )
    _, code = tell(options, chosen, report, keep=keep)
    if keep and is_held(options.directory):
        _say_how_to_use(options.directory, {each.name for each in chosen})
    elif code == Exit.OK:
        _say_what_next()
    return code


def drill(
    *,
    directory: Annotated[Path, Parameter(name="--dir")] = DRILL_DIRECTORY,
    report: Annotated[Path, Parameter(name="--report")] = DRILL_REPORT,
) -> int:
    """Lose the log of a cluster under load, recover it, and check that nothing acknowledged is lost.

    Exit status 0 only when every check held. Nothing is left running.

    Args:
        directory: Where the cluster keeps its data; emptied first.
        report: Where the report goes, as JSON.
    """
    options = StackOptions(directory=directory.resolve(), cluster="drill", without=("placements",))
    console().print(
        Panel.fit(
            "Kafka, Redis, services and three data nodes as processes of this machine; under load the\n"
            "topic of the log is deleted, and the log goes on from what archive and processes hold.",
            title="stele drill",
        )
    )
    return tell(options, DRILL, report, keep=False)[1]


def tell(
    options: StackOptions, steps: tuple[Step, ...], path: Path, *, keep: bool
) -> tuple[Report, int]:
    """Start a stack and play the steps over it. Return the report and the exit status.

    The report is written to ``path``.
    """
    out, result = console(), Report()
    empty(options.directory)
    timeline, interrupted = Timeline(out, result), False
    try:
        with stack_process(options, keep, timeline) as started:
            with timeline.step("Kafka, Redis, every service and three nodes start"):
                wait_started(options, started, timeline)
            asyncio.run(play(options.directory, steps, timeline))
    except CliError as error:
        result.failure = result.failure or error.line()
    except (KeyboardInterrupt, asyncio.CancelledError):
        result.failure, interrupted = "interrupted", True
    result.close(timeline.elapsed_s())
    result.write(path)
    verdict(out, result)
    out.print(f"report: {path}", soft_wrap=True)
    if interrupted:
        return result, Exit.INTERRUPTED
    return result, Exit.OK if result.held else Exit.FAILED


def _say_how_to_use(directory: Path, played: set[str]) -> None:
    out = console()
    stack = read_stack_file(directory)
    page = None if stack is None else stack.service("console")
    if page is not None:
        out.print(f"\nThe console shows it in the browser: {page.url}", soft_wrap=True)
    out.print("\nThe cluster runs on. In your shell, first:")
    _print([f"  {take_up(directory)}"])
    out.print("Then:")
    _print(lines(suggestions(played)))


def _say_what_next() -> None:
    console().print("\nWhat to try next:")
    _print(lines(what_next()))


def _print(texts: list[str]) -> None:
    for text in texts:
        console().print(text, markup=False, soft_wrap=True)
