"""The tables of the contract agree with the code: topics, fields, kinds, codes, headers, rules, scenes."""

from __future__ import annotations

import json
from enum import StrEnum

import pytest

from stele.agent.agent import HEARTBEAT_S
from stele.agent.judging import Code
from stele.agent.orders import REPORT_INTERVAL_S
from stele.agent.probing import JUDGE_PATH, ROW_PATH
from stele.domain import routed
from stele.domain.messages import Ack, Load, Order, Report
from stele.domain.names import OrderKind, ReportStatus
from stele.log.schemas import schema_folder
from stele.runtime.kafka import Topic
from stele_harness.conformance.kit import name_of
from stele_harness.conformance.rules import RULES
from stele_harness.conformance.scenes import SCENES
from tests.docs.pages import REPOSITORY

PAGE = (REPOSITORY / "docs" / "reference" / "agent_protocol.md").read_text()


def table(section: str, head: str) -> list[list[str]]:
    """Return the rows of the section's table whose first column is ``head``."""
    _, _, rest = PAGE.partition(f"# {section}\n")
    lines = rest.partition(f"\n| {head} |")[2].splitlines()[2:]
    rows = list[list[str]]()
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def first_column(section: str, head: str) -> list[str]:
    return [row[0].strip("`") for row in table(section, head)]


@pytest.mark.parametrize(
    ("section", "message", "schema"),
    [
        ("Acks", Ack, "ack"),
        ("Orders", Order, "order"),
        ("Reports", Report, "report"),
        ("Load", Load, "load"),
    ],
)
def test_field_tables_agree_with_the_schemas(section: str, message: type, schema: str) -> None:
    found = json.loads((schema_folder() / f"{schema}.avsc").read_text())["fields"]

    def kind(field: dict[str, object]) -> str:
        written = field["type"]
        return str(written["type"] if isinstance(written, dict) else written)

    rows = table(section, "field")
    assert [(row[0].strip("`"), row[1]) for row in rows] == [(f["name"], kind(f)) for f in found]
    fields: tuple[str, ...] = message.__struct_fields__  # type: ignore[attr-defined]
    assert {row[0].strip("`") for row in rows} == {*fields}


@pytest.mark.parametrize(
    ("section", "head", "words"),
    [
        ("Orders", "kind", OrderKind),
        ("Reports", "status", ReportStatus),
        ("Requests of clients and other nodes", "code", Code),
    ],
)
def test_tables_of_kinds_statuses_and_codes_agree_with_the_code(
    section: str, head: str, words: type[StrEnum]
) -> None:
    assert first_column(section, head) == [str(word) for word in words]


def test_topic_table_lists_the_topics_of_nodes() -> None:
    rows = table("Topics", "topic")
    assert {row[0].strip("`") for row in rows} == {*Topic} - {Topic.PLACEMENTS, Topic.SCHEMA}
    for row in rows:
        assert (schema_folder() / row[3].strip("`")).exists(), row


def test_header_table_and_paths_agree_with_the_code() -> None:
    names = (
        routed.VERSION,
        routed.EPOCH,
        routed.DATA,
        routed.TOKEN,
        routed.REPLICA,
        routed.COORDINATING,
        routed.SESSION,
        routed.LOG,
        routed.HOST,
        routed.ACCESS,
        routed.TABLE_VERSION,
    )
    assert first_column("Requests of clients and other nodes", "header") == [*names]
    for path in (JUDGE_PATH, ROW_PATH):
        assert f"`POST <address>{path}`" in PAGE


def test_rule_table_agrees_with_the_conformance_kit() -> None:
    rows = table("Rules", "rule")
    assert {row[0].strip("`"): row[1] for row in rows} == RULES


def test_page_states_the_intervals_and_there_are_14_scenes() -> None:
    assert len(SCENES) == len({name_of(scene) for scene in SCENES}) == 14
    assert f"every {HEARTBEAT_S:g} s, and at once" in PAGE
    assert f"every {REPORT_INTERVAL_S:g} s" in PAGE
