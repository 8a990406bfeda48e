"""The graphs of docs/architecture.md are those of the code."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import stele
from stele.domain.registry import DOMAINS
from stele.domain.topology.operations.join import JOIN
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
OTHERS = {"producer"}
"""Programs of others."""
_EDGE = re.compile(r"(.+?) -->(?:\|(.+?)\|)? (.+)")
_STEP = re.compile(r"(\S+) --> (\S+): (.+)")

Flow = tuple[str, str, str]
"""From, through which topic, to."""


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
def imported_by(room: str) -> frozenset[str]:
    """Names that the modules of a folder import from ``log``, or to announce themselves."""
    return frozenset(
        alias.name
        for folder in FOLDERS[room]
        for path in (STELE / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(FROM)
        for alias in node.names
    )


def speaks(room: str, way: str, record: str) -> bool:
    """A commander encodes commands and decodes outcomes on behalf of who has one."""
    commands = (way, record) in (("encode", "envelope"), ("decode", "outcome"))
    names = imported_by(room)
    return f"{way}_{record}" in names or (commands and bool(COMMANDS & names))


def test_what_goes_through_topics_is_what_the_code_encodes_and_decodes() -> None:
    code = {
        (writer, topic, reader)
        for record, topic in RECORDS.items()
        for writer in FOLDERS
        for reader in FOLDERS
        if speaks(writer, "encode", record) and speaks(reader, "decode", record)
    }
    shown = {flow for flow in flows(graph("flowchart")) if flow[1] in RECORDS.values()}
    assert {flow for flow in shown if not OTHERS & {flow[0], flow[2]}} == code


def test_who_follows_the_log_reads_it_and_nobody_but_its_writer_writes_it() -> None:
    shown = [*flows(graph("flowchart"))]
    readers = {target for origin, _, target in shown if origin == "log"}
    opened = {
        room for room in FOLDERS if {"KafkaLog", "LogFollower", "decode_winner"} & imported_by(room)
    }
    assert opened - {"ml"} <= readers | {"page"}
    assert [origin for origin, _, target in shown if target == "log"] == ["ml"]
    assert "catch_up_urls" in ServiceSettings.__struct_fields__
    served = {target for origin, topic, target in shown if (origin, topic) == ("cu", "snapshots")}
    assert served == (readers | {"ml"}) - {"cu"}


def test_the_life_of_a_join_is_the_one_in_its_table() -> None:
    assert JOIN.first is not None
    code = {("pending", str(JOIN.first))}
    for name, state in JOIN.states.items():
        ends = state.on_success is None
        code.add((str(name), "[*]" if ends else str(state.on_success)))
        if state.on_failure is not None:
            code.add((str(name), str(state.on_failure)))
    steps = [step for step in map(_STEP.fullmatch, graph("stateDiagram")) if step is not None]
    assert {(step[1], step[2]) for step in steps} - {("[*]", "pending")} == code


def test_the_rooms_name_every_domain() -> None:
    text = (REPOSITORY / PAGE).read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("| `domain` |")]
    listed = row.split("(", 1)[1].split(")", 1)[0]
    folders = {
        Path(inspect.getfile(apply)).relative_to(STELE / "domain").with_suffix("").parts[0]
        for domain in DOMAINS
        for apply in domain.apply.values()
    }
    assert {*re.findall(r"`(\w+)`", listed)} == folders
