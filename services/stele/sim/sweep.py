"""Many seeds: one process for each job, results as they come."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

import msgspec

from stele.sim.mutants import Found, hunt, run_any
from stele.sim.run import Result


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """What many runs come to."""

    profile: str
    seeds: int
    failed: tuple[Result, ...]
    virtual_s: float
    real_s: float
    """Summed over the runs: jobs side by side count each."""
    epochs: int
    faults: int
    checks: int
    writes: int
    commands: int


def sweep(first: int, last: int, profile: str, duration_s: float, jobs: int) -> Iterator[Result]:
    """Results of the seeds ``first`` to ``last``, both included, in the order of their coming."""
    if jobs <= 1:
        for seed in range(first, last + 1):
            yield run_any(seed, profile, duration_s)
        return
    with ProcessPoolExecutor(jobs) as pool:
        runs = [pool.submit(run_any, seed, profile, duration_s) for seed in range(first, last + 1)]
        for run in as_completed(runs):
            yield run.result()


def summary(profile: str, results: list[Result]) -> Sweep:
    failed = sorted((r for r in results if not r.passed), key=lambda r: r.seed)
    return Sweep(
        profile=profile,
        seeds=len(results),
        failed=tuple(failed),
        virtual_s=sum(r.virtual_s for r in results),
        real_s=sum(r.real_s for r in results),
        epochs=sum(r.epochs for r in results),
        faults=sum(r.faults for r in results),
        checks=sum(r.checks for r in results),
        writes=sum(r.writes for r in results),
        commands=sum(r.commands for r in results),
    )


def hunt_all(names: list[str], most_seeds: int, jobs: int) -> Iterator[Found]:
    """Hunt each mutant in a process of its own, or one after the other."""
    if jobs <= 1:
        for name in names:
            yield hunt(name, most_seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        hunts = [pool.submit(hunt, name, most_seeds) for name in names]
        for each in as_completed(hunts):
            yield each.result()
