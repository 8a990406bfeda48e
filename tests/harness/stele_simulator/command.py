"""``stele sim``: runs of the deterministic simulator, sweeps of seeds, and planted bugs."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from cyclopts import App, Parameter

from stele_harness.progress import ProgressSteps

if TYPE_CHECKING:
    from stele_simulator.processes.disaster import Disaster
    from stele_simulator.result import Result
    from stele_simulator.sweep import Sweep

T = TypeVar("T")

REPORTED_S = 60.0
"""Interval of the summaries of an endless sweep."""

app = App(
    name="sim", help="The deterministic simulator: the production processes, virtual time, a seed."
)


@app.command
def run(
    *,
    seed: int = 0,
    columns: Annotated[bool, Parameter(negative="")] = False,
    scenario: Path | None = None,
    trace: Annotated[bool, Parameter(negative="")] = False,
    html: Annotated[bool, Parameter(negative="")] = False,
    shrink: bool = True,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Simulate one cluster under faults. The same seed gives the same run, byte for byte.

    Args:
        seed: Chooses the cluster, the requests, the faults and their times.
        columns: Run a cluster whose tables have columns that change under load. These runs have other seeds.
        scenario: A scenario file (.json, as a failed run writes it) or a story (.txt) instead of a seed.
        trace: Print every event, not only the figures.
        html: Write the run to a web page: a lane for each process, its faults, every epoch.
        shrink: After a failure, search for a smaller scenario that fails alike, and write it to a file.
        json: Print the result as JSON.
    """
    from stele_simulator.processes.disaster import Disaster, make_columns, make_disaster
    from stele_simulator.processes.run import run_disaster_scenario

    if scenario is not None and scenario.suffix == ".txt":
        return _tell(scenario, trace=trace, html=html)
    chosen = make_columns(seed) if columns else make_disaster(seed)
    if scenario is not None:
        chosen = msgspec.json.decode(_content(scenario), type=Disaster)
    lines = list[str]()
    result = run_disaster_scenario(chosen, show=lines.append if trace or html else None)
    if trace:
        print("\n".join(lines))
    if html:
        from stele_simulator.time_line import time_line

        _write_page(str(result.seed), time_line(lines, result), quiet=json)
    if json:
        print(msgspec.json.encode(result).decode())
    else:
        _print_result(result)
    if result.failure is not None and shrink:
        _shrink(result, chosen, quiet=json)
    return 0 if result.passed else 1


@app.command
def sweep(
    *,
    seeds: str = "0..99",
    jobs: int = 1,
    forever: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Simulate a range of seeds. Exit status 1 when a run fails.

    Args:
        seeds: First and last seed, as A..B.
        jobs: Number of processes.
        forever: Continue after the last seed until Ctrl-C. The summary is in stele-sim-soak.json.
        json: Print the summary as JSON.
    """
    from stele_simulator.report import sweep_lines
    from stele_simulator.sweep import endless, summary
    from stele_simulator.sweep import sweep as run_all

    first, last = _seeds(seeds)
    if forever:
        found = _soaked(endless(first, jobs), quiet=json)
    else:
        names = map(str, range(first, last + 1))
        runs = run_all(first, last, jobs)
        found = summary(_shown(runs, lambda run: str(run.seed), "seeds", names, jobs))
    print(msgspec.json.encode(found).decode() if json else "\n".join(sweep_lines(found)))
    return 1 if found.failed else 0


@app.command
def mutants(
    *names: str,
    most: int = 200,
    jobs: int = 1,
    json: Annotated[bool, Parameter(negative="")] = False,
    list_only: Annotated[bool, Parameter("--list", negative="")] = False,
) -> int:
    """Plant each known bug, and count the runs until the simulator finds it. Exit status 1 when one is missed.

    Args:
        names: Planted bugs; default: all that random runs are known to find.
        most: Number of runs after which a bug counts as missed.
        jobs: Number of processes.
        json: Print the results as JSON.
        list_only: List the planted bugs with their effects, and run nothing.
    """
    from stele_simulator.mutants import PLANTED
    from stele_simulator.planting import RUN
    from stele_simulator.sweep import hunt_all

    hunted = [name for name, bug in PLANTED.items() if bug.found_by == RUN]
    chosen = list(names) or (list(PLANTED) if list_only else hunted)
    if unknown := sorted(set(chosen) - set(PLANTED)):
        raise SystemExit(
            f"No planted bug is called {', '.join(unknown)}. `stele sim mutants --list` shows all."
        )
    if list_only:
        print("\n".join(f"{name}: {PLANTED[name].description}" for name in chosen))
        return 0
    hunts = hunt_all(chosen, most, jobs)
    found = list(_shown(hunts, lambda hunt: hunt.mutant, "mutants", chosen, jobs))
    found.sort(key=lambda each: chosen.index(each.mutant))
    if json:
        print(msgspec.json.encode(found).decode())
    else:
        for each in found:
            how = f"seed {each.seed}: {each.invariant}" if each.seed >= 0 else "MISSED"
            print(f"{each.mutant:42} {each.runs:4} runs  {how}")
    return 0 if all(each.seed >= 0 for each in found) else 1


@app.command
def live(
    *,
    minutes: float = 10.0,
    seed: int = 0,
    directory: Annotated[Path, Parameter(name="--dir")] = Path("build/live"),
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Run real brokers, services and nodes under faults, and check the recorded history.

    Args:
        minutes: Duration of requests and faults, without start and checks.
        seed: Chooses the faults and their times. The order of answers still depends on the machine.
        directory: Directory of the stack's data, the logs and history.jsonl. Its contents are deleted first.
        json: Print only the result, as JSON.
    """
    import asyncio

    from stele.cli.errors import CliError
    from stele_harness.stack.foreground import STACK_FAILURES
    from stele_simulator.live.report import live_lines
    from stele_simulator.live.run import Live

    def tell(at_s: float, text: str) -> None:
        if not json:
            print(f"{at_s:8.1f} s  {text}", flush=True)

    try:
        result = asyncio.run(Live(directory, seed, minutes, tell).run())
    except STACK_FAILURES as error:
        raise CliError(str(error), f"Logs are in {directory / 'stack'}.") from error
    (directory / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    print(msgspec.json.encode(result).decode() if json else "\n".join(live_lines(result)))
    return 0 if result.passed else 1


def _soaked(runs: Generator[Result, None, None], *, quiet: bool) -> Sweep:
    """Return the sum of the runs until Ctrl-C.

    Failures are printed at once, figures every minute.
    """
    from stele_simulator.report import failed_lines, sweep_lines
    from stele_simulator.sweep import Sweep, with_result

    path, found, told_s = Path("stele-sim-soak.json"), Sweep(), -inf
    if not quiet:
        print(f"Until Ctrl-C; the summary is in {path}.", flush=True)
    with suppress(KeyboardInterrupt), closing(runs):
        for result in runs:
            found = with_result(found, result)
            if not result.passed and not quiet:
                print("\n".join(failed_lines(result)), flush=True)
            if not result.passed or time.monotonic() - told_s > REPORTED_S:
                told_s = time.monotonic()
                path.write_bytes(msgspec.json.format(msgspec.json.encode(found)))
                if not quiet:
                    print("\n".join(sweep_lines(found)[:2]), flush=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found)))
    return found


