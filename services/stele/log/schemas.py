"""Avro schemas by name and by fingerprint. Readers support every schema that was ever released.

``schemas/*.avsc`` hold the newest schema of each record. ``schemas/history/`` keeps all released
ones permanently, because records that were written with them stay in the log (docs/design.md, rule
14).
"""

import os
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
from fastavro.schema import fingerprint, load_schema, to_parsing_canonical_form

from stele.log.chain import MAGIC

HEADER_BYTES: Final = 10
"""Size of ``chain.MAGIC`` and the eight bytes of fingerprint: Avro's single-object encoding."""
ORDER_FILE: Final = "order.txt"
"""File in the history that lists its files, the oldest release first."""
INSTALLED: Final = Path("share", "stele", "schemas")
"""Folder of the schemas that a wheel installs, relative to the environment."""

_UNNAMED: Final = {
    *("null", "boolean", "int", "long", "float", "double", "bytes", "string"),
    *("array", "map"),
}

Schema = Any
"""fastavro's parsed form: nested dicts and lists."""


class SchemaSet(msgspec.Struct, frozen=True):
    """Newest schema and its header by record name; all schemas by header."""

    newest: dict[str, Schema]
    headers: dict[str, bytes]
    by_header: dict[bytes, tuple[str, Schema]]
    releases: dict[str, tuple[bytes, ...]]
    """Headers by record name, the oldest release first and the newest schema last."""


def schema_folder() -> Path:
    """Return the folder of the schemas.

    That is ``STELE_SCHEMAS``, else ``schemas`` of the source tree, else the installed folder.
    """
    given = os.environ.get("STELE_SCHEMAS")
    if given:
        return Path(given)
    of_sources = Path(__file__).resolve().parents[3] / "schemas"
    return of_sources if of_sources.is_dir() else Path(sysconfig.get_path("data")) / INSTALLED


def header_of(schema: Schema) -> bytes:
    """Return the ten bytes before each record of a schema: magic and CRC-64-AVRO, little endian."""
    canonical = to_parsing_canonical_form(schema)
    return MAGIC + bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))


@cache
def load_schemas(folder: Path | None = None) -> SchemaSet:
    """Load all schemas of a folder and its ``history``. Raises FileNotFoundError with a hint."""
    folder = folder or schema_folder()
    files = sorted(folder.glob("*.avsc"))
    if not files:
        raise FileNotFoundError(f"No schemas in {folder}: set STELE_SCHEMAS to their folder.")
    newest = {_name(schema): schema for schema in map(load_schema, files)}
    headers = {name: header_of(schema) for name, schema in newest.items()}
    past = [load_schema(path) for path in sorted((folder / "history").glob("*.avsc"))]
    by_header = {header_of(schema): (_name(schema), schema) for schema in past}
    by_header.update({headers[name]: (name, schema) for name, schema in newest.items()})
    return SchemaSet(newest, headers, by_header, _releases(folder, headers))


def _releases(folder: Path, headers: dict[str, bytes]) -> dict[str, tuple[bytes, ...]]:
    """Return the headers of all releases by record name, oldest first, from ``order.txt``."""
    order = folder / "history" / ORDER_FILE
    files = order.read_text().split() if order.exists() else []
    return {
        name: (
            *(
                header
                for file in files
                if file.startswith(f"{name.lower()}-")
                and (header := MAGIC + bytes.fromhex(file.removesuffix(".avsc")[-16:])) != newest
            ),
            newest,
        )
        for name, newest in headers.items()
    }


def _name(schema: Schema) -> str:
    return str(schema["name"]).rpartition(".")[2]


def history_file(folder: Path, name: str, header: bytes) -> Path:
    """Return the file that keeps a schema permanently after its release."""
    return folder / "history" / f"{name.lower()}-{header[2:].hex()}.avsc"


def _release(folder: Path) -> int:
    """Copy the newest schemas into the history and never replace a file; return an exit code."""
    (folder / "history").mkdir(exist_ok=True)
    for path in sorted(folder.glob("*.avsc")):
        schema = load_schema(path)
        kept = history_file(folder, _name(schema), header_of(schema))
        if not kept.exists():
            kept.write_text(path.read_text())
            with (folder / "history" / ORDER_FILE).open("a") as order:
                order.write(f"{kept.name}\n")
    return _check(folder)


def _check(folder: Path) -> int:
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
    name = _name(schema)
    if not kept.exists():
        return [f"schema {name} changed: run `python -m stele.log.schemas release` and commit it"]
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


def records_of(schema: Schema) -> Iterator[tuple[str, list[Schema]]]:
    """Yield name and fields of every record in a schema."""
    if isinstance(schema, list):
        for branch in schema:
            yield from records_of(branch)
    elif isinstance(schema, dict):
        if schema["type"] == "record":
            yield str(schema["name"]), schema["fields"]
            for field in schema["fields"]:
                yield from records_of(field["type"])
        else:
            for part in ("type", "items", "values"):
                yield from records_of(schema.get(part))


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
    run = {"check": _check, "release": _release}[sys.argv[1]]
    sys.exit(run(schema_folder()))
