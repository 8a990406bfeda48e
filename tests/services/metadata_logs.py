"""metadata-log as a real process, for tests: started on a free port, asked over HTTP, killed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx

from stele.domain.requests.ids import named
from stele.stack.process import Command, Process
from tests import forked
from tests.polling import wait_until
from tests.services.processes import PLAIN_HTTP

DEADLINE_S = 90.0


class Service:
    """One metadata-log process."""

    def __init__(
        self, folder: Path, bootstrap: str, cluster: str, instance: str, **env: str
    ) -> None:
        self.instance = instance
        self._stdout = folder / f"{instance}.out"
        self._stderr = folder / f"{instance}.err"
        self._env = {
            **os.environ,
            "STELE_CLUSTER": cluster,
            "STELE_KAFKA_BOOTSTRAP": bootstrap,
            "STELE_INSTANCE_ID": instance,
            "STELE_HTTP_PORT": "0",
            "STELE_FOUND": "auto",
            **env,
        }
        self._process: Process | None = None
        self.http = httpx.Client(timeout=90, verify=PLAIN_HTTP)

    def start(self) -> Service:
        """Returns once the process announced its address."""
        argv = [sys.executable, "-m", "stele.metadata_log"]
        command = Command(self.instance, argv, self._stdout, self._stderr, self._env)
        self._process = forked.start(command)
        wait_until(self._announced, f"{self.instance} to announce itself", DEADLINE_S)
        url = json.loads(self._process.stdout_of_this_run())["http"]
        self.http.close()
        self.http = httpx.Client(base_url=url, timeout=90, verify=PLAIN_HTTP)
        return self

    def _announced(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._stderr.read_text()[-3000:]
        return self._process.stdout_of_this_run().endswith("\n")

    def wait_healthy(self) -> Service:
        wait_until(
            lambda: self.http.get("/healthz").status_code == 200,
            "the service to be well",
            DEADLINE_S,
        )
        return self

    def wait_known(self) -> Service:
        """Until its announcement is in the log: it writes no more of its own after that."""

        def known() -> bool:
            services = self.get("/v1/services", level="barrier")["services"]
            return f"metadata-log/{self.instance}" in {s["service_id"] for s in services}

        wait_until(known, "the service to announce itself", DEADLINE_S)
        return self

    def command(self, request_id: str = "", **command: Any) -> httpx.Response:
        """``request_id`` is a name of the id; without one the service makes an id."""
        given = named(request_id) if request_id else ""
        return self.http.post("/v1/commands", json={"request_id": given, "command": command})

    def set(self, name: str, value: str, request_id: str = "") -> dict[str, Any]:
        answer = self.command(request_id, type="set_setting", name=name, value=value)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def get(self, path: str, **params: Any) -> Any:
        answer = self.http.get(path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()

    def stop(self) -> int | None:
        """An orderly end; the exit code."""
        self.http.close()
        if self._process is None:
            return None
        self._process.terminate()
        code = self._process.wait(DEADLINE_S)
        if code is None:
            self._process.kill()
            raise AssertionError(f"{self.instance} did not end: {self._process.tail()}")
        return code

    def events(self, count: int, **headers: str) -> Iterator[dict[str, Any]]:
        """The first events of a stream: data, with the event's id beside."""
        path = headers.pop("path", "/v1/epochs")
        accept = {"Accept": "text/event-stream", **headers}
        with self.http.stream("GET", path, headers=accept, timeout=DEADLINE_S) as answer:
            assert answer.status_code == 200
            event = dict[str, str]()
            for line in answer.iter_lines():
                name, _, value = line.partition(": ")
                if line:
                    event[name] = value
                elif "data" in event:
                    yield {"id": int(event["id"]), **json.loads(event["data"])}
                    event = {}
                    count -= 1
                    if count == 0:
                        return


class Start(Protocol):
    def __call__(self, instance: str = "ml-1", **env: str) -> Service: ...


@contextmanager
def instances(folder: Path, bootstrap: str, cluster: str) -> Iterator[Start]:
    """Starts instances of a cluster, and ends them. They have told their address; see ``wait_healthy``."""
    with ExitStack() as stack:

        def started(instance: str = "ml-1", **env: str) -> Service:
            service = Service(folder, bootstrap, cluster, instance, **env)
            stack.callback(service.stop)
            return service.start()

        yield started
