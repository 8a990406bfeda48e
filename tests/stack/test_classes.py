"""Class archives that a JVM writes for later JVMs."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from stele.runtime.java import Java, classes_of, find_java, with_classes_of
from stele_harness.stack import classes

Run = Callable[[Java, Path, Path, tuple[str, ...]], None]


def a_java(java: Java, _jars: Path, _scratch: Path, options: tuple[str, ...]) -> None:
    subprocess.run(
        [java.program, *options, "-version"], check=True, capture_output=True, timeout=240
    )


def half(java: Java, jars: Path, scratch: Path, options: tuple[str, ...]) -> None:
    """Write a part of the archive, as on a full disk."""
    a_java(java, jars, scratch, options)
    (made,) = scratch.glob("*.jsa")
    made.chmod(0o600)
    with made.open("r+b") as file:
        file.truncate(made.stat().st_size // 4)


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "one.jar").write_bytes(b"")
    monkeypatch.setattr(classes, "folder_of", lambda _: tmp_path)
    monkeypatch.setattr(classes, "_session", a_java)
    return tmp_path


def kept_by(run: Run, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(classes, "_broker", run)
    return [*classes.keep()]


def test_class_archives_are_written_once_for_each_set_of_jars(
    jars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = find_java()
    assert kept_by(a_java, monkeypatch) == []
    first = classes_of(java, jars).stat()
    ran = subprocess.run(
        [java.program, *with_classes_of(java, jars), "-version"],
        capture_output=True,
        timeout=240,
        check=True,
    )
    assert b"cds" not in ran.stdout + ran.stderr
    assert kept_by(a_java, monkeypatch) == []
    assert classes_of(java, jars).stat().st_mtime_ns == first.st_mtime_ns
    (jars / "two.jar").write_bytes(b"")
    assert kept_by(a_java, monkeypatch) == []
    assert classes_of(java, jars).stat().st_mtime_ns != first.st_mtime_ns


def test_partial_class_archive_is_not_kept(jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classes, "_session", half)
    lines = kept_by(half, monkeypatch)
    assert [line.split()[0] for line in lines] == ["Kafka", "Spark"]
    assert [path.name for path in jars.iterdir()] == ["one.jar"]


def test_failed_class_archive_is_reported(jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_java: Java, _jars: Path, _scratch: Path, _options: tuple[str, ...]) -> None:
        raise OSError("no room")

    (line,) = kept_by(fails, monkeypatch)
    assert line.startswith("Kafka will start more slowly")
    assert line.endswith("no room")
