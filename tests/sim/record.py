"""The record of planted bugs, ``mutants.json``.

``python -m tests.sim.record`` repeats each recorded run. It hunts a bug again if its run no longer finds it,
and then writes the file.
"""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from stele_simulator.mutants import MOST_SEEDS, hunt, run_with_bug

RECORD = Path(__file__).parent / "mutants.json"
PROCESSES = 2

Known = dict[str, Any]
"""``seed`` and ``runs``, or ``story``; and the ``invariant`` that fails, if one does. ``runs`` is the number of
seeds that a hunt tried. ``seed`` may be another one than the last of these, if its run is shorter."""


def read_record() -> dict[str, Known]:
    found: dict[str, Known] = json.loads(RECORD.read_text())
    return found


def renewed(name: str, known: Known) -> Known:
    """Return ``known`` if its run still finds the bug by the same invariant, else the result of a new hunt."""
    failure = run_with_bug(name, known["seed"]).failure
    if failure is not None and failure.invariant == known["invariant"]:
        return known
    found = hunt(name, MOST_SEEDS)
    fields = ("seed", "runs", "invariant")
    return {field: getattr(found, field) for field in fields}


def main() -> None:
    record = read_record()
    by_runs = {name: known for name, known in record.items() if "seed" in known}
    with ProcessPoolExecutor(PROCESSES) as processes:
        for name, known in zip(
            by_runs, processes.map(renewed, by_runs, by_runs.values()), strict=True
        ):
            if known != record[name]:
                print(name, known, flush=True)
            record[name] = known
    lines = [f"  {json.dumps(name)}: {json.dumps(known)}" for name, known in record.items()]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
