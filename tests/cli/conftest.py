"""A small HTTP server with canned answers, and a fixture that runs the command line against it."""

from __future__ import annotations

import io
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from stele.cli.main import run


@dataclass(frozen=True)
class Asked:
    """A request that the server received."""

    method: str
    path: str
    query: dict[str, list[str]]
    body: bytes
    headers: dict[str, str]


@dataclass(frozen=True)
class Canned:
    status: int
    body: bytes
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


@dataclass
class Server:
    """Answers by method and path, in the given order. The last one is repeated."""

    url: str = ""
    answers: dict[tuple[str, str], deque[Canned]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)

    def answer(
        self, method: str, path: str, body: object, status: int = 200, **headers: str
    ) -> None:
        """Add an answer. Bytes are sent unchanged, anything else as JSON.

        Names of headers have underscores here.
        """
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
        kind = "application/octet-stream" if raw is body else "application/json"
        sent = tuple((name.replace("_", "-"), value) for name, value in headers.items())
        self.answers.setdefault((method, path), deque()).append(Canned(status, raw, kind, sent))

    def stream(self, path: str, text: str) -> None:
        canned = Canned(200, text.encode(), "text/event-stream")
        self.answers.setdefault(("GET", path), deque()).append(canned)

    def asked_for(self, path: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.path == path]

    def next_answer(self, asked: Asked) -> Canned:
        waiting = self.answers.get((asked.method, asked.path))
        if not waiting:
            missing = {"code": "not_found", "message": f"There is nothing at {asked.path}."}
            return Canned(404, msgspec.json.encode(missing))
        return waiting.popleft() if len(waiting) > 1 else waiting[0]


@pytest.fixture
def server() -> Iterator[Server]:
    """A running server without answers."""
    found = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("content-length", 0))
            headers = {key.lower(): value for key, value in self.headers.items()}
            body = self.rfile.read(length)
            asked = Asked(self.command, parts.path, parse_qs(parts.query), body, headers)
            found.asked.append(asked)
            canned = found.next_answer(asked)
            self.send_response(canned.status)
            self.send_header("content-type", canned.content_type)
            self.send_header("content-length", str(len(canned.body)))
            for header in canned.headers:
                self.send_header(*header)
            self.end_headers()
            self.wfile.write(canned.body)

        do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Suppress the log of requests."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    found.url = f"http://127.0.0.1:{http.server_port}"
    try:
        yield found
    finally:
        http.shutdown()
        thread.join(10)
        http.server_close()


@dataclass(frozen=True)
class Ran:
    """The result of a command line."""

    exit_code: int
    out: str
    err: str


@dataclass(frozen=True)
class Stele:
    """Runs ``stele`` with the server as every service: ``stele("status", "--json")``."""

    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> Ran:
        self.capsys.readouterr()
        code = run(arguments)
        captured = self.capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    def exits(self, code: int, *arguments: str) -> Ran:
        """Run a command line that ends with this exit code."""
        ran = self(*arguments)
        assert ran.exit_code == code, ran
        return ran

    def ok(self, *arguments: str) -> Ran:
        """Run a command line that succeeds."""
        return self.exits(0, *arguments)


@pytest.fixture
def stele(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Stele:
    monkeypatch.setenv("STELE_URL", server.url)
    monkeypatch.setenv("STELE_COORDINATOR_URLS", server.url)
    monkeypatch.setenv("STELE_SESSION_GUARD_URLS", f"{server.url}/guard")
    monkeypatch.setenv("STELE_TABLET_BALANCER_URLS", server.url)
    monkeypatch.setenv("STELE_ACTOR", "ada")
    monkeypatch.delenv("STELE_DIR", raising=False)
    # The server answers at once. A busy machine must not add notices about silence.
    monkeypatch.setattr("stele.cli.notice.SILENT_AFTER_S", 60.0)
    return Stele(capsys)


class Terminal(io.StringIO):
    """A text file that counts as a terminal."""

    def isatty(self) -> bool:
        return True


STATE_ID = "ab" * 16
NODES = [
    {
        "node_id": f"n{number}",
        "address": f"http://127.0.0.1:{number}",
        "dc": "dc1",
        "rack": f"r{number}",
        "num_tokens": 1,
        "state": "normal",
        "tokens": [token],
    }
    for number, token in ((1, -100), (2, 100))
]
ROWS = [
    {"start": -(2**63), "end": 0, "reads": ["n1"], "writes": ["n1", "n2"], "version": 2},
    {"start": 0, "end": -(2**63), "reads": ["n2"], "writes": ["n2"]},
]
KEYSPACE = {
    "keyspace_id": "id-1",
    "name": "library",
    "replication": {"dc1": 1},
    "placement": "dc1:1",
}
Rows = list[dict[str, Any]]


def cluster(
    server: Server,
    epoch: int = 7,
    *,
    nodes: Rows = NODES,
    requests: Rows = [],  # noqa: B006
    transitions: Rows = [],  # noqa: B006
    keyspaces: Rows = [KEYSPACE],  # noqa: B006
    tables: Rows | None = None,
) -> None:
    """Answer with one state: two members, a keyspace and a ring of two ranges."""
    topology = {
        **at(epoch),
        "cluster": "books",
        "cluster_id": "books/1",
        "log_id": "",
        "topology": {"version": 3, "fence_version": 2, "since_epoch": 6, "fence_epoch": 5},
        "coordinator": {"term": 2, "holder": "c-1"},
        "transitions": transitions,
    }
    placement = {"placement": "dc1:1", "keyspaces": ["library"], "ranges": len(ROWS), "rows": ROWS}
    server.answer("GET", "/v1/topology", topology)
    server.answer("GET", "/v1/nodes", {**at(epoch), "nodes": nodes})
    server.answer("GET", "/v1/requests", {**at(epoch), "requests": requests})
    server.answer("GET", "/v1/keyspaces", {**at(epoch), "keyspaces": keyspaces})
    if tables is not None:
        server.answer("GET", "/v1/tables", {**at(epoch), "tables": tables})
    server.answer("GET", "/v1/placements", {**at(epoch), **placement})
    for row in requests:
        carried = [t for t in transitions if row["request_id"] in request_ids(t)]
        transition = carried[0] if carried else None
        answer = {**at(epoch), "request": row, "transition": transition}
        server.answer("GET", f"/v1/requests/{row['request_id']}", answer)


def at(epoch: int) -> dict[str, Any]:
    return {"epoch": epoch, "state_id": STATE_ID}


def request(status: str, **more: object) -> dict[str, Any]:
    """Return a topology request of n3."""
    return {
        "request_id": "join-n3-1",
        "kind": "join",
        "node_id": "n3",
        "status": status,
        "submitted_epoch": 5,
        "submitted_at_ms": 1_000,
        **more,
    }


def transition(state: str, *request_ids: str, **more: object) -> dict[str, Any]:
    """Return the join of n3, and of n4 and so on if there are more requests."""
    subjects = [
        {"request_id": request_id, "node_id": f"n{3 + index}"}
        for index, request_id in enumerate(request_ids)
    ]
    return {
        "transition_id": request_ids[0],
        "kind": "join",
        "state": state,
        "entered_version": 3,
        "entered_epoch": 6,
        "subjects": subjects,
        **more,
    }


def request_ids(transition: dict[str, Any]) -> list[str]:
    return [subject["request_id"] for subject in transition["subjects"]]
