"""``stele demo``: a real cluster on this machine, under load, with what happened."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.panel import Panel

from stele.cli.demo.checks import Report
from stele.cli.demo.scenario import STEPS, chosen_steps, play, verdict
from stele.cli.demo.stack import stack_process, wait_started
from stele.cli.demo.timeline import Timeline
from stele.cli.errors import CliError, Exit
from stele.cli.local.foreground import StackOptions
from stele.cli.local.lock import is_held
from stele.cli.output import console, table

CLUSTER = "demo"
DIRECTORY = Path("build/demo/stack")
REPORT = Path("build/demo/report.json")


def demo(
    *,
    step: Annotated[tuple[str, ...], Parameter(name="--step", negative="")] = (),
    steps: Annotated[bool, Parameter(name="--steps", negative="")] = False,
    keep: Annotated[bool, Parameter(name="--keep", negative="")] = False,
    directory: Annotated[Path, Parameter(name="--dir")] = DIRECTORY,
    report: Annotated[Path, Parameter(name="--report")] = REPORT,
) -> int:
    """Start a cluster, fill it, change and hurt it under load, then check everything.

    Exit status 0 only when every check held. Nothing is left running, unless --keep.

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
    _empty(options.directory)
    result = Report()
    out.print(
        Panel.fit(
            "Kafka, Redis, every service and three data nodes as processes of this machine; "
            "then real data, load,\njoins, leaves, two kill -9, two nodes that die for good, a table "
            "in tablets, and every claim checked.",
            title="stele demo",
        )
    )
    timeline, interrupted = Timeline(out, result), False
    try:
        with stack_process(options, keep, timeline) as exit_code:
            with timeline.step("Kafka, Redis, every service and three nodes start"):
                wait_started(options, exit_code, timeline)
            asyncio.run(play(options.directory, chosen, timeline))
    except CliError as error:
        result.failure = result.failure or error.line()
    except (KeyboardInterrupt, asyncio.CancelledError):
        result.failure, interrupted = "interrupted", True
    result.close(timeline.elapsed_s())
    result.write(report)
    verdict(out, result)
    out.print(f"report: {report}", soft_wrap=True)
    if keep and is_held(options.directory):
        _say_how_to_use(options.directory, {each.name for each in chosen})
    if interrupted:
        return Exit.INTERRUPTED
    return Exit.OK if result.held else Exit.FAILED


def _empty(directory: Path) -> None:
    """Remove what an earlier demo left. Raises CliError for anything else."""
    if is_held(directory):
        raise CliError(
            f"A stack runs over {directory}.", f"Stop it: stele stack down --dir {directory}"
        )
    if directory.exists():
        strange = {p.name for p in directory.iterdir()} - KNOWN
        if strange:
            raise CliError(
                f"{directory} holds {', '.join(sorted(strange))}, which no demo made.",
                "Give --dir another directory.",
            )
        shutil.rmtree(directory)


KNOWN = {
    *("kafka", "redis", "services", "control"),
    *("stack.json", "stack.json.new", "stack.lock", "stack.log", "stack.ready"),
}


def _say_how_to_use(directory: Path, played: set[str]) -> None:
    out = console()
    out.print(f"\nThe cluster runs on. export STELE_DIR={directory}, then:", soft_wrap=True)
    for line in (
        "stele status                          the cluster at a glance",
        "stele epochs --last 30                what happened, who asked, why",
        "stele ring                            who reads and writes which range",
        "stele get library json/decoder.py     a value",
        "stele stack add-node --rack r2        one more node",
        "stele watch                           epochs as they happen",
        "stele stack down                      stop it",
    ):
        if "library" in played or "library" not in line:
            out.print(f"  {line}", markup=False)
