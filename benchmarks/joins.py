"""Four nodes that join: one after the other, at once as four transitions, and at once as one:
python -m benchmarks.joins [megabytes]

Each on a fresh cluster of three nodes on this machine, with a keyspace of replication factor 3 and so much data
in it. The ratio to the first is what counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from stele.cli.places import StackFile, read_stack_file
from stele.runtime.request_ids import new_request_id

VALUE_BYTES = 64 * 1024
WRITERS = 4
JOINING = 4
POLL_S = 0.05
LIMIT_S = 600.0
KEYSPACE = "library"


class Stack:
    """A cluster on this machine for the length of the block."""

    def __init__(self, directory: Path, group: int) -> None:
        self._directory = directory
        self._env = {**os.environ, "STELE_GROUP": str(group)}
        self.http = httpx.Client(timeout=30)

    def __enter__(self) -> Stack:
        self._stele("up", "--detach", "--without", "placements")
        return self

    def __exit__(self, *_: object) -> None:
        self._stele("down")
        self.http.close()

    def add_node(self, number: int) -> str:
        """A node that does not ask to join yet; its URL."""
        said = self._stele("add-node", "--no-join", "--rack", f"r{number % 3 + 1}")
        return said.split()[-1]

    def file(self) -> StackFile:
        found = read_stack_file(self._directory)
        assert found is not None
        return found

    def url(self, name: str) -> str:
        service = self.file().service(name)
        assert service is not None
        return service.url

    def command(self, **command: object) -> str:
        """Apply a command; its request id."""
        body = {"request_id": new_request_id(), "command": command}
        answer = self.http.post(f"{self.url('metadata-log')}/v1/commands", json=body)
        assert answer.json()["applied"], answer.text
        return str(body["request_id"])

    def join(self, address: str) -> str:
        known = self.http.get(f"{address}/v1/node").json()
        fields = ("node_id", "cluster", "address", "dc", "rack", "num_tokens", "host_id")
        return self.command(type="join", **{name: known[name] for name in fields})

    def wait(self, *request_ids: str) -> None:
        """Until they are done."""
        end_s = time.monotonic() + LIMIT_S
        for request_id in request_ids:
            while (status := self._status(request_id)) != "done":
                assert status in ("pending", "running"), f"{request_id} is {status}"
                assert time.monotonic() < end_s, f"{request_id} is {status} for {LIMIT_S:g} s"
                time.sleep(POLL_S)

    def _status(self, request_id: str) -> str:
        answer = self.http.get(f"{self.url('metadata-log')}/v1/requests/{request_id}").json()
        return str(answer["request"]["status"])

    def _stele(self, *arguments: str) -> str:
        argv = [
            sys.executable,
            "-m",
            "stele.cli",
            "stack",
            *arguments,
            "--dir",
            str(self._directory),
        ]
        done = subprocess.run(
            argv, env=self._env, capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def fill(stack: Stack, megabytes: int) -> None:
    value, url = os.urandom(VALUE_BYTES), f"{stack.url('n1')}/v1/data/{KEYSPACE}"

    def put(number: int) -> None:
        stack.http.put(f"{url}/k{number}", content=value).raise_for_status()

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(put, range(megabytes * 1024 * 1024 // VALUE_BYTES)))


def one_by_one(stack: Stack, addresses: list[str]) -> None:
    for address in addresses:
        stack.wait(stack.join(address))


def at_once(stack: Stack, addresses: list[str]) -> None:
    stack.wait(*[stack.join(address) for address in addresses])


def measured(
    group: int, join: Callable[[Stack, list[str]], None], megabytes: int
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="stele-joins-") as folder:
        with Stack(Path(folder) / "stack", group) as stack:
            stack.command(type="create_keyspace", name=KEYSPACE, replication={"dc1": 3})
            fill(stack, megabytes)
            addresses = [stack.add_node(number) for number in range(JOINING)]
            began_s = time.monotonic()
            join(stack, addresses)
            took_s = time.monotonic() - began_s
            held = [stack.http.get(f"{address}/v1/node").json()["keys"] for address in addresses]
    return {"seconds": round(took_s, 2), "keys_of_the_new": held}


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    ways = {
        "one after the other": (1, one_by_one),
        "at once, as four": (1, at_once),
        "at once, as one": (8, at_once),
    }
    found = {name: measured(group, join, megabytes) for name, (group, join) in ways.items()}
    base = found["one after the other"]["seconds"]
    for row in found.values():
        row["ratio"] = round(row["seconds"] / base, 2)
    print(json.dumps({"megabytes": megabytes, "joins": found}, indent=2))


if __name__ == "__main__":
    main()
