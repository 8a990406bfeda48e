"""A metadata-log process with a client of its HTTP API, for tests without an event loop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx

from stele.domain.model.requests import named
from tests.deployment.process import HTTP_TIMEOUT_S, PLAIN_HTTP, Service
from tests.polling import wait_until

DEADLINE_S = 240.0


class MetadataLog:
    """One metadata-log process."""

    def __init__(
        self, folder: Path, bootstrap: str, cluster: str, instance: str, **env: str
    ) -> None:
        self.instance = instance
        self.service = Service(
            "metadata_log",
            folder,
            {
                "STELE_CLUSTER": cluster,
                "STELE_KAFKA_BOOTSTRAP": bootstrap,
                "STELE_INSTANCE_ID": instance,
                "STELE_HTTP_PORT": "0",
                "STELE_FOUND": "auto",
                "STELE_DEVELOPMENT": "true",
                **env,
            },
        )
        self.http = httpx.Client()

    def start(self) -> MetadataLog:
        """Return once the process has announced its address."""
        self.service.start_now()
        self.http.close()
        self.http = httpx.Client(
            base_url=self.service.url, timeout=HTTP_TIMEOUT_S, verify=PLAIN_HTTP
        )
        return self

    def wait_healthy(self) -> MetadataLog:
        wait_until(
            lambda: self.http.get("/healthz").status_code == 200,
            "the service to be well",
            DEADLINE_S,
        )
        return self

    def wait_known(self) -> MetadataLog:
        """Wait until its announcement is in the log. It writes no other commands."""

        def known() -> bool:
            services = self.get("/v1/services", level="barrier")["services"]
            return f"metadata-log/{self.instance}" in {s["service_id"] for s in services}

        wait_until(known, "the service to announce itself", DEADLINE_S)
        return self

    def command(self, request_id: str = "", **command: Any) -> httpx.Response:
        """``request_id`` is the name of an id; without one the service makes an id."""
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
        self.service.kill()

    def stop(self) -> int | None:
        """Stop in an orderly way; the exit code. Raises AssertionError if the process does not end."""
        self.http.close()
        if not self.service.is_started:
            return None
        process = self.service.process
        process.terminate()
        code = process.wait(DEADLINE_S)
        if code is None:
            process.kill()
            raise AssertionError(f"{self.instance} did not end: {process.tail()}")
        return code

    def events(self, count: int, **headers: str) -> Iterator[dict[str, Any]]:
        """The first events of a stream: their data with the id of the event."""
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
    def __call__(self, instance: str = "ml-1", **env: str) -> MetadataLog: ...


@contextmanager
def instances(folder: Path, bootstrap: str, cluster: str) -> Iterator[Start]:
    """Start instances of a cluster, and stop them at the end. They have announced their addresses."""
    with ExitStack() as stack:

        def started(instance: str = "ml-1", **env: str) -> MetadataLog:
            service = MetadataLog(folder, bootstrap, cluster, instance, **env)
            stack.callback(service.stop)
            return service.start()

        yield started
