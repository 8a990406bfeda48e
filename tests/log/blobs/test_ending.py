"""A process that has used S3 exits cleanly: no library thread outlives the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.servers import S3Server

RUNS = 6
"""One of four aborted, under load, while the library's own coroutines were used."""
ASKS = """
import asyncio, sys
from stele.log.blobs.folder import open_store
store = open_store(sys.argv[1], sys.argv[2])
asyncio.run(store.list())
"""


def test_process_that_used_s3_exits_cleanly(s3: S3Server) -> None:
    command = [sys.executable, "-c", ASKS, f"s3://{s3.new_bucket()}", s3.endpoint]
    env = {**os.environ, **s3.environment}
    for _ in range(RUNS):
        ran = subprocess.run(command, env=env, capture_output=True, timeout=240, check=False)
        assert (ran.returncode, ran.stderr) == (0, b"")
