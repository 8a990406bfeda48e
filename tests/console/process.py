"""A console process for a server of the test."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stele_harness.stack.process import Program, spawn
from tests.polling import wait_until


@contextmanager
def console(metadata_log: str, folder: Path, **more: str) -> Iterator[str]:
    """Yield the address of the console. ``more`` adds variables."""
    given = {"STELE_METADATA_LOG_URLS": metadata_log, "STELE_HTTP_PORT": "0"}
    env = {**os.environ, **given, "STELE_INSTANCE_ID": "console", **more}
    argv = [sys.executable, "-m", "stele.console"]
    process = spawn(Program("console", argv, folder / "out", folder / "err", env=env))
    try:
        wait_until(process.stdout_of_this_run, "the console's announcement")
        yield json.loads(process.stdout_of_this_run())["http"]
    finally:
        process.stop()
