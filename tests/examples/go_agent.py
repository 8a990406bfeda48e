"""Builds the agent in Go. Tests that need it are skipped if it cannot be built."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from stele.log.schemas import schema_folder

SOURCE = Path("examples/go_agent")
BINARY = Path("build/go_agent")
BUILD_S = 240
"""The first build compiles the Kafka client."""
MODULES_MISSING = ("dial tcp", "i/o timeout", "no such host", "module lookup disabled")


def go(*words: str) -> str:
    """Run Go in the agent's folder. Skip the test if Go or the modules are missing."""
    program = shutil.which("go")
    if program is None:
        pytest.skip("Go is missing: install 1.23 or newer")
    done = subprocess.run(
        [program, *words],
        cwd=SOURCE,
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
        env={**os.environ, "GOFLAGS": "-mod=readonly"},
    )
    output = done.stdout + done.stderr
    if done.returncode and "go.mod requires go >=" in output:
        pytest.skip(f"this Go is too old: {output.strip()[-200:]}")
    if done.returncode and any(each in output for each in MODULES_MISSING):
        pytest.skip(f"Go's modules cannot be downloaded: {output.strip()[-200:]}")
    assert done.returncode == 0, output
    return output


def command_line() -> tuple[str, ...]:
    """Build the agent if it has changed, and return its command line."""
    BINARY.parent.mkdir(exist_ok=True)
    # Other workers of this run build it too.
    mine = BINARY.with_name(f"{BINARY.name}-{os.getpid()}")
    go("build", "-o", str(mine.resolve()), ".")
    mine.replace(BINARY)
    return str(BINARY.resolve()), "--schemas", str(schema_folder())
