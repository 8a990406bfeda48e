"""Processes started by a job, by kind. Some of them end during the query."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import psutil

Chosen = Callable[[psutil.Process], bool]


def below(pid: int, chosen: Chosen = lambda _: True) -> list[psutil.Process]:
    """All that a process has started, and what that has, as far as it still runs."""
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
    """Spark's Python workers, and the process that forks them."""
    return "stele.placements.worker_daemon" in process.cmdline()


def _is(process: psutil.Process, chosen: Chosen) -> bool:
    try:
        return chosen(process)
    except psutil.NoSuchProcess:  # a zombie too
        return False
