"""The jars of the Kafka broker, of Spark's connectors and of the examples: resolved by jgo, checked by locks.

`jars/<set>/jgo.toml` names what is wanted, `jars/<set>/jgo.lock.toml` every jar with its SHA-256.
`sync` fills `.cache/jars/<set>`; afterwards nothing here needs a network.

    python -m stele_harness.stack.jars sync     # by the lock: fails when a jar differs
    python -m stele_harness.stack.jars lock     # resolve again and write the lock files
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

RESOLVE_TIMEOUT_S = 600  # 60 MB on a slow line
DOWNLOAD_TIMEOUT_S = 60  # for one file


class JarSet(StrEnum):
    KAFKA = "kafka"
    SPARK = "spark"
    EXAMPLES = "examples"


class JarsMissing(Exception):
    """A jar is missing, or differs from the lock. The text contains the remedy."""


@dataclass(frozen=True, slots=True)
class LockedJar:
    name: str  # file name, "kafka-clients-4.3.1.jar"
    sha256: str  # hex


def project_root() -> Path:
    """Return the folder that holds `jars/`: STELE_HOME, or the checkout this package runs from."""
    home = os.environ.get("STELE_HOME")
    return Path(home) if home else Path(__file__).resolve().parents[4]


def jar_paths(which: JarSet) -> tuple[Path, ...]:
    """Return the absolute paths of every jar in a set, in the lock's order. Raises JarsMissing."""
    locked = read_lock(_lock_path(which))
    paths = {path.name: path for path in sorted(folder_of(which).rglob("*.jar"))}
    missing = [jar.name for jar in locked if jar.name not in paths]
    if missing:
        raise JarsMissing(
            f"{len(missing)} of {len(locked)} jars for {which} are not in {folder_of(which)} "
            f"(the first is {missing[0]}): run make setup."
        )
    return tuple(paths[jar.name] for jar in locked)


def classpath(which: JarSet) -> str:
    """Return the set as the value of java's -cp option."""
    return os.pathsep.join(str(path) for path in jar_paths(which))


def read_lock(path: Path) -> tuple[LockedJar, ...]:
    """Return the jars that a lock file names. Raises JarsMissing when there is no lock file."""
    if not path.exists():
        raise JarsMissing(f"{path} does not exist: run make setup from a complete checkout.")
    entries = tomllib.loads(path.read_text())["dependencies"]
    return tuple(
        LockedJar(
            name="-".join(
                part for part in (e["artifactId"], e["version"], e.get("classifier")) if part
            )
            + ".jar",
            sha256=e["sha256"],
        )
        for e in entries
    )


def sync(which: JarSet) -> None:
    """Fill the cache and check each jar against the lock. Cheap when the cache is complete."""
    try:
        _verify(which)
    except JarsMissing:
        _resolve(which)
        _verify(which)


def lock(which: JarSet) -> None:
    """Resolve again and write the lock file that belongs in the repository."""
    shutil.rmtree(folder_of(which), ignore_errors=True)
    _resolve(which)
    text = (folder_of(which) / "jgo.lock.toml").read_text()
    kept = [line for line in text.splitlines() if not line.startswith("generated = ")]
    _lock_path(which).write_text("\n".join(kept).rstrip() + "\n")


def _verify(which: JarSet) -> None:
    wanted = {jar.name: jar.sha256 for jar in read_lock(_lock_path(which))}
    for path in jar_paths(which):
        if hashlib.sha256(path.read_bytes()).hexdigest() != wanted[path.name]:
            raise JarsMissing(
                f"{path} is not the file that {_lock_path(which)} names: delete it and run "
                "make setup; when it happens again the source of the jar has changed it."
            )


def _resolve(which: JarSet) -> None:
    command = [sys.executable, "-m", "jgo", "-q", "--timeout", str(DOWNLOAD_TIMEOUT_S), "sync"]
    folder = _lock_path(which).parent  # jgo reads the jgo.toml of its working directory
    result = subprocess.run(
        [*command, "--force"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=RESOLVE_TIMEOUT_S,
        check=False,
    )
    if result.returncode != 0:
        output = (result.stderr or result.stdout)[-2000:]
        raise JarsMissing(f"jgo could not resolve {folder / 'jgo.toml'}: {output}")


def _lock_path(which: JarSet) -> Path:
    return project_root() / "jars" / which / "jgo.lock.toml"


def folder_of(which: JarSet) -> Path:
    """Return the folder of a set's jars."""
    return project_root() / ".cache" / "jars" / which


def main() -> None:
    actions = {"sync": sync, "lock": lock}
    if len(sys.argv) != 2 or sys.argv[1] not in actions:
        sys.exit(__doc__)
    try:
        for which in JarSet:
            actions[sys.argv[1]](which)
    except JarsMissing as missing:
        sys.exit(str(missing))


if __name__ == "__main__":
    main()
