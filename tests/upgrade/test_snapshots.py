"""Metadata snapshots of two releases.

The newer release reads the older's snapshots, and both write the same bytes. A release without a feature
refuses snapshots that need it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.upgrade.builds import build_of_commit, build_with_one_more_fact, environment, form_commit

WRITE = """
import sys
from stele.domain.base import Fact
from stele.domain.names import PARTITIONER
from stele.domain.snapshot import facts_to_image, image_to_facts
from stele.log.archive.snapshots import head_of, write
from stele.log.chain import Anchor

named = {fact.__name__: fact for fact in Fact.__subclasses__()}  # modules differ between releases
ClusterCreated, SettingChanged = named["ClusterCreated"], named["SettingChanged"]
FeaturesEnabled = named["FeaturesEnabled"]
facts = [ClusterCreated("demo", "demo/1", PARTITIONER, "1" * 32, "topic")]
facts += [SettingChanged(f"s{n:03}", str(n)) for n in range(200)]
if "notes" in sys.argv:
    from stele.domain.model.notes import NoteWritten
    facts += [FeaturesEnabled(("notes",)), NoteWritten("a note")]
image = facts_to_image(facts, 7, b"7" * 16)
with open(sys.argv[1], "wb") as file:
    head = head_of(image, 9, Anchor(8, b"8" * 16), 1_700_000_000_000)
    print(write(file, head, image_to_facts(image)))
"""

READ = """
import json, sys
from stele.domain.snapshot import state_hash
from stele.log.archive.snapshots import UnreadableSnapshotError, start_of

try:
    with open(sys.argv[1], "rb") as file:
        image, next_offset, anchor = start_of(file)[:3]
    print(json.dumps({"hash": state_hash(image), "offset": next_offset, "anchor": anchor.offset}))
except UnreadableSnapshotError as error:
    print(json.dumps({"refused": str(error)}))
"""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_of_commit(form_commit(), tmp_path_factory.mktemp("older"))


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_with_one_more_fact(tmp_path_factory.mktemp("newer"))


def run(build: Path, script: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env={**os.environ, **environment(build)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def read(build: Path, path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(build, READ, path))
    return found


def test_two_releases_write_and_read_the_same_snapshot(
    older: Path, newer: Path, tmp_path: Path
) -> None:
    """In a rolling upgrade, replicas of both releases agree on a hash."""
    one, two = tmp_path / "older.avro", tmp_path / "newer.avro"
    assert run(older, WRITE, one) == run(newer, WRITE, two)
    assert one.read_bytes() == two.read_bytes()
    assert read(older, two) == read(newer, one) == read(newer, two)
    assert read(newer, one)["offset"] == 9


def test_release_without_a_feature_refuses_snapshots_that_need_it(
    older: Path, newer: Path, tmp_path: Path
) -> None:
    """An enabled feature cannot be disabled, and the rejection says so."""
    path = tmp_path / "notes.avro"
    run(newer, WRITE, path, "notes")
    assert "hash" in read(newer, path)
    refused = read(older, path)["refused"]
    assert "notes" in refused
    assert "Upgrade this process" in refused
