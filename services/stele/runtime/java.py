"""Find a Java runtime that the Kafka broker, or Spark, can use among those that are installed.

Standard library only: `make setup` runs this file before anything is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VERSION_TIMEOUT_S = 20.0  # `java -version` takes 0.1 s; a cold disk needs more

INSTALLED = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/*jdk*",
    "~/.sdkman/candidates/java/*",
    "~/.asdf/installs/java/*",
    "~/.jdks/*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*",
    "/usr/local/opt/openjdk*",
)
"""Places used by distributions, version managers and macOS."""


@dataclass(frozen=True, slots=True)
class Need:
    """The Java versions that a program needs, and the modules that some runtimes lack."""

    who: str
    oldest: int
    newest: int | None = None
    modules: tuple[str, ...] = ()

    def text(self) -> str:
        if self.newest is None:
            return f"Java {self.oldest} or newer"
        return f"Java {self.oldest} to {self.newest}"

    def hint(self) -> str:
        """Return the text on what to install."""
        what = "version 17 or 21" if self.newest else f"version {self.oldest} or newer"
        return (
            f"Install a Java runtime, {what} "
            "(Debian and Ubuntu: apt-get install openjdk-17-jre-headless; "
            "macOS: brew install openjdk@17), or point JAVA_HOME to one."
        )


SILENT = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
"""Silences messages on classes that could not be cached or used."""

KAFKA = Need("Kafka", 17)
SPARK = Need("Spark", 17, 21, ("jdk.incubator.vector",))
"""Newer ones lack `Subject.getSubject`, which Hadoop calls. Spark's launcher needs the module."""


@dataclass(frozen=True, slots=True)
class Java:
    """A usable runtime.

    ``passed_over`` lists runtimes that were found earlier, with the reason for each.
    """

    program: Path
    version: int
    passed_over: tuple[str, ...] = ()

    @property
    def home(self) -> Path:
        """Value of JAVA_HOME for this runtime."""
        return self.program.resolve().parent.parent

    def note(self, need: Need) -> str:
        """Return a note on which runtime is used; empty when it is the first one found."""
        if not self.passed_over:
            return ""
        return (
            f"{need.who} runs on Java {self.version} of {self.home}: {', '.join(self.passed_over)}."
        )


def classes_of(java: Java, jars: Path) -> Path:
    """Return the path of the cached classes that a start loads (``stele_harness.stack.classes``)."""
    return jars / f"classes-{java.version}.jsa"


def with_classes_of(java: Java, jars: Path) -> tuple[str, ...]:
    """Return options that map the cached classes, which halves a start.

    A JVM that cannot use them ignores them.
    """
    kept = classes_of(java, jars)
    return (f"-XX:SharedArchiveFile={kept}", *SILENT) if kept.exists() else ()


class JavaMissing(Exception):
    """No usable Java was found. The text lists what to install."""


def find_java(need: Need = KAFKA) -> Java:
    """Search JAVA_HOME, then PATH, then the usual places. Raises JavaMissing."""
    rejected: list[str] = []
    for candidate in _candidates():
        version = java_version(candidate)
        if reason := _unfit(need, candidate, version):
            rejected.append(reason)
            continue
        assert version is not None
        return Java(candidate, version, tuple(rejected))
    found = f" Found: {', '.join(rejected)}." if rejected else ""
    raise JavaMissing(f"{need.who} needs {need.text()}: no such Java.{found} {need.hint()}")


def _unfit(need: Need, java: Path, version: int | None) -> str:
    """Return why a runtime cannot be used; empty if it can."""
    if version is None:
        return f"{java} is version unknown"
    if version < need.oldest or (need.newest is not None and version > need.newest):
        return f"{java} is version {version}"
    if need.modules and _asked(java, f"--add-modules={','.join(need.modules)}") is None:
        return f"{java} is version {version} without {', '.join(need.modules)}"
    return ""


def java_version(java: Path) -> int | None:
    """Return the major version of a `java` executable; None when it does not run (macOS has such
    a stub).
    """
    # "17.0.15", "21-ea" and, before Java 9, "1.8.0_402"
    match = re.search(r'version "(?:1\.)?(\d+)', _asked(java) or "")
    return int(match.group(1)) if match else None


def _asked(java: Path, *options: str) -> str | None:
    """Return its version output with these options; None when it does not run."""
    try:
        result = subprocess.run(
            [str(java), *options, "-version"],
            capture_output=True,
            text=True,
            timeout=VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stderr + result.stdout if result.returncode == 0 else None


def _candidates() -> Iterator[Path]:
    """Yield each program once, however many names it has."""
    seen = set[Path]()
    for path in _places():
        if path.exists() and path.resolve() not in seen:
            seen.add(path.resolve())
            yield path


def _places() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield Path(on_path)
    for pattern in INSTALLED:
        root = Path(pattern).expanduser()
        anchor = Path(root.anchor)
        for found in sorted(anchor.glob(str(root.relative_to(anchor)))):
            yield found / "bin" / "java"


def main() -> int:
    """Entry point of `make setup`: without Java for the broker it fails, without one for Spark
    it prints a note.
    """
    try:
        for need in (KAFKA, SPARK):
            if note := find_java(need).note(need):
                print(note)
    except JavaMissing as missing:
        print(missing, file=sys.stderr)
        if missing.args[0].startswith(KAFKA.who):
            return 1
        print("Without it: stele stack up --without placements; no demo.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
