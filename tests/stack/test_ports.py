"""Ports are given out once, on the whole machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stele.stack import ports

ANOTHER_PROCESS = """
from stele.stack import ports
print(ports.free_port(), flush=True)
input()
"""


def test_a_port_that_another_process_was_given_is_not_free_though_nobody_listens_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ANOTHER_PROCESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        taken = int(other.stdout.readline())
        monkeypatch.setattr(ports, "FIRST_PORT", taken)
        monkeypatch.setattr(ports, "LAST_PORT", taken)
        with pytest.raises(ports.NoFreePort):
            ports.free_port()
        other.communicate("\n")
    assert ports.free_port() == taken
