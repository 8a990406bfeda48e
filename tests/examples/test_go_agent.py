"""The agent in Go: its own tests. The kit and the clients of the store of sixty lines try what it does."""

from __future__ import annotations

import subprocess

import pytest

from tests.examples.go_agent import SOURCE, go


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_is_vetted_and_its_own_tests_pass() -> None:
    go("vet", "./...")
    assert "ok" in go("test", "./...")


@pytest.mark.slow
def test_it_is_formatted() -> None:
    go("version")
    done = subprocess.run(
        ["gofmt", "-l", "."], cwd=SOURCE, capture_output=True, text=True, timeout=90, check=True
    )
    assert done.stdout == ""
