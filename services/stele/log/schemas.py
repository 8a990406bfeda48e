"""Avro schemas by name and by fingerprint. Writers use the newest; readers know all that ever were.

``schemas/*.avsc`` hold the newest of each; ``schemas/history/`` keeps older ones for ever, since records
that were written with them stay in the log.
"""

import os
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
from fastavro.schema import fingerprint, load_schema, to_parsing_canonical_form

from stele.log.chain import MAGIC

HEADER_BYTES: Final = 10
"""``chain.MAGIC`` and eight bytes of fingerprint: Avro's single-object encoding."""

Schema = Any
"""fastavro's parsed form: nested dicts and lists."""


class SchemaSet(msgspec.Struct, frozen=True):
    """Newest schema and its header by record name; all schemas by header."""

    newest: dict[str, Schema]
    headers: dict[str, bytes]
    by_header: dict[bytes, tuple[str, Schema]]


def schema_folder() -> Path:
    """``STELE_SCHEMAS``, else the folder ``schemas`` of the source tree."""
    given = os.environ.get("STELE_SCHEMAS")
    return Path(given) if given else Path(__file__).resolve().parents[3] / "schemas"


def header_of(schema: Schema) -> bytes:
    """The ten bytes before every record of this schema: magic and CRC-64-AVRO, little endian."""
    canonical = to_parsing_canonical_form(schema)
    return MAGIC + bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))


@cache
def load_schemas(folder: Path | None = None) -> SchemaSet:
    """All schemas of a folder and its ``history``. Raises FileNotFoundError with what to do."""
    folder = folder or schema_folder()
    files = sorted(folder.glob("*.avsc"))
    if not files:
        raise FileNotFoundError(f"No schemas in {folder}: set STELE_SCHEMAS to their folder.")
    newest = {_name(schema): schema for schema in map(load_schema, files)}
    headers = {name: header_of(schema) for name, schema in newest.items()}
    past = [load_schema(path) for path in sorted((folder / "history").glob("*.avsc"))]
    by_header = {header_of(schema): (_name(schema), schema) for schema in past}
    by_header.update({headers[name]: (name, schema) for name, schema in newest.items()})
    return SchemaSet(newest, headers, by_header)


def _name(schema: Schema) -> str:
    return str(schema["name"]).rpartition(".")[2]


def history_file(folder: Path, name: str, header: bytes) -> Path:
    """Where a schema is kept for ever once it has been released."""
    return folder / "history" / f"{name.lower()}-{header[2:].hex()}.avsc"


def _release(folder: Path) -> int:
    """Keep the newest schemas for ever."""
    (folder / "history").mkdir(exist_ok=True)
    for path in sorted(folder.glob("*.avsc")):
        schema = load_schema(path)
        history_file(folder, _name(schema), header_of(schema)).write_text(path.read_text())
    return 0


def _check(folder: Path) -> int:
    """Every newest schema must stand in the history, so that no released one is ever lost."""
    missing = [
        name
        for name, header in load_schemas(folder).headers.items()
        if not history_file(folder, name, header).exists()
    ]
    for name in missing:
        print(f"schema {name} changed: run `python -m stele.log.schemas release` and commit it")
    return 1 if missing else 0


if __name__ == "__main__":
    run = {"check": _check, "release": _release}[sys.argv[1]]
    sys.exit(run(schema_folder()))
