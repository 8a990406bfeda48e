"""``stele sim``: runs of the deterministic simulator, sweeps of seeds, and the hunt for planted bugs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from cyclopts import App, Parameter
from rich.console import Console
from rich.progress import track

if TYPE_CHECKING:
    from stele.sim.run import Result
    from stele.sim.scenario import Scenario

T = TypeVar("T")

DISASTER = "disaster"

app = App(name="sim", help="The deterministic simulator: the real cores, virtual time, a seed.")


@app.command
def run(
    *,
    seed: int = 0,
    profile: str = "rough",
    scenario: Path | None = None,
    minutes: float = 1.0,
    trace: bool = False,
    shrink: bool = True,
    json: bool = False,
) -> int:
    """One run. The same seed gives the same run, to the byte.

    Parameters
    ----------
    seed
        Chooses the cluster, the requests, the faults and their times.
    profile
        calm, rough or storm; or disaster, in which production processes lose their log.
    scenario
        A scenario file (.json, as a failed run writes it) or a story (.txt) instead of a seed.
    minutes
        Virtual minutes of requests and faults; the way to rest comes on top.
    trace
        Print every event, not only the figures.
    shrink
        After a failure, look for a smaller scenario that fails alike, and write it to a file.
    json
        Print the result as JSON.
    """
    from stele.sim.run import run_scenario  # noqa: PLC0415
    from stele.sim.world import World  # noqa: PLC0415

    if scenario is not None and scenario.suffix == ".txt":
        return _tell(scenario, trace=trace)
    if profile == DISASTER:
        return _disaster(seed, trace=trace, json=json)
    chosen = _scenario(seed, profile, scenario, minutes)
    world = World(chosen, keep_trace=trace)
    result = run_scenario(chosen, world)
    if trace:
        print("\n".join(world.lines))
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
    profile: str = "rough",
    minutes: float = 1.0,
    jobs: int = 1,
    json: bool = False,
) -> int:
    """Many runs; leaves with 1 when one fails.

    Parameters
    ----------
    seeds
        First and last seed, as A..B.
    profile
        calm, rough, storm or disaster.
    minutes
        Virtual minutes of requests and faults in each.
    jobs
        Processes side by side.
    json
        Print the summary as JSON.
    """
    from stele.sim.report import sweep_lines  # noqa: PLC0415
    from stele.sim.sweep import summary  # noqa: PLC0415
    from stele.sim.sweep import sweep as run_all  # noqa: PLC0415

    if profile != DISASTER:
        _scenario(0, profile, None, minutes)

    first, last = _seeds(seeds)
    runs = run_all(first, last, profile, minutes * 60, jobs)
    found = summary(profile, list(_shown(runs, last - first + 1, f"{profile} {seeds}")))
    print(msgspec.json.encode(found).decode() if json else "\n".join(sweep_lines(found)))
    return 1 if found.failed else 0


@app.command
def mutants(
    *names: str,
    most: int = 200,
    jobs: int = 1,
    json: bool = False,
    list_only: Annotated[bool, Parameter("--list")] = False,
) -> int:
    """Plant each known bug and see how many runs it takes to be found; leaves with 1 when one is missed.

    Parameters
    ----------
    names
        Only these; all that the simulator may find when none is named.
    most
        Runs until a mutant counts as missed.
    jobs
        Processes side by side.
    json
        Print the results as JSON.
    list_only
        Only list the mutants and the rules that they break.
    """
    from stele.sim.mutants import MUTANTS, SIMULATED, rule_of  # noqa: PLC0415
    from stele.sim.sweep import hunt_all  # noqa: PLC0415

    chosen = list(names) or list(MUTANTS if list_only else SIMULATED)
    unknown = sorted(set(chosen) - set(MUTANTS if list_only else SIMULATED))
    if unknown:
        raise SystemExit(
            f"The simulator has no such mutant: {', '.join(unknown)}. `stele sim mutants --list` shows all;"
            " docs/verification.md says which of them tests find."
        )
    if list_only:
        print("\n".join(f"{name}: {rule_of(name)}" for name in chosen))
        return 0
    found = list(_shown(hunt_all(chosen, most, jobs), len(chosen), "mutants"))
    found.sort(key=lambda each: chosen.index(each.mutant))
    if json:
        print(msgspec.json.encode(found).decode())
    else:
        for each in found:
            how = f"{each.profile} {each.seed}: {each.invariant}" if each.seed >= 0 else "MISSED"
            print(f"{each.mutant:42} {each.runs:4} runs  {how}")
    return 0 if all(each.seed >= 0 for each in found) else 1


@app.command
def live(
    *,
    minutes: float = 10.0,
    seed: int = 0,
    directory: Annotated[Path, Parameter(name="--dir")] = Path("build/live"),
    json: bool = False,
) -> int:
    """Real brokers, services and nodes under faults; the recorded history is checked afterwards.

    Parameters
    ----------
    minutes
        Real minutes of requests and faults; start, rest and checks come on top.
    seed
        Chooses the faults and their times. Who answers when is up to the machine.
    directory
        The stack's data, all logs and history.jsonl; what was there is removed.
    json
        Print the result as JSON, and nothing while it runs.
    """
    import asyncio  # noqa: PLC0415

    from stele.cli.errors import CliError  # noqa: PLC0415
    from stele.cli.local.foreground import STACK_FAILURES  # noqa: PLC0415
    from stele.sim.live.report import live_lines  # noqa: PLC0415
    from stele.sim.live.run import Live  # noqa: PLC0415

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


def _scenario(seed: int, profile: str, path: Path | None, minutes: float) -> Scenario:
    from stele.sim.making import make_scenario  # noqa: PLC0415
    from stele.sim.profiles import PROFILES  # noqa: PLC0415
    from stele.sim.scenario import Scenario  # noqa: PLC0415

    if path is not None:
        if not path.exists():
            raise SystemExit(f"No scenario {path}: a failed `stele sim run` writes one.")
        return msgspec.json.decode(path.read_bytes(), type=Scenario)
    if profile not in PROFILES:
        raise SystemExit(f"No profile '{profile}'; there are {', '.join((*PROFILES, DISASTER))}.")
    return make_scenario(seed, profile, minutes * 60)


def _disaster(seed: int, *, trace: bool, json: bool) -> int:
    """It has a length of its own, and is not shrunk."""
    from stele.sim.processes.run import run_disaster  # noqa: PLC0415

    result = run_disaster(seed, show=print if trace else None)
    if json:
        print(msgspec.json.encode(result).decode())
    else:
        _print_result(result)
    return 0 if result.passed else 1


def _tell(path: Path, *, trace: bool) -> int:
    from stele.sim.story import StoryError, tell  # noqa: PLC0415
    from stele.sim.violation import Violation  # noqa: PLC0415

    try:
        world = tell(path)
    except (StoryError, Violation) as error:
        print(error)
        return 1
    if trace:
        print("\n".join(world.lines))
    print(f"{path.name}: went as it is written, {world.witness.image.epoch} epochs")
    return 0


def _print_result(result: Result) -> None:
    from stele.sim.report import failure_lines, result_lines  # noqa: PLC0415

    print("\n".join(result_lines(result)))
    if result.failure is not None:
        print("\n".join(failure_lines(result.failure)))


def _shrink(result: Result, chosen: Scenario, *, quiet: bool) -> None:
    from stele.sim.report import replay_command, shrunk_lines  # noqa: PLC0415
    from stele.sim.shrink import shrink  # noqa: PLC0415

    assert result.failure is not None
    shrunk = shrink(chosen, result.failure)
    path = Path(f"stele-sim-{result.profile}-{result.seed}.json")
    path.write_bytes(msgspec.json.format(msgspec.json.encode(shrunk.scenario)))
    if not quiet:
        print("\n".join(shrunk_lines(shrunk)))
        print(f"replay: {replay_command(result)}")
        print(f"   or:  stele sim run --scenario {path}")


def _seeds(text: str) -> tuple[int, int]:
    first, dots, last = text.partition("..")
    if not (dots and first.isdigit() and last.isdigit() and int(first) <= int(last)):
        raise SystemExit(f"'{text}' is no range of seeds: write for example 0..99.")
    return int(first), int(last)


def _shown(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """The items, with a progress bar on standard error when that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        return iter(items)
    return iter(track(items, what, total=total, console=console))
