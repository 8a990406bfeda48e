"""docs/design.md has every rule that the code cites. The modules and states that it names exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from stele.domain.topology.operations.base import Operation
from stele.domain.topology.operations.join import JOIN
from stele.domain.topology.operations.tablet_migration import TABLET_MIGRATION
from tests.docs.pages import REPOSITORY, blocks

PAGE = "docs/design.md"
TEXT = (REPOSITORY / PAGE).read_text()
RULES = [int(number) for number in re.findall(r"^\*\*Rule (\d+)\.", TEXT, re.MULTILINE)]
INVARIANTS = re.findall(r"^\| (I\d+|INV-TABL-\d) \|", TEXT, re.MULTILINE)
CITED_RULES = re.compile(r"docs/design\.md, rules? ((?:\d+(?:, | and | to )?)+)")
CITED_INVARIANT = re.compile(r"\b(?:INV-TABL-\d|I\d{1,2})\b")
PRIVATE = re.compile(r"\b[Ss]eeds? 00\d|\(design, |cassandra_tcm|DESIGN\.md")
"""References to texts outside the repository."""
OWN = Path(__file__).relative_to(REPOSITORY)


def files() -> Iterator[tuple[Path, str]]:
    for folder in ("services", "tests", "benchmarks", "examples", "docs"):
        for path in sorted((REPOSITORY / folder).rglob("*")):
            name = path.relative_to(REPOSITORY)
            prose = path.suffix in {".py", ".md", ".txt"} and "node_modules" not in name.parts
            if prose and name != OWN:
                yield name, path.read_text()


def test_rules_are_numbered_without_gaps() -> None:
    assert [*range(1, len(RULES) + 1)] == RULES
    assert [*(f"I{n}" for n in range(1, 15)), *(f"INV-TABL-{n}" for n in (1, 2, 3))] == INVARIANTS


def test_every_cited_rule_and_invariant_is_on_the_page() -> None:
    cited = 0
    for name, text in files():
        for numbers in CITED_RULES.findall(" ".join(text.split())):
            cited += 1
            assert {*map(int, re.findall(r"\d+", numbers))} <= {*RULES}, f"{name} cites {numbers}"
        if name.parts[0] == "services":
            assert {*CITED_INVARIANT.findall(text)} <= {*INVARIANTS}, name
    assert cited > 10


def test_no_text_outside_the_repository_is_cited() -> None:
    found = [f"{name}: {match[0]}" for name, text in files() for match in PRIVATE.finditer(text)]
    assert not found


def test_every_module_that_the_page_names_exists() -> None:
    named = {path for path in re.findall(r"`([\w./]+(?:\.py|/))`", TEXT) if path != "operations/"}
    assert len(named) > 40
    roots = (REPOSITORY / "services" / "stele", REPOSITORY)
    assert not {path for path in named if not any((root / path).exists() for root in roots)}


@pytest.mark.parametrize("operation", [JOIN, TABLET_MIGRATION], ids=["join", "tablet_migration"])
def test_state_diagram_has_the_states_of_the_operation(operation: Operation) -> None:
    assert operation.first is not None
    (lines,) = [
        block.lines
        for block in blocks(PAGE)
        if any(re.search(rf"\b{operation.first} -> ", line) for line in block.lines)
    ]
    shown = set(
        re.findall(r"\b[a-z_]+_[a-z0-9_]+\b|\b(?:streaming|cleanup|finishing)\b", "\n".join(lines))
    )
    assert shown == {str(state) for state in operation.states}
