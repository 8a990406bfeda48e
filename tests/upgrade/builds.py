"""Builds of this project in folders: a past one from git, and the present one with an additional fact.

Both use the packages of this environment. ``PYTHONPATH`` names the folder's ``services``.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from stele.log.schemas import schema_folder
from tests.schema_history import release

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("services", "schemas")
FEATURE = "notes"

FACTS = '''
"""Notes: one more fact, its command and its image."""

import msgspec

from stele.domain.base import Command, Fact


class NoteWritten(Fact, frozen=True):
    text: str


class WriteNote(Command, frozen=True, tag="write_note"):
    text: str


NotesFact = NoteWritten
NotesCommand = WriteNote


class NotesImage(msgspec.Struct, frozen=True):
    notes: tuple[str, ...] = ()
'''

DOMAIN = '''
"""Notes, entered in the registry."""

from stele.domain.model.notes import NotesImage, NoteWritten, WriteNote
from stele.domain.registry_entry import Domain

DOMAIN = Domain(
    name="notes",
    empty=NotesImage(),
    decide={WriteNote: lambda context, command: (NoteWritten(command.text),)},
    apply={NoteWritten: lambda image, fact: NotesImage((*image.notes, fact.text))},
    to_facts=lambda image: map(NoteWritten, image.notes),
    view=lambda image: {"notes": image.notes},
    diff=lambda before, after: {"notes": {"added": after.notes[len(before.notes):]}},
    features={NoteWritten: "notes"},
)
'''

PLACES = (
    (
        "registry.py",
        "from stele.domain.registry_entry import Domain\n",
        "+from stele.domain.rules.notes import DOMAIN as NOTES\n",
    ),
    ("registry.py", "    DECIDED,\n)", "-    NOTES,\n"),
    ("facts.py", "import msgspec\n", "+\nfrom stele.domain.model.notes import NotesFact\n"),
    ("facts.py", "AnyFact = ", "+NotesFact | "),
    ("image.py", "import msgspec\n", "+\nfrom stele.domain.model.notes import NotesImage\n"),
    ("image.py", "    staging: StagingImage = ", "-    notes: NotesImage = NotesImage()\n"),
    ("commands.py", "import msgspec\n", "+\nfrom stele.domain.model.notes import NotesCommand\n"),
    ("commands.py", "    | FeaturesCommand\n", "+    | NotesCommand\n"),
)
"""Edits of ``docs/internals/extending.md``: file, existing text, and the text after (+) or before (-) it."""

NOTE_FIELDS = [{"name": "text", "type": "string"}]


def form_commit() -> str:
    """Return the commit that ``schemas/FORM`` names, 40 hex digits."""
    return (schema_folder() / "FORM").read_text().split()[0]


def build_of_commit(commit: str, folder: Path) -> Path:
    """Extract the commit's services and schemas to ``folder``. Skip the test if git has no history."""
    _need_history()
    archive = _git("archive", commit, *PARTS)
    assert archive.returncode == 0, archive.stderr.decode()
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def file_of_commit(commit: str, path: str) -> str:
    """Return a file's text at the commit. Skip the test if git has no history."""
    _need_history()
    shown = _git("show", f"{commit}:{path}")
    assert shown.returncode == 0, shown.stderr.decode()
    return shown.stdout.decode()


def build_with_one_more_fact(folder: Path) -> Path:
    """Copy the present tree and add domain ``notes``: a fact, its command, their schemas and a feature."""
    for part in PARTS:
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    domain = folder / "services" / "stele" / "domain"
    for layer, text in (("model", FACTS), ("rules", DOMAIN)):
        (domain / layer / "notes.py").write_text(text)
    for name, anchor, added in PLACES:
        _insert(domain / name, anchor, added)
    _add_record(folder / "schemas" / "epoch.avsc", "facts", "NoteWritten")
    _add_record(folder / "schemas" / "command.avsc", "command", "write_note")
    assert release(folder / "schemas") == 0
    return folder


def environment(build: Path) -> dict[str, str]:
    """Return the environment of a process of this build."""
    return {
        "PYTHONPATH": str(build / "services"),
        "STELE_SCHEMAS": str(build / "schemas"),
    }


def features_of(build: Path) -> tuple[str, ...]:
    """Return the supported features of this build."""
    script = "import json, stele.domain.registry as r; print(json.dumps(sorted(r.KNOWN_FEATURES)))"
    result = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        env={**os.environ, **environment(build)},
        timeout=240,
    )
    return tuple(json.loads(result.stdout))


def _insert(path: Path, anchor: str, added: str) -> None:
    text = path.read_text()
    assert text.count(anchor) == 1, f"{path} has {anchor!r} {text.count(anchor)} times"
    new = added[1:]
    path.write_text(text.replace(anchor, anchor + new if added[0] == "+" else new + anchor))


def _add_record(path: Path, field: str, name: str) -> None:
    schema = json.loads(path.read_text())
    (kind,) = (f["type"] for f in schema["fields"] if f["name"] == field)
    union: list[Any] = kind["items"] if isinstance(kind, dict) else kind
    union.append({"type": "record", "name": name, "fields": NOTE_FIELDS})
    path.write_text(json.dumps(schema))


def _need_history() -> None:
    shallow = _git("rev-parse", "--is-shallow-repository")
    if shallow.returncode != 0:
        pytest.skip("there is no earlier build to start: this is not a git checkout")
    if shallow.stdout.strip() == b"true":
        pytest.skip("this is a shallow clone: run `git fetch --unshallow` for the earlier build")


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, check=False, timeout=240)
