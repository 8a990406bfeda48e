"""The peer: one etcd from PATH over a fresh directory, asked through its HTTP gateway."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stele_harness.stack.ports import LOOPBACK, free_port
from stele_harness.stack.process import Program, spawn

READY_S = 20.0
POLL_S = 0.1


def etcd_version() -> str:
    """The first line of `etcd --version`, empty when there is no etcd on PATH."""
    program = shutil.which("etcd")
    if program is None:
        return ""
    said = subprocess.run(
        [program, "--version"], capture_output=True, text=True, check=False, timeout=10
    )
    return said.stdout.splitlines()[0] if said.stdout else "etcd"


@contextmanager
def etcd(directory: Path) -> Iterator[str]:
    """The address of a running etcd, with its defaults: every commit is synced to disk."""
    program = shutil.which("etcd")
    assert program is not None, "etcd_version() first"
    client, peer = (f"http://{LOOPBACK}:{free_port()}" for _ in range(2))
    argv = [
        program,
        f"--data-dir={directory / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
    ]
    log = directory / "etcd.log"
    env = {**os.environ, "ETCD_UNSUPPORTED_ARCH": os.uname().machine}
    process = spawn(Program("etcd", argv, log, log, env))
    try:
        _wait_ready(client)
        yield client
    finally:
        process.stop()


def _wait_ready(url: str) -> None:
    end_s = time.monotonic() + READY_S
    while time.monotonic() < end_s:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=1) as answer:
                if b"true" in answer.read():
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(POLL_S)
    raise TimeoutError(f"etcd at {url} was not well within {READY_S:g} s")
