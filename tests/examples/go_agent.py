"""The agent in Go as a program, built once; a test that needs it is skipped where it cannot be built."""

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
    """Run Go in the agent's folder. Skips the test where there is no Go, or its modules cannot be had."""
    program = shutil.which("go")
    if program is None:
        pytest.skip("there is no Go here: install 1.23 or newer")
    done = subprocess.run(
        [program, *words],
        cwd=SOURCE,
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
        env={**os.environ, "GOFLAGS": "-mod=readonly"},
    )
    said = done.stdout + done.stderr
    if done.returncode and "go.mod requires go >=" in said:
        pytest.skip(f"Go here is too old: {said.strip()[-200:]}")
    if done.returncode and any(each in said for each in MODULES_MISSING):
        pytest.skip(f"Go's modules cannot be had here: {said.strip()[-200:]}")
    assert done.returncode == 0, said
    return said


def command_line() -> tuple[str, ...]:
    """Return the command line of the agent, which is built if it has changed."""
    BINARY.parent.mkdir(exist_ok=True)
    mine = BINARY.with_name(
        f"{BINARY.name}-{os.getpid()}"
    )  # other workers of this run build it too
    go("build", "-o", str(mine.resolve()), ".")
    mine.replace(BINARY)
    return str(BINARY.resolve()), "--schemas", str(schema_folder())
