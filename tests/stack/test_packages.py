"""The wheel with the locked packages of router or agent is sufficient for them, and installs nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stele_harness.stack.jars import project_root

ROOT = project_root()
LIMIT_S = 240
UV = str(Path(sys.executable).parent / "uv")
TOO_MUCH = ("faust", "mode", "obstore", "pyspark", "redis", "sse_starlette")
"""Packages of services that clients and stores do not need."""
ROUTER_MIB, AGENT_MIB = 150, 160
"""Most of the size is numpy, librdkafka and the driver with the partitioner."""
MIB = 1024 * 1024

ROUTER = """
import stele.router.over_http, stele.router.over_kafka
from stele.log.schemas import load_schemas
from stele.router import http_router
assert "Epoch" in load_schemas().newest
"""
AGENT = """
from stele.agent import Row, run_store
from stele.log.schemas import load_schemas
assert len(load_schemas().by_header) > 5
"""


def run(*words: str, cwd: Path = ROOT) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STELE_")}
    done = subprocess.run(
        words,
        cwd=cwd,
        env={**clean, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy, since setuptools writes into the source folder."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("services", "schemas"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    run(
        UV,
        "build",
        "--wheel",
        "--no-build-isolation",
        "--quiet",
        "--python",
        sys.executable,
        cwd=folder,
    )
    (found,) = (folder / "dist").glob("*.whl")
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lock", "program", "limit_mib"), [("router", ROUTER, ROUTER_MIB), ("agent", AGENT, AGENT_MIB)]
)
def test_locked_packages_suffice_and_contain_nothing_else(
    wheel: Path, tmp_path: Path, lock: str, program: str, limit_mib: int
) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    run(UV, "venv", "--quiet", "--python", sys.executable, str(python.parents[1]))
    install = (UV, "pip", "install", "--quiet", "--python", str(python))
    run(*install, "--require-hashes", "-r", str(ROOT / "requirements" / f"{lock}.txt"))
    run(*install, "--no-deps", str(wheel))
    run(str(python), "-c", program, cwd=tmp_path)
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    assert not [name for name in TOO_MUCH if (packages / name).exists()]
    size_mib = sum(f.stat().st_size for f in packages.rglob("*") if f.is_file()) / MIB
    assert size_mib < limit_mib
