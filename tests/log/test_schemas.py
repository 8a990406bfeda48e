"""The check of the schema files: old records stay readable, and no released schema is overwritten."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from stele.log.schemas import load_schemas, records_of, schema_folder
from tests.schema_history import check, release


def record(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Epoch", "namespace": "stele", "fields": list(fields)}


AT = {"name": "at_ms", "type": "long"}


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """Return a folder with a released schema of one field."""
    write(tmp_path, record(AT))
    assert release(tmp_path) == 0
    return tmp_path


def write(folder: Path, schema: dict[str, Any]) -> None:
    (folder / "epoch.avsc").write_text(json.dumps(schema))
    load_schemas.cache_clear()


def history(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (folder / "history").glob("*.avsc")}


def test_a_changed_schema_must_be_released(
    released: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(released, record(AT, {"name": "why", "type": "string", "default": ""}))
    assert check(released) == 1
    assert "release" in capsys.readouterr().out
    assert release(released) == 0
    assert len(history(released)) == 2


@pytest.mark.parametrize("nested", [False, True])
def test_new_field_without_a_default_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], nested: bool
) -> None:
    def schema(*more: dict[str, Any]) -> dict[str, Any]:
        if not nested:
            return record(AT, *more)
        node = {"type": "record", "name": "Node", "fields": [AT, *more]}
        union = {"type": "array", "items": ["null", node]}
        return record({"name": "nodes", "type": union})

    write(tmp_path, schema())
    release(tmp_path)
    write(tmp_path, schema({"name": "why", "type": "string"}))
    assert release(tmp_path) == 1
    assert "why has no default" in capsys.readouterr().out
    write(tmp_path, schema({"name": "why", "type": "string", "default": ""}))
    next(p for p in (tmp_path / "history").iterdir() if "why" in p.read_text()).unlink()
    assert release(tmp_path) == 0


def test_logical_type_is_refused_and_overwrites_nothing(
    released: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = history(released)
    logical = {"type": "long", "logicalType": "timestamp-millis"}
    write(released, record({"name": "at_ms", "type": logical}))
    assert release(released) == 1
    assert "logical type" in capsys.readouterr().out
    assert history(released) == before


@pytest.mark.parametrize(
    "other", ["bytes", "int", ["null", "long"], {"type": "array", "items": "long"}]
)
def test_a_field_keeps_its_type(
    released: Path, capsys: pytest.CaptureFixture[str], other: object
) -> None:
    """Otherwise a writer could choose an older schema that cannot express the record."""
    write(released, record({"name": "at_ms", "type": other}))
    assert release(released) == 1
    assert "at_ms has another type than in records of" in capsys.readouterr().out


def test_documentation_may_change(released: Path) -> None:
    before = history(released)
    write(released, record({**AT, "doc": "milliseconds"}))
    assert release(released) == 0
    assert history(released) == before


@pytest.mark.parametrize("path", sorted(schema_folder().glob("*.avsc")), ids=lambda path: path.stem)
def test_every_field_has_a_meaningful_doc(path: Path) -> None:
    """Its ``doc`` has more words than its name."""
    silent = [
        f"{name}.{field['name']}"
        for name, fields in records_of(json.loads(path.read_text()))
        for field in fields
        if not words(field.get("doc", "")) - {*field["name"].split("_")}
    ]
    assert not silent, f"give these fields of {path.name} a doc: units, what empty or 0 means"


def words(doc: str) -> set[str]:
    return {*re.findall(r"[a-z0-9]+", doc.lower())} - {"a", "an", "its", "of", "the"}
