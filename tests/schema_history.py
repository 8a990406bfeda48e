"""The history of the schemas: ``python -m tests.schema_history check`` and ``release``.

Released schemas stay permanently, because records that were written with them stay in the log
(docs/design.md, rule 14).
"""

import sys
from pathlib import Path
from typing import Final

from fastavro.schema import load_schema

from stele.log.schemas import (
    ORDER_FILE,
    Schema,
    header_of,
    load_schemas,
    name_of,
    records_of,
    schema_folder,
)

_UNNAMED: Final = {
    *("null", "boolean", "int", "long", "float", "double", "bytes", "string"),
    *("array", "map"),
}


def history_file(folder: Path, name: str, header: bytes) -> Path:
    """Return the file that keeps a schema permanently after its release."""
    return folder / "history" / f"{name.lower()}-{header[2:].hex()}.avsc"


def release(folder: Path) -> int:
    """Copy the newest schemas into the history and never replace a file; return an exit code."""
    (folder / "history").mkdir(exist_ok=True)
    for path in sorted(folder.glob("*.avsc")):
        schema = load_schema(path)
        kept = history_file(folder, name_of(schema), header_of(schema))
        if not kept.exists():
            kept.write_text(path.read_text())
            with (folder / "history" / ORDER_FILE).open("a") as order:
                order.write(f"{kept.name}\n")
    return check(folder)


def check(folder: Path) -> int:
    """Check that the history holds every newest schema, which must read all records of older ones.

    Prints each flaw; returns an exit code.
    """
    schemas = load_schemas(folder)
    order = folder / "history" / ORDER_FILE
    flaws = [
        f"{order} names {file}, which is not there: take the line out, or bring the file back"
        for file in (order.read_text().split() if order.exists() else [])
        if not (folder / "history" / file).exists()
    ]
    flaws += [
        flaw
        for name, schema in schemas.newest.items()
        for flaw in (
            *_flaws_of_history(history_file(folder, name, schemas.headers[name]), schema),
            *_flaws_of_reading(folder, name, schema),
        )
    ]
    for flaw in flaws:
        print(flaw)
    return 1 if flaws else 0


def _flaws_of_history(kept: Path, schema: Schema) -> list[str]:
    name = name_of(schema)
    if not kept.exists():
        return [
            f"schema {name} changed: run `python -m tests.schema_history release` and commit it"
        ]
    if _meaning(load_schema(kept)) != _meaning(schema):
        return [
            f"schema {name} differs from {kept.name} in what a fingerprint does not show, such as a logical "
            "type: readers cannot tell which one wrote a record. Add a field with another name instead"
        ]
    return []


def _flaws_of_reading(folder: Path, name: str, schema: Schema) -> list[str]:
    """Return a flaw for each field without a value in older records, or with another type there."""
    new = dict(records_of(schema))
    flaws = []
    for path in sorted((folder / "history").glob(f"{name.lower()}-*.avsc")):
        for record, old in records_of(load_schema(path)):
            before = {field["name"]: _kind(field["type"]) for field in old}
            for field in new.get(record, ()):
                place, kind = f"{record}.{field['name']}", _kind(field["type"])
                if field["name"] not in before and "default" not in field:
                    flaws.append(
                        f"{place} has no default, and records of {path.name} do not have it: give it one"
                    )
                elif before.get(field["name"], kind) != kind:
                    flaws.append(
                        f"{place} has another type than in records of {path.name}: give it another name"
                    )
    return flaws


def _kind(schema: Schema) -> str:
    """Return the outermost kind: a primitive, ``array``, ``map``, ``union``, or ``named``."""
    if isinstance(schema, list):
        return "union"
    kind = str(schema["type"] if isinstance(schema, dict) else schema)
    return kind if kind in _UNNAMED else "named"


def _meaning(schema: Schema) -> Schema:
    """Return a schema without documentation, defaults and the entries that fastavro adds."""
    if isinstance(schema, dict):
        return {
            key: _meaning(value)
            for key, value in schema.items()
            if key not in {"doc", "default"} and not key.startswith("__")
        }
    return [_meaning(part) for part in schema] if isinstance(schema, list) else schema


if __name__ == "__main__":
    run = {"check": check, "release": release}[sys.argv[1]]
    sys.exit(run(schema_folder()))
