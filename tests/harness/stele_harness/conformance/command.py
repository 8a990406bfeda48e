"""``stele conformance``: test an agent process in any language against the contract of nodes."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Final

import msgspec
from cyclopts import Parameter, validators

from stele.cli.commands.log_offline import kafka_at
from stele.cli.errors import Exit, UsageError
from stele.cli.output import console
from stele.runtime.settings import KafkaSettings
from stele_harness.conformance.kit import Result, name_of, run_kit, scenes_of
from stele_harness.conformance.rules import Broken
from stele_harness.conformance.scenes import SCENES
from stele_harness.progress import ProgressSteps
from stele_harness.stack.broker import BrokerCluster

DIRECTORY = Path("build/conformance")
MARK = "conformance.txt"
"""File that marks a folder that the kit may empty."""
START: Final = "start of a broker"
BUSY_LOAD: Final = 4.0
"""Load per processor at which an agent may be late although it has no fault.

At a load of 35, its start alone took longer than the kit waits for a member.
"""


def conformance(
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    kafka: str = "",
    directory: Annotated[Path, Parameter(name="--dir")] = DIRECTORY,
    scene: Annotated[list[str] | None, Parameter(negative="")] = None,
    patience: Annotated[float, Parameter(validator=validators.Number(gt=0))] = 1.0,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Drive an agent through joins, a crash, orders, tablets, a truncation, a leave, a wiped disk, a recovery.

    Write `stele conformance [OPTIONS] -- COMMAND...`. The kit starts COMMAND several times, each time as
    another node, with STELE_* variables. Of the STELE_* variables of your shell it passes on only
    STELE_LOG_LEVEL and STELE_HOME. Exit status 0 only when no rule of docs/reference/agent_protocol.md was
    broken.

    Args:
        command: The agent's command line.
        kafka: Brokers to use, with the STELE_KAFKA_* variables of your shell, which are passed on. Default:
            the kit starts a broker.
        directory: Folder for data and logs. One of an earlier run is emptied first.
        scene: Play only the first scene and this one, by the name that a run prints; may be repeated.
        patience: Multiply all time limits by this number, on a busy machine.
        json: Print the result as JSON.
    """
    if not command:
        console().print("Which agent? Write: stele conformance -- COMMAND...")
        return Exit.USAGE
    unknown = [name for name in scene or () if name not in map(name_of, SCENES)]
    if unknown:
        console().print(
            f"There is no scene {', '.join(unknown)}. Scenes: {', '.join(map(name_of, SCENES))}."
        )
        return Exit.USAGE
    folder = directory.resolve()
    if not _is_ours_or_empty(folder):
        raise UsageError(
            f"{directory} holds files that are not of a run of this kit, and would be emptied.",
            "Give --dir a folder that is new or empty.",
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARK).write_text("Made by `stele conformance`, which empties this folder.\n")

    def show(scene: str, broken: Sequence[Broken]) -> None:
        steps.done(scene)
        if not json:
            mark = "[red]broken[/red]" if broken else "[green]held[/green]  "
            with steps.aside():
                console().print(f"{mark} {scene}")

    only = scene or ()
    steps = ProgressSteps("steps", [START, *map(name_of, scenes_of(only))], jobs=1)
    with steps.shown(), nullcontext(kafka) if kafka else _broker(folder) as servers:
        steps.done(START)
        settings = kafka_at(kafka) if kafka else KafkaSettings(kafka_bootstrap=servers)
        result = asyncio.run(run_kit(settings, folder, command, show, only, patience))
    _print(result, json=json)
    return Exit.OK if result.passed else Exit.FAILED


@contextmanager
def _broker(folder: Path) -> Iterator[str]:
    """Run a broker of the kit; yield its address."""
    brokers = BrokerCluster(folder / "kafka", count=1)
    try:
        brokers.start()
        brokers.wait_ready()
        yield brokers.bootstrap
    finally:
        gc.collect()  # producers end before the broker does, or librdkafka complains of it here
        brokers.stop()


def _is_ours_or_empty(folder: Path) -> bool:
    return not folder.exists() or (folder / MARK).is_file() or not any(folder.iterdir())


def _print(result: Result, *, json: bool) -> None:
    if json:
        print(msgspec.json.encode(result).decode())
        return
    out = console()
    for broken in result.broken:
        out.print(f"{broken.rule}: {broken.node_id}: {broken.what}", markup=False, soft_wrap=True)
    left_out = {
        "Requests were not checked": result.not_asked,
        "Values were not written and read": result.not_tried,
        "Deleted data was not checked": result.not_counted,
        "Rows with columns were not checked": result.no_columns,
    }
    for what, why in left_out.items():
        if why:
            out.print(f"{what}: {why}.", markup=False, soft_wrap=True)
    if result.passed:
        out.print("No rule was broken.")
    elif busy := too_busy(os.getloadavg()[0], os.cpu_count() or 1):
        out.print(busy, markup=False, soft_wrap=True)


def too_busy(load: float, processors: int) -> str:
    """Return a warning about a broken rule on a busy machine; empty if the machine is not busy."""
    if load < BUSY_LOAD * processors:
        return ""
    cores = "core" if processors == 1 else "cores"
    return (
        f"This machine is busy (load {load:.0f} on {processors} {cores}), and the kit waits by the clock: "
        "run it again on a quiet one, or with --patience 5, before you look for the fault in the agent."
    )
