"""Each free port is reserved by one process of the machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stele_harness.stack import ports

ANOTHER_PROCESS = """
from stele_harness.stack import ports
print(ports.free_port(), flush=True)
input()
"""


def test_port_reserved_by_another_process_is_not_free(
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


BEFORE = """
import sys
from pathlib import Path
from stele_harness.stack.ports import KeptPorts
kept = KeptPorts(Path(sys.argv[1]))
print(kept.give("n1"), kept.give("n2"), flush=True)
kept.save()
input()
"""


def test_servers_get_their_earlier_ports_if_free(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    with subprocess.Popen(
        [sys.executable, "-c", BEFORE, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as before:
        assert before.stdout is not None
        first, second = map(int, before.stdout.readline().split())
        before.communicate("\n")
    kept = ports.KeptPorts(file)
    assert kept.give("n2") == second
    assert kept.give("n3") not in (first, second)
    assert kept.give("n1") == first
    assert ports.KeptPorts(file).give("n1") != first, "it was given, and is to stay free"


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"n1": "x"}', b'{"n1": 80}', b'{"n1": -1}'])
def test_invalid_stored_ports_are_ignored(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "ports.json"
    file.write_bytes(content)
    kept = ports.KeptPorts(file)
    assert ports.FIRST_PORT <= kept.give("n1") <= ports.LAST_PORT
    kept.save()
    assert b"n1" in file.read_bytes()
