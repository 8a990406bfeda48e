"""Processes that a job started, by kind. Some of them end during the query."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import psutil

Chosen = Callable[[psutil.Process], bool]


def below(pid: int, chosen: Chosen = lambda _: True) -> list[psutil.Process]:
    """Return all running descendants of a process."""
    return [each for each in psutil.Process(pid).children(recursive=True) if _is(each, chosen)]


def kill(processes: Iterable[psutil.Process]) -> None:
    for each in processes:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue


def is_jvm(process: psutil.Process) -> bool:
    return process.name() == "java"


def is_worker(process: psutil.Process) -> bool:
    """Return the Python workers of Spark, and the process that forks them."""
    return "stele.placements.worker_daemon" in process.cmdline()


def _is(process: psutil.Process, chosen: Chosen) -> bool:
    try:
        return chosen(process)
    except psutil.NoSuchProcess:  # or it is a zombie
        return False