def _content(path: Path) -> bytes:
    if not path.exists():
        raise SystemExit(f"No scenario {path}: a failed `stele sim run` writes one.")
    return path.read_bytes()


def _tell(path: Path, *, trace: bool, html: bool) -> int:
    from stele_simulator.processes.stories.player import play_story
    from stele_simulator.processes.stories.story import StoryError
    from stele_simulator.violation import Violation

    lines, why, epochs = list[str](), "", 0
    try:
        world = play_story(path, show=lines.append if trace or html else None)
        epochs = world.witness.image.epoch
    except (StoryError, Violation) as error:
        why = str(error)
    if trace:
        print("\n".join(lines))
    if html:
        from stele_simulator.time_line import story_line

        _write_page(path.stem, story_line(lines, path, why), quiet=False)
    print(why or f"{path.name}: went as it is written, {epochs} epochs")
    return 1 if why else 0


def _write_page(name: str, page: str, *, quiet: bool) -> None:
    path = Path(f"stele-sim-{name}.html")
    path.write_text(page)
    if not quiet:
        print(f"time line: {path.absolute().as_uri()}")


def _print_result(result: Result) -> None:
    from stele_simulator.report import failure_lines, result_lines

    print("\n".join(result_lines(result)))
    if result.failure is not None:
        print("\n".join(failure_lines(result.failure)))


def _shrink(result: Result, chosen: Disaster, *, quiet: bool) -> None:
    from stele_simulator.processes.run import run_disaster_scenario
    from stele_simulator.report import shrunk_lines
    from stele_simulator.shrink import shrink

    assert result.failure is not None
    shrunk = shrink(chosen, result.failure, run_disaster_scenario)
    _tell_shrunk(result, shrunk.scenario, shrunk_lines(shrunk), quiet=quiet)


def _tell_shrunk(result: Result, small: msgspec.Struct, lines: list[str], *, quiet: bool) -> None:
    """Write the shrunk run to a file, and print how to run it again."""
    from stele_simulator.report import replay_command

    path = Path(f"stele-sim-{result.seed}.json")
    path.write_bytes(msgspec.json.format(msgspec.json.encode(small)))
    if not quiet:
        print("\n".join(lines))
        print(f"replay: {replay_command(result)}")
        print(f"   or:  stele sim run --scenario {path}")


def _seeds(text: str) -> tuple[int, int]:
    first, dots, last = text.partition("..")
    if not (dots and first.isdigit() and last.isdigit() and int(first) <= int(last)):
        raise SystemExit(f"'{text}' is no range of seeds: write for example 0..99.")
    return int(first), int(last)


def _shown(
    items: Iterable[T], name: Callable[[T], str], what: str, names: Iterable[str], jobs: int
) -> Iterator[T]:
    """Yield the items as they arrive. Progress is shown on standard error."""
    steps = ProgressSteps(what, names, jobs)
    with steps.shown():
        for item in items:
            steps.done(name(item))
            yield item
