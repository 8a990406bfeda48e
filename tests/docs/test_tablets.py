"""The table of migration stages on the page agrees with the code."""

from __future__ import annotations

from pathlib import Path

from stele.domain.ring import transition
from stele.domain.topology.operations.tablet_migration import TABLET_MIGRATION

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "tablets.md"
HEAD = "| stage | writes | reads | what is done | next | when it fails |"
SIDES: dict[object, tuple[str, str]] = {
    transition.write_both_read_old: ("both", "previous"),
    transition.write_both_read_new: ("both", "next"),
    transition.finish: ("next", "next"),
    transition.rollback: ("previous", "previous"),
}
"""Write and read selectors after a change of the map."""


def shown() -> list[tuple[str, ...]]:
    _, _, rest = PAGE.read_text().partition(HEAD)
    lines = rest.splitlines()[2:]
    rows = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]
    return [
        (row[0], row[1], row[2], row[4], row[5]) for row in rows[: len(TABLET_MIGRATION.states)]
    ]


def test_page_lists_stages_with_selectors_and_edges() -> None:
    sides = "previous", "previous"
    expected = list[tuple[str, ...]]()
    for name, state in TABLET_MIGRATION.states.items():
        sides = sides if state.delta is None else SIDES[state.delta]
        expected.append((name, *sides, state.on_success or "-", state.on_failure or "-"))
    assert shown() == expected
