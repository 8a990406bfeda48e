"""Jars come from the lock, and what is missing is named with what to do."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from stele.stack import jars, java
from stele.stack.jars import JarSet, JarsMissing, jar_paths


def test_every_locked_jar_is_there() -> None:
    for which in JarSet:
        assert all(path.exists() for path in jar_paths(which))


def test_the_broker_has_the_client_library_of_its_own_version() -> None:
    names = {path.name for path in jar_paths(JarSet.KAFKA)}
    assert {"kafka_2.13-4.3.1.jar", "kafka-clients-4.3.1.jar"} <= names


def test_spark_gets_no_jar_that_its_wheel_ships() -> None:
    pyspark = pytest.importorskip("pyspark")
    shipped = {path.name for path in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    artifacts = {name.rpartition("-")[0] for name in shipped}
    ours = {path.name.rpartition("-")[0] for path in jar_paths(JarSet.SPARK)}
    assert ours
    assert not ours & artifacts


def test_missing_jars_say_make_setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = jars.project_root() / "jars" / "kafka" / "jgo.lock.toml"
    (tmp_path / "jars" / "kafka").mkdir(parents=True)
    (tmp_path / "jars" / "kafka" / "jgo.lock.toml").write_text(lock.read_text())
    monkeypatch.setenv("STELE_HOME", str(tmp_path))
    with pytest.raises(JarsMissing, match="make setup"):
        jar_paths(JarSet.KAFKA)


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
    program = tmp_path / "java"
    program.write_text(f"#!/bin/sh\necho '{words}' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    assert java.java_version(program) == version


def test_an_old_java_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'java version \"1.8.0_402\"' >&2\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(java.JavaMissing, match=r"version 8.*openjdk-17"):
        java.find_java()
