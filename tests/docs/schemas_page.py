"""The generated part of docs/reference/schemas.md: ``python -m tests.docs.schemas_page`` writes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from stele.log.schemas import schema_folder
from tests.docs.pages import REPOSITORY

PAGE = REPOSITORY / "docs" / "reference" / "schemas.md"
UNIONS = ("command", "epoch")
"""Schemas whose record holds one of many other records."""


def sections() -> Iterator[str]:
    yield "| schema | record | |\n|---|---|---|\n"
    schemas = {path.stem: json.loads(path.read_text()) for path in sorted(_files())}
    for name, schema in schemas.items():
        yield f"| `{name}.avsc` | `{schema['name']}` | {_cell(schema.get('doc', ''))} |\n"
    for name in UNIONS:
        yield f"\n### {name.capitalize()} records\n\n| record | fields |\n|---|---|\n"
        records = dict[str, Any]()
        _collect(schemas[name]["fields"], records)
        for record, fields in sorted(records.items()):
            shown = "<br>".join(_field(each) for each in fields) or "none"
            yield f"| `{record}` | {shown} |\n"
    yield "\n"


def _files() -> list[Any]:
    return [path for path in schema_folder().glob("*.avsc") if path.is_file()]


def _collect(node: Any, found: dict[str, Any]) -> None:
    """Add every record below a node of a schema to ``found``, by name."""
    if isinstance(node, list):
        for each in node:
            _collect(each, found)
    elif isinstance(node, dict):
        if node.get("type") == "record":
            # Changes of a batch have a namespace, because commands have the same names.
            namespace = node.get("namespace", "stele").removeprefix("stele").removeprefix(".")
            found[f"{namespace}.{node['name']}".removeprefix(".")] = node["fields"]
            _collect(node["fields"], found)
        else:
            for key in ("type", "items", "values"):
                _collect(node.get(key), found)


def _field(field: Any) -> str:
    kind = _cell(_kind(field["type"]))
    default = f", default `{json.dumps(field['default'])}`" if "default" in field else ""
    return f"`{field['name']}` ({kind}{default}): {_cell(field.get('doc', ''))}"


def _kind(node: Any) -> str:
    if isinstance(node, list):
        return (
            " or ".join(map(_kind, node)) if len(node) < 4 else "one of the records of this table"
        )
    if isinstance(node, dict):
        if node["type"] in ("array", "map"):
            return f"{node['type']} of {_kind(node.get('items', node.get('values')))}"
        return str(node.get("name", node["type"]))
    return str(node)


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")
