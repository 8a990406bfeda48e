"""Avro schemas by name and by fingerprint. Readers support every schema that was ever released.

``schemas/*.avsc`` hold the newest schema of each record. ``schemas/history/`` keeps all released
ones permanently, because records that were written with them stay in the log (docs/design.md, rule
14).
"""

import os
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
    newest = {name_of(schema): schema for schema in map(load_schema, files)}
    headers = {name: header_of(schema) for name, schema in newest.items()}
    past = [load_schema(path) for path in sorted((folder / "history").glob("*.avsc"))]
    by_header = {header_of(schema): (name_of(schema), schema) for schema in past}
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


def name_of(schema: Schema) -> str:
    return str(schema["name"]).rpartition(".")[2]


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
