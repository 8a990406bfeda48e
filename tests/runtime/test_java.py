"""Choice of an installed Java for Kafka and for Spark."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from stele.runtime import java
from stele.runtime.java import (
    KAFKA,
    SPARK,
    Java,
    JavaMissing,
    classes_of,
    find_java,
    with_classes_of,
)


def install(folder: Path, version: str, *, modules: bool = True) -> Path:
    """Install a `java` that prints this version. Without modules it fails for any requested module."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    refuse = "" if modules else 'case "$1" in --add-modules*) exit 1;; esac\n'
    program.write_text(f"#!/bin/sh\n{refuse}echo '{version}' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only folder that is searched for Java. JAVA_HOME is `first` in it."""
    monkeypatch.setattr(java, "INSTALLED", (f"{tmp_path}/jvm/*",))
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "first"))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21-ea" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ("no such thing", None),
    ],
)
def test_java_version_is_parsed(tmp_path: Path, words: str, version: int | None) -> None:
    assert java.java_version(install(tmp_path, words)) == version


def test_old_java_is_refused_with_the_package_to_install(installed: Path) -> None:
    install(installed / "first", 'java version "1.8.0_402"')
    with pytest.raises(JavaMissing, match=r"version 8.*openjdk-17"):
        find_java()


def test_java_too_new_for_spark_is_replaced_by_another_with_a_note(
    installed: Path,
) -> None:
    newest = install(installed / "first", 'openjdk version "25.0.3"')
    install(installed / "jvm" / "a", 'openjdk version "11.0.2"')
    fits = install(installed / "jvm" / "b", 'openjdk version "21.0.7"')
    assert find_java(KAFKA).program == newest
    assert find_java(KAFKA).note(KAFKA) == ""
    found = find_java(SPARK)
    assert (found.program, found.home) == (fits, installed / "jvm" / "b")
    note = found.note(SPARK)
    assert note.startswith(f"Spark runs on Java 21 of {installed / 'jvm' / 'b'}")
    assert f"{newest} is version 25" in note


def test_java_without_the_module_for_spark_is_skipped(installed: Path) -> None:
    install(installed / "first", 'openjdk version "21.0.7"', modules=False)
    with pytest.raises(JavaMissing, match=r"without jdk.incubator.vector.*version 17 or 21"):
        find_java(SPARK)
    assert find_java(KAFKA).version == 21


def test_java_with_several_paths_is_tried_once(installed: Path) -> None:
    program = install(installed / "jvm" / "17", 'openjdk version "11"')
    (installed / "jvm" / "also").symlink_to(program.parent.parent)
    with pytest.raises(JavaMissing) as raised:
        find_java()
    assert str(raised.value).count("is version 11") == 1


@pytest.mark.parametrize(
    ("version", "exit_code", "said"),
    [("1.8.0_402", 1, "Kafka needs Java 17"), ("25.0.3", 0, "Spark needs Java 17 to 21")],
)
def test_setup_names_the_package_to_install(
    installed: Path,
    capsys: pytest.CaptureFixture[str],
    version: str,
    exit_code: int,
    said: str,
) -> None:
    install(installed / "first", f'openjdk version "{version}"')
    assert java.main() == exit_code
    error = capsys.readouterr().err
    assert said in error
    assert "apt-get install openjdk-17-jre-headless" in error


def test_setup_prints_nothing_with_a_suitable_java(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(installed / "first", 'openjdk version "17.0.15"')
    assert java.main() == 0
    assert capsys.readouterr() == ("", "")


def test_class_archive_is_used_only_for_its_java(tmp_path: Path) -> None:
    newer, older = Java(tmp_path / "java", 21), Java(tmp_path / "java", 17)
    classes_of(newer, tmp_path).write_bytes(b"")
    assert f"-XX:SharedArchiveFile={classes_of(newer, tmp_path)}" in with_classes_of(
        newer, tmp_path
    )
    assert with_classes_of(older, tmp_path) == ()
