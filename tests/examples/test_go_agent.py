"""The tests of the agent in Go. The conformance kit and ``test_sixty_lines`` check its behaviour."""

from __future__ import annotations

import subprocess

import pytest

from tests.examples.go_agent import SOURCE, go


@pytest.mark.slow
def test_go_agent_passes_vet_and_its_tests() -> None:
    go("vet", "./...")
    assert "ok" in go("test", "./...")


@pytest.mark.slow
def test_go_agent_is_formatted() -> None:
    go("version")
    done = subprocess.run(
        ["gofmt", "-l", "."], cwd=SOURCE, capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stdout == ""
