"""The number of places that a new element touches, as ``docs/internals/extending.md`` states it."""

import ast
import inspect
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import stele
from stele.domain.base import Command, Fact
from stele.domain.names import RequestKind
from stele.domain.registry import DECISIONS, DOMAINS
from stele.domain.staging import Part, PartsCommitted
from stele.domain.topology.operations.table import OPERATIONS
from stele.log.schemas import schema_folder

STELE = Path(next(iter(stele.__path__)))
DOMAIN = STELE / "domain"
OPERATIONS_FOLDER = DOMAIN / "topology" / "operations"
CARRIERS = (Part, PartsCommitted)
"""Facts that hold other facts, so the loops over facts know them."""
LOOPS = ("decide", "evolve", "hashing", "registry", "registry_entry", "snapshot", "tables", "view")


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted(STELE.rglob("*.py"))}


def names_in(path: Path) -> set[str]:
    return {node.id for node in ast.walk(trees()[path]) if isinstance(node, ast.Name)} | {
        alias.name
        for node in ast.walk(trees()[path])
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def file_of(thing: object) -> Path:
    found = inspect.getsourcefile(thing)  # type: ignore[arg-type]
    assert found is not None
    return Path(found).resolve()


def schema_names(file: str) -> set[str]:
    def walk(node: object) -> Iterator[str]:
        if isinstance(node, dict):
            if node.get("type") == "record":
                yield str(node["name"])
            for value in node.values():
                yield from walk(value)
        elif isinstance(node, list):
            for value in node:
                yield from walk(value)

    return {*walk(json.loads((schema_folder() / file).read_text()))}


@pytest.mark.parametrize("fact", Fact.__subclasses__(), ids=lambda fact: fact.__name__)
def test_fact_touches_its_facts_its_domain_and_the_schema(fact: type) -> None:
    applies = [d for d in DOMAINS if fact in d.apply]
    (domain,) = applies
    assert {file_of(each) for each in domain.apply} == {file_of(fact)}
    assert {file_of(apply) for apply in domain.apply.values()} == {file_of(domain.apply[fact])}
    assert fact.__name__ in schema_names("epoch.avsc")
    for loop in LOOPS if fact not in CARRIERS else ():
        assert fact.__name__ not in names_in(DOMAIN / f"{loop}.py"), loop


def test_no_module_outside_the_core_names_most_facts() -> None:
    """A switch over every fact would be one more place."""
    facts = {fact.__name__ for fact in Fact.__subclasses__()}
    outside = [p for p in trees() if DOMAIN not in p.parents and "sim" not in p.parts]
    for path in outside:
        assert len(facts & names_in(path)) < len(facts) / 2, path


@pytest.mark.parametrize("command", Command.__subclasses__(), ids=lambda command: command.__name__)
def test_command_touches_its_domain_and_the_schema(command: type) -> None:
    assert DOMAIN in file_of(command).parents
    assert DOMAIN in file_of(DECISIONS[command]).parents
    assert command.__struct_config__.tag in schema_names("command.avsc")  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", RequestKind)
def test_operation_is_its_file_its_command_and_a_row(kind: RequestKind) -> None:
    operation = OPERATIONS[kind]
    assert operation.kind is kind
    if operation.command is None:
        others = [each for each in OPERATIONS.values() if each.command is not None]
        assert operation.ask in [each.ask for each in others]
    else:
        assert file_of(operation.ask).parent == OPERATIONS_FOLDER
        assert file_of(operation.command) == DOMAIN / "model" / "operations.py"
        assert operation.command.__struct_config__.tag == kind  # type: ignore[attr-defined]
        assert kind in schema_names("command.avsc")
    assert (operation.first is None) is (not operation.states)
    assert operation.first is None or operation.first in operation.states
    for state in operation.states.values():
        for to in (state.on_success, state.on_failure):
            assert to is None or to in operation.states
        assert not (state.undoing and state.on_failure)


def _compares_kinds(tree: ast.Module) -> Iterator[int]:
    """Yield lines that name a member of RequestKind or compare a kind with a member's name."""
    kinds = {*map(str, RequestKind)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and getattr(node.value, "id", "") == RequestKind.__name__
        ):
            yield node.lineno
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            inner = [n for s in sides for n in (s, *getattr(s, "elts", ()))]
            words = any(isinstance(n, ast.Constant) and n.value in kinds for n in inner)
            if words and any(isinstance(n, ast.Attribute) and n.attr == "kind" for n in inner):
                yield node.lineno


def test_only_operations_compare_kinds() -> None:
    found = [
        f"{path.relative_to(STELE)}:{line}"
        for path, tree in trees().items()
        if OPERATIONS_FOLDER not in path.parents and "sim" not in path.parts
        for line in _compares_kinds(tree)
    ]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "if request.kind is RequestKind.JOIN: pass",
        "x = kind in (RequestKind.JOIN, RequestKind.LEAVE)",
        "x = request.kind == 'join'",
        "match kind:\n case RequestKind.JOIN: pass",
        "x = {RequestKind.JOIN: 1}",
        "x = table[RequestKind.JOIN]",
        "COMING = frozenset({RequestKind.JOIN, RequestKind.REPLACE})",
    ],
)
def test_search_for_comparisons_finds_them(text: str) -> None:
    assert [*_compares_kinds(ast.parse(text))]


def test_page_states_the_places_that_these_tests_count() -> None:
    """These are the numbered places of each section of ``docs/internals/extending.md``. Their files exist."""
    page = (STELE.parents[1] / "docs" / "internals" / "extending.md").read_text()
    sections = {part.split("\n", 1)[0]: part for part in page.split("\n## ")[1:]}
    counts = {
        name: sum(line[:2].rstrip(".").isdigit() for line in text.splitlines())
        for name, text in sections.items()
    }
    assert counts == {"A fact": 3, "A command": 3, "An operation": 6, "A topic": 2}
    for path in ("runtime/kafka.py", "domain/messages.py", "log/codec.py", "domain/names.py"):
        assert f"`{path}`" in page and (STELE / path).is_file()
