"""The parts of docs/reference/http.md made from the OpenAPI documents: ``python -m tests.docs.http_page``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stele.coordinator.http import openapi as of_coordinator
from stele.metadata_log.openapi import openapi as of_metadata_log
from tests.docs.pages import REPOSITORY

PAGE = REPOSITORY / "docs" / "reference" / "http.md"
DOCUMENTS = {"metadata-log": of_metadata_log, "coordinator": of_coordinator}
COMMON = ("epoch", "level", "limit", "cursor")
"""Parameters with a separate table."""
Json = dict[str, Any]


def sections() -> Iterator[str]:
    seen = dict[str, Json]()
    for name, document in DOCUMENTS.items():
        yield f"### {name}\n\n| | path | | parameters | errors |\n|---|---|---|---|---|\n"
        for path, operations in document()["paths"].items():
            for method, operation in operations.items():
                yield _row(path, method, operation, seen)
        yield "\n"
    yield "### Parameters of pages and of states\n\n| parameter | | |\n|---|---|---|\n"
    for name in COMMON:
        yield f"| `{name}` | {_bounds(seen[name]['schema'])} | {seen[name]['description']} |\n"
    yield "\n"


def _row(path: str, method: str, operation: Json, seen: dict[str, Json]) -> str:
    own = list[str]()
    for each in operation.get("parameters", ()):
        common = each["name"] in COMMON and each["in"] == "query"
        if common and seen.setdefault(each["name"], each)["schema"] == each["schema"]:
            continue
        if each["in"] != "path":
            text = f" {each['description'].rstrip('.')}" if each.get("description") else ""
            own.append(f"`{each['name']}`{_in_brackets(each['schema'])}{text}")
    errors = ", ".join(status for status in operation["responses"] if status != "200")
    said = "; ".join(own).replace("|", "\\|")
    return f"| {method.upper()} | `{path}` | {operation['summary']} | {said} | {errors} |\n"


def _in_brackets(schema: Json) -> str:
    bounds = _bounds(schema)
    return f" ({bounds})" if bounds != "string" else ""


def _bounds(schema: Json) -> str:
    if "enum" in schema:
        return ", ".join(schema["enum"])
    if "minimum" in schema:
        return f"{schema['minimum']} to {schema['maximum']}"
    return str(schema["type"])
