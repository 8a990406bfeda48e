"""The page of settings agrees with the code, and other pages name only variables of that page."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import fields

from stele.runtime.settings import KafkaSettings, ServiceSettings, misspelt, variable_of
from tests.docs.pages import REPOSITORY, pages
from tests.docs.settings_page import COMMON, KINDS, PAGE, Kind, own_fields

VARIABLE = re.compile(r"\bSTELE_[A-Z0-9_]*[A-Z0-9]\b(?![_*])")
ELSEWHERE = {
    "STELE_HOME": "where jars are: docs/reference/agent_protocol.md",
    "STELE_SKIP_BROWSER": "tests",
    "STELE_TEST_SPAWN": "tests",
}
"""Variables that only other pages name, and their readers."""


def test_common_settings_are_complete() -> None:
    assert set(COMMON) == {each.name for each in own_fields(ServiceSettings, KafkaSettings)}


def test_page_has_every_kind_of_process() -> None:
    folders = (REPOSITORY / "services" / "stele").glob("*/settings.py")
    there = {f"stele.{path.parent.name}.settings" for path in folders}
    assert there == {kind.settings.__module__ for kind in KINDS} | {ServiceSettings.__module__}


@pytest.mark.parametrize("kind", KINDS, ids=[kind.title for kind in KINDS])
def test_processes_of_all_kinds_may_share_an_environment_file(kind: Kind) -> None:
    """A process does not report variables of another kind as misspelt."""
    named = dict.fromkeys(VARIABLE.findall(PAGE.read_text()), "")
    own = {variable_of(each.name) for each in fields(kind.settings)}
    assert own < set(named)
    assert not list(misspelt(kind.settings, named))


def test_run_processes_page_lists_every_service() -> None:
    page = (REPOSITORY / "docs" / "guides" / "run_processes.md").read_text()
    modules = {f"stele.{kind.settings.__module__.split('.')[1]}" for kind in KINDS} - {
        "stele.agent"
    }
    assert not sorted(module for module in modules if f"| `{module}`" not in page)


def test_variables_of_all_pages_are_on_the_settings_page() -> None:
    known = {*VARIABLE.findall(PAGE.read_text()), *ELSEWHERE}
    named = {
        (name, page)
        for page in pages()
        for name in VARIABLE.findall((REPOSITORY / page).read_text())
    }
    assert not sorted((name, page) for name, page in named if name not in known)
    assert not set(ELSEWHERE) - {name for name, _ in named}
