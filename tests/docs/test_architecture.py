"""The graphs, walks and tables of stages on the pages agree with the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import stele
from stele.domain.registry import DOMAINS
from stele.domain.ring import transition
from stele.domain.topology.operations.join import JOIN
from stele.domain.topology.operations.tablet_migration import TABLET_MIGRATION
from stele.runtime.settings import ServiceSettings
from tests.docs.pages import REPOSITORY, blocks

STELE = Path(next(iter(stele.__path__)))
PAGE = "docs/architecture.md"
FOLDERS = {
    "ml": ("metadata_log",),
    "co": ("coordinator",),
    "sg": ("session_guard",),
    "tb": ("tablet_balancer",),
    "cu": ("catch_up",),
    "sp": ("placements",),
    "nodes": ("agent", "node"),
    "page": ("console",),
    "cc": ("cdc_connector",),
}
"""Folders by their names in the graph."""
RECORDS = {
    "ack": "acks",
    "load": "load",
    "order": "orders",
    "report": "reports",
    "envelope": "commands",
    "outcome": "outcomes",
}
"""Encoded and decoded records, and their topics."""
FROM = ("stele.log", "stele.runtime.announce")
COMMANDS = {"Commander", "announced", "announce", "Announcer"}
"""Modules that import one of these send commands and receive their outcomes."""
EXTERNAL = {"producer"}
"""External programs."""
_EDGE = re.compile(r"(.+?) -->(?:\|(.+?)\|)? (.+)")
_STEP = re.compile(r"(\S+) --> (\S+): (.+)")

Flow = tuple[str, str, str]
"""Writer, topic, reader."""


def graph(kind: str) -> list[str]:
    (lines,) = [b.lines for b in blocks(PAGE) if b.language == "mermaid" and kind in b.lines[0]]
    return [line.strip() for line in lines[1:]]


def flows(lines: list[str]) -> Iterator[Flow]:
    for line in lines:
        edge = _EDGE.fullmatch(line)
        assert edge is not None, line
        for origin in edge[1].split(" & "):
            for topic in (edge[2] or "").split(", "):
                for target in edge[3].split(" & "):
                    yield origin.partition("[")[0], topic, target.partition("[")[0]


@cache
def imports_of(component: str) -> frozenset[str]:
    """Return the names that a component's modules import from the packages ``FROM``."""
    return frozenset(
        alias.name
        for folder in FOLDERS[component]
        for path in (STELE / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(FROM)
        for alias in node.names
    )


def uses_record(component: str, direction: str, record: str) -> bool:
    """Return whether a component encodes or decodes the record, directly or through a commander."""
    commands = (direction, record) in (("encode", "envelope"), ("decode", "outcome"))
    names = imports_of(component)
    return f"{direction}_{record}" in names or (commands and bool(COMMANDS & names))


def test_graph_of_topics_agrees_with_encoders_and_decoders() -> None:
    code = {
        (writer, topic, reader)
        for record, topic in RECORDS.items()
        for writer in FOLDERS
        for reader in FOLDERS
        if uses_record(writer, "encode", record) and uses_record(reader, "decode", record)
    }
    shown = {flow for flow in flows(graph("flowchart")) if flow[1] in RECORDS.values()}
    assert {flow for flow in shown if not EXTERNAL & {flow[0], flow[2]}} == code


def test_graph_shows_all_readers_and_the_one_writer_of_the_log() -> None:
    shown = [*flows(graph("flowchart"))]
    readers = {target for origin, _, target in shown if origin == "log"}
    opened = {
        component
        for component in FOLDERS
        if {"KafkaLog", "LogFollower", "decode_winner"} & imports_of(component)
    }
    assert opened - {"ml"} <= readers | {"page"}
    assert [origin for origin, _, target in shown if target == "log"] == ["ml"]
    assert "catch_up_urls" in ServiceSettings.__struct_fields__
    served = {target for origin, topic, target in shown if (origin, topic) == ("cu", "snapshots")}
    assert served == (readers | {"ml"}) - {"cu"}


def test_graph_of_join_states_agrees_with_the_state_table() -> None:
    assert JOIN.first is not None
    code = {("pending", str(JOIN.first))}
    for name, state in JOIN.states.items():
        ends = state.on_success is None
        code.add((str(name), "[*]" if ends else str(state.on_success)))
        if state.on_failure is not None:
            code.add((str(name), str(state.on_failure)))
    steps = [step for step in map(_STEP.fullmatch, graph("stateDiagram")) if step is not None]
    assert {(step[1], step[2]) for step in steps} - {("[*]", "pending")} == code


def test_package_table_lists_every_domain() -> None:
    text = (REPOSITORY / PAGE).read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("| `domain` |")]
    listed = row.split("(", 1)[1].split(")", 1)[0]
    assert re.findall(r"`(\w+)`", listed) == [domain.name for domain in DOMAINS]


WALKS = REPOSITORY / "docs/internals/architecture.md"
HOP = re.compile(r"^(\w[\w.]*) {2,}([\w.]+) {2,}\S", re.MULTILINE)


@pytest.mark.parametrize(("package", "name"), sorted({*HOP.findall(WALKS.read_text())}))
def test_hops_name_functions_of_their_package(package: str, name: str) -> None:
    *owner, function = name.split(".")
    wanted = [rf"^class {each}\b" for each in owner] + [rf"\bdef {function}\("]
    texts = [path.read_text() for path in (STELE / package.replace(".", "/")).rglob("*.py")]
    assert any(all(re.search(each, text, re.MULTILINE) for each in wanted) for text in texts)


HEAD = "| stage | writes | reads | what is done | next | when it fails |"
SIDES: dict[object, tuple[str, str]] = {
    transition.write_both_read_old: ("both", "previous"),
    transition.write_both_read_new: ("both", "next"),
    transition.finish: ("next", "next"),
    transition.rollback: ("previous", "previous"),
}
"""Write and read selectors after a change of the map."""


def test_page_lists_stages_with_selectors_and_edges() -> None:
    _, _, rest = (REPOSITORY / "docs/concepts/tablets.md").read_text().partition(HEAD)
    lines = rest.splitlines()[2 : 2 + len(TABLET_MIGRATION.states)]
    rows = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]
    sides = "previous", "previous"
    expected = list[tuple[str, ...]]()
    for name, state in TABLET_MIGRATION.states.items():
        sides = sides if state.delta is None else SIDES[state.delta]
        expected.append((name, *sides, state.on_success or "-", state.on_failure or "-"))
    assert [(*row[:3], *row[4:6]) for row in rows] == expected


HARNESS = REPOSITORY / "tests" / "harness"
MOST_FILES = 450


def size(files: list[Path]) -> tuple[int, int]:
    """Return the number of lines and of files."""
    return sum(len(path.read_text().splitlines()) for path in files), len(files)


def test_page_has_the_sizes_of_the_source_within_two_percent() -> None:
    page = (REPOSITORY / PAGE).read_text()
    rows = re.findall(r"^\|[^|]*\| ([\d,]+) \| (\d+) \|$", page, re.MULTILINE)
    shown = [(int(lines.replace(",", "")), int(files)) for lines, files in rows]
    harness = [*HARNESS.rglob("*.py")]
    tests = [path for path in (REPOSITORY / "tests").rglob("*.py") if HARNESS not in path.parents]
    found = [size([*STELE.rglob("*.py")]), size(harness), size(tests)]
    assert found[0][1] <= MOST_FILES
    for (lines, files), (shown_lines, shown_files) in zip(found, shown, strict=True):
        assert lines == pytest.approx(shown_lines, rel=0.02)
        assert files == pytest.approx(shown_files, rel=0.02)
