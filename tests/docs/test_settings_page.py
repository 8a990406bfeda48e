"""The page of settings is what the code reads, and other pages name only variables that are read."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import fields

from stele.runtime.settings import KafkaSettings, ServiceSettings, misspelt, variable_of
from tests.docs.pages import REPOSITORY, pages
from tests.docs.settings_page import COMMON, KINDS, PAGE, Kind, own_fields, page_with

VARIABLE = re.compile(r"\bSTELE_[A-Z0-9_]*[A-Z0-9]\b(?![_*])")
ELSEWHERE = {
    "STELE_HOME": "where jars are: docs/reference/agent_protocol.md",
    "STELE_SKIP_BROWSER": "tests",
    "STELE_TEST_SPAWN": "tests",
}
"""Variables that are on other pages alone, and what reads them."""


def test_the_page_is_made_from_the_code() -> None:
    page = PAGE.read_text()
    assert page == page_with(page), "python -m tests.docs.settings_page writes it anew"


def test_it_has_all_that_all_processes_read() -> None:
    assert set(COMMON) == {each.name for each in own_fields(ServiceSettings, KafkaSettings)}


def test_it_has_every_kind_of_process() -> None:
    folders = (REPOSITORY / "services" / "stele").glob("*/settings.py")
    there = {f"stele.{path.parent.name}.settings" for path in folders}
    assert there == {kind.settings.__module__ for kind in KINDS} | {ServiceSettings.__module__}


@pytest.mark.parametrize("kind", KINDS, ids=[kind.title for kind in KINDS])
def test_a_file_of_variables_may_be_shared(kind: Kind) -> None:
    """A process does not take a variable of another kind for a misspelt one."""
    named = dict.fromkeys(VARIABLE.findall(PAGE.read_text()), "")
    own = {variable_of(each.name) for each in fields(kind.settings)}
    assert own < set(named)
    assert not list(misspelt(kind.settings, named))


def test_every_service_is_on_the_page_of_those_that_are_run_by_hand() -> None:
    page = (REPOSITORY / "docs" / "guides" / "run_processes.md").read_text()
    modules = {f"stele.{kind.settings.__module__.split('.')[1]}" for kind in KINDS} - {
        "stele.agent"
    }
    assert not sorted(module for module in modules if f"| `{module}`" not in page)


def test_every_variable_of_every_page_is_on_it() -> None:
    known = {*VARIABLE.findall(PAGE.read_text()), *ELSEWHERE}
    named = {
        (name, page)
        for page in pages()
        for name in VARIABLE.findall((REPOSITORY / page).read_text())
    }
    assert not sorted((name, page) for name, page in named if name not in known)
    assert not set(ELSEWHERE) - {name for name, _ in named}
