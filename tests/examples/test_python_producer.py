"""A Python program with only Kafka's and Avro's libraries sends a command and reads its outcome."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from examples.python_producer.send_command import header_of, uuid7
from stele.log.schemas import load_schemas, schema_folder
from tests.deployment.process import services
from tests.examples.producers import check_one_outcome

PROGRAM = Path("examples/python_producer/send_command.py")
LIMIT_S = 240


def test_program_does_not_import_the_package() -> None:
    imported = re.findall(r"^(?:from|import) (\w+)", PROGRAM.read_text(), re.MULTILINE)
    assert "confluent_kafka" in imported and "stele" not in imported


def test_record_headers_and_request_ids_follow_the_contract() -> None:
    schemas = load_schemas()
    assert header_of(schemas.newest["Envelope"]) == schemas.headers["Envelope"]
    ids = [uuid.UUID(uuid7()) for _ in range(1000)]
    assert {(each.version, each.variant) for each in ids} == {(7, uuid.RFC_4122)}
    assert len({*ids}) == len(ids)


def test_missing_arguments_print_the_usage() -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 2
    assert "BOOTSTRAP CLUSTER SCHEMAS NAME VALUE" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.broker
async def test_python_program_sends_a_command_and_reads_its_outcome(
    kafka: str, topics: str, tmp_path: Path
) -> None:
    without_python_path = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH"
    }

    async def send(*arguments: str) -> tuple[int, list[str]]:
        words = [sys.executable, "-I", str(PROGRAM), kafka, topics, str(schema_folder())]
        done = await asyncio.to_thread(
            subprocess.run,
            [*words, *arguments],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            env=without_python_path,
        )
        lines = done.stdout.splitlines()
        assert lines, done.stderr[-2000:]
        return done.returncode, lines[-1].split()

    async with services(kafka, topics, "redis://127.0.0.1:1/0", tmp_path) as start:
        service = await start("metadata_log")
        await check_one_outcome(send, service)
        code, (_, *result) = await send("", "blue")
        assert (code, result[0]) == (1, "refused"), result
