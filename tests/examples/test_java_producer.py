"""A Java program with stock Avro and Kafka clients sends a command and reads its outcome."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from stele.log.schemas import schema_folder
from stele.runtime.java import find_java
from stele_harness.stack.jars import JarSet, classpath
from tests.deployment.process import services
from tests.examples.producers import check_one_outcome

PROGRAM = Path("examples/java_producer/SendCommand.java")
JAVAC = shutil.which("javac")


LIMIT_S = 240


async def run(*words: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run, words, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


@pytest.mark.broker
@pytest.mark.skipif(JAVAC is None, reason="javac is missing: install a JDK, 17 or newer")
async def test_java_program_sends_a_command_and_reads_its_outcome(
    kafka: str, topics: str, tmp_path: Path
) -> None:
    jars = classpath(JarSet.EXAMPLES)
    compiled = await run(
        str(JAVAC), "--release", "17", "-Xlint:all", "-cp", jars, "-d", str(tmp_path), str(PROGRAM)
    )
    assert compiled.returncode == 0, compiled.stderr

    words = [str(find_java().program), "-cp", f"{jars}{os.pathsep}{tmp_path}", "SendCommand"]
    without = await run(*words)
    assert (without.returncode, "BOOTSTRAP CLUSTER SCHEMAS" in without.stderr) == (2, True)

    async def send(*arguments: str) -> tuple[int, list[str]]:
        done = await run(*words, kafka, topics, str(schema_folder()), *arguments)
        lines = done.stdout.splitlines()
        assert lines, done.stderr[-2000:]
        return done.returncode, lines[-1].split()

    async with services(kafka, topics, "redis://127.0.0.1:1/0", tmp_path) as start:
        service = await start("metadata_log")
        await check_one_outcome(send, service)
