"""Many seeds: one process for each job, results as they come."""

import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, as_completed, wait
from functools import partial, reduce
from itertools import count
from multiprocessing import active_children
from typing import Final, TypeVar

import msgspec

from stele_simulator.mutants import Found, hunt
from stele_simulator.processes.run import run_disaster
from stele_simulator.result import Result

Item = TypeVar("Item")
T = TypeVar("T")

AHEAD: Final = 2
"""Seeds of a sweep without end that wait for each job."""


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """The results of many runs."""

    seeds: int = 0
    failed: tuple[Result, ...] = ()
    virtual_s: float = 0.0
    real_s: float = 0.0
    """Summed over the runs: jobs side by side count each."""
    epochs: int = 0
    faults: int = 0
    checks: int = 0
    writes: int = 0
    commands: int = 0


SUMMED: Final = ("virtual_s", "real_s", "epochs", "faults", "checks", "writes", "commands")
"""Figures of a sweep that are those of its runs, added up."""


def sweep(first: int, last: int, jobs: int) -> Iterator[Result]:
    """Results of the seeds ``first`` to ``last``, both included, in the order of their coming."""
    return _each(run_disaster, range(first, last + 1), jobs)


def _each(call: Callable[[Item], T], items: Iterable[Item], jobs: int) -> Iterator[T]:
    """Call for each item, and yield the results as they come: in this process for one job."""
    if jobs <= 1:
        yield from map(call, items)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(call, item) for item in items]):
            yield done.result()


def endless(first: int, jobs: int) -> Generator[Result, None, None]:
    """Results of ``first`` and all seeds after it, in the order of their coming, until it is closed: then the
    runs under way end where they are.
    """
    if jobs <= 1:
        for seed in count(first):
            yield run_disaster(seed)
    others = active_children()
    # Ctrl-C is for who reads the results.
    pool = ProcessPoolExecutor(jobs, None, signal.signal, (signal.SIGINT, signal.SIG_IGN))
    seeds = count(first)
    try:
        runs = {pool.submit(run_disaster, next(seeds)) for _ in range(AHEAD * jobs)}
        while True:
            done, runs = wait(runs, return_when=FIRST_COMPLETED)
            runs |= {pool.submit(run_disaster, next(seeds)) for _ in done}
            for run in done:
                yield run.result()
    finally:
        for each in active_children():
            if each not in others:
                each.terminate()
        pool.shutdown(cancel_futures=True)


def summary(results: Iterable[Result]) -> Sweep:
    return reduce(with_result, results, Sweep())


def with_result(found: Sweep, result: Result) -> Sweep:
    """One run more."""
    failed = found.failed
    if not result.passed:
        failed = tuple(sorted((*failed, result), key=lambda r: r.seed))
    sums = {name: getattr(found, name) + getattr(result, name) for name in SUMMED}
    return msgspec.structs.replace(found, seeds=found.seeds + 1, failed=failed, **sums)


def hunt_all(names: list[str], most_seeds: int, jobs: int) -> Iterator[Found]:
    """Hunt each mutant in a separate process, or in sequence."""
    return _each(partial(hunt, most_seeds=most_seeds), names, jobs)
