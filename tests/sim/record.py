"""The record of planted bugs: ``python -m tests.sim.record`` hunts those anew whose run does not find them any
more, and writes ``mutants.json`` and the table of ``docs/verification.md``.
"""

from __future__ import annotations

import json
import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from stele.sim.mutants import MOST_SEEDS, hunt, rule_of, run_mutant

RECORD = Path(__file__).parent / "mutants.json"
PAGE = Path(__file__).parents[2] / "docs" / "verification.md"
HEAD = "| planted bug | what it does | runs | found by | invariant |\n|---|---|--:|---|---|\n"
PROCESSES = 2
FEW = 10

Known = dict[str, Any]
"""``seed`` and ``runs``, or ``story``, or ``test``; and the ``invariant`` where one fails. The runs are
those of a hunt, and the seed may be that of a run which is shorter than its last."""


def read_record() -> dict[str, Known]:
    found: dict[str, Known] = json.loads(RECORD.read_text())
    return found


def table(record: dict[str, Known]) -> str:
    """What finds how many, and the rows of the page, in the order of the record."""
    runs = [known["runs"] for known in record.values() if "runs" in known]
    stories = sum("story" in known for known in record.values())
    few = sum(count <= FEW for count in runs)
    counts = (
        f"Of {len(record)} planted bugs runs find {len(runs)}, {few} of these within {FEW} and all within"
        f" {max(runs)}; stories find {stories}, and tests the others.\n\n"
    )
    return counts + HEAD + "".join(_row(name, known) for name, known in record.items())


def page_with(page: str, record: dict[str, Known]) -> str:
    """The page with the table that the record says."""
    found = re.search(r"(Of \d+ planted bugs [^\n]*\n\n)?\| planted bug \|.*\n(\|.*\n)*", page)
    assert found, "the page has a table of planted bugs"
    return page[: found.start()] + table(record) + page[found.end() :]


def _row(name: str, known: Known) -> str:
    by = f"seed {known['seed']}" if "seed" in known else ""
    by = by or (f"story {known['story']}" if "story" in known else _file_of(known["test"]))
    cells = (f"`{name}`", rule_of(name), known.get("runs", ""), by, known.get("invariant", ""))
    return f"| {' | '.join(map(str, cells))} |\n"


def _file_of(test: str) -> str:
    return f"`{test.partition('::')[0]}`"


def renewed(name: str, known: Known) -> Known:
    """As it is while its run finds the bug by the same invariant."""
    failure = run_mutant(name, known["seed"]).failure
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
    PAGE.write_text(page_with(PAGE.read_text(), record))


if __name__ == "__main__":
    main()
