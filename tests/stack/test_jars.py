"""Jars are those of the lock file, and missing ones are an error with a hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from stele_harness.stack import jars
from stele_harness.stack.jars import JarSet, JarsMissing, jar_paths


def test_every_locked_jar_exists() -> None:
    for which in JarSet:
        assert all(path.exists() for path in jar_paths(which))


def test_broker_has_the_client_library_of_its_version() -> None:
    names = {path.name for path in jar_paths(JarSet.KAFKA)}
    assert {"kafka_2.13-4.3.1.jar", "kafka-clients-4.3.1.jar"} <= names


def test_spark_gets_no_jar_that_its_wheel_ships() -> None:
    pyspark = pytest.importorskip("pyspark")
    shipped = {path.name for path in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    artifacts = {name.rpartition("-")[0] for name in shipped}
    ours = {path.name.rpartition("-")[0] for path in jar_paths(JarSet.SPARK)}
    assert ours
    assert not ours & artifacts


def test_missing_jars_hint_at_make_setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = jars.project_root() / "jars" / "kafka" / "jgo.lock.toml"
    (tmp_path / "jars" / "kafka").mkdir(parents=True)
    (tmp_path / "jars" / "kafka" / "jgo.lock.toml").write_text(lock.read_text())
    monkeypatch.setenv("STELE_HOME", str(tmp_path))
    with pytest.raises(JarsMissing, match="make setup"):
        jar_paths(JarSet.KAFKA)
