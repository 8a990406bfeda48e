"""Which Java is taken of those that are installed, by what each of them can run."""

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
    """The only folder in which a Java may be; JAVA_HOME is `first` in it."""
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
def test_the_version_of_a_java_is_read(tmp_path: Path, words: str, version: int | None) -> None:
    assert java.java_version(install(tmp_path, words)) == version


def test_an_old_java_is_refused_with_what_to_install(installed: Path) -> None:
    install(installed / "first", 'java version "1.8.0_402"')
    with pytest.raises(JavaMissing, match=r"version 8.*openjdk-17"):
        find_java()


def test_a_newer_java_than_spark_can_use_gives_way_to_another_one_and_that_is_said(
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


def test_a_java_without_the_module_that_spark_starts_with_is_passed_over(installed: Path) -> None:
    install(installed / "first", 'openjdk version "21.0.7"', modules=False)
    with pytest.raises(JavaMissing, match=r"without jdk.incubator.vector.*version 17 or 21"):
        find_java(SPARK)
    assert find_java(KAFKA).version == 21


def test_a_java_with_several_names_is_tried_once(installed: Path) -> None:
    program = install(installed / "jvm" / "17", 'openjdk version "11"')
    (installed / "jvm" / "also").symlink_to(program.parent.parent)
    with pytest.raises(JavaMissing) as raised:
        find_java()
    assert str(raised.value).count("is version 11") == 1


@pytest.mark.parametrize(
    ("version", "exit_code", "said"),
    [("1.8.0_402", 1, "Kafka needs Java 17"), ("25.0.3", 0, "Spark needs Java 17 to 21")],
)
def test_set_up_says_what_to_install(
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


def test_set_up_says_nothing_where_nothing_is_to_be_said(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(installed / "first", 'openjdk version "17.0.15"')
    assert java.main() == 0
    assert capsys.readouterr() == ("", "")


def test_classes_are_mapped_where_they_are_kept_for_this_java(tmp_path: Path) -> None:
    newer, older = Java(tmp_path / "java", 21), Java(tmp_path / "java", 17)
    classes_of(newer, tmp_path).write_bytes(b"")
    assert f"-XX:SharedArchiveFile={classes_of(newer, tmp_path)}" in with_classes_of(
        newer, tmp_path
    )
    assert with_classes_of(older, tmp_path) == ()
