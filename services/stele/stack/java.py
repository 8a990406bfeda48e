"""Find a Java runtime that is new enough for the Kafka broker and for Spark.

Standard library only: `make setup` runs this file before anything is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

MINIMUM_JAVA_VERSION = 17  # Kafka 4 brokers and Spark 4 both ask for it
VERSION_TIMEOUT_S = 20.0  # `java -version` takes 0.1 s; a cold disk needs more

INSTALL_HINT = (
    f"Install a Java runtime, version {MINIMUM_JAVA_VERSION} or newer "
    "(Debian and Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17), "
    "or point JAVA_HOME to one."
)


class JavaMissing(Exception):
    """No usable Java; the text says what to install."""


def find_java() -> Path:
    """The `java` to use: JAVA_HOME first, then PATH. Raises JavaMissing."""
    rejected: list[str] = []
    for candidate in _candidates():
        version = java_version(candidate)
        if version is not None and version >= MINIMUM_JAVA_VERSION:
            return candidate
        rejected.append(f"{candidate} is version {version or 'unknown'}")
    found = f" Found: {', '.join(rejected)}." if rejected else ""
    raise JavaMissing(f"No Java {MINIMUM_JAVA_VERSION} or newer.{found} {INSTALL_HINT}")


def java_version(java: Path) -> int | None:
    """Major version of a `java` executable, None when it does not run (macOS has such a stub)."""
    try:
        result = subprocess.run(
            [str(java), "-version"],
            capture_output=True,
            text=True,
            timeout=VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # "17.0.15", "21-ea" and, before Java 9, "1.8.0_402"
    match = re.search(r'version "(?:1\.)?(\d+)', result.stderr + result.stdout)
    return int(match.group(1)) if match and result.returncode == 0 else None


def _candidates() -> list[Path]:
    found: list[Path] = []
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        found.append(Path(home) / "bin" / "java")
    on_path = shutil.which("java")
    if on_path:
        found.append(Path(on_path))
    return found


if __name__ == "__main__":
    try:
        find_java()
    except JavaMissing as missing:
        sys.exit(str(missing))
