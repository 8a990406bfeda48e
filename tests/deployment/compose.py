"""A deployment in the containers of the compose file: up, down, faults, its HTTP API and its logs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stele.domain.model.requests import named
from stele_harness.stack.ports import LOOPBACK, free_port
from tests.deploy.docker_host import NoDocker, compose_command
from tests.polling import wait_until

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "stele-deploy-test"
BASE_IMAGES = (
    "apache/kafka:4.3.1",
    "redis:7.0-bookworm",
    "python:3.11-slim-bookworm",
    "eclipse-temurin:17-jre",
    "prom/prometheus:v2.42.0",
)
CONTROL_PLANE = (
    "metadata-log-1",
    "metadata-log-2",
    "coordinator-1",
    "coordinator-2",
    "session-guard",
    "tablet-balancer",
    "console",
    "catch-up-1",
    "catch-up-2",
    "catch-up-3",
)
FILES = ("docker-compose.yml", "infra/compose.kafka.yml")
BROKERS = ("kafka-1", "kafka-2", "kafka-3")
PULL_TIMEOUT_S = 120
BASE_BUILD_TIMEOUT_S = 600
BUILD_TIMEOUT_S = 900  # PySpark is 450 MB
UP_TIMEOUT_S = 300
CALL_TIMEOUT_S = 180
HTTP_TIMEOUT_S = 240.0
POLL_S = 0.2
SHORT_POLL_S = 0.01  # for what lasts a second


class CommandFailed(Exception):
    """Raised when a command of Docker fails; the text holds its output."""


def run(*command: str, timeout_s: float = CALL_TIMEOUT_S, env: dict[str, str] | None = None) -> str:
    """Standard output of a command. Raises CommandFailed."""
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(f"{' '.join(command)} did not end in {timeout_s} s") from error
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-4000:]
        raise CommandFailed(f"{' '.join(command)} ended with {done.returncode}:\n{said}")
    return done.stdout


def provide_base_images() -> None:
    """Pull the base images, or build them of Debian packages without a registry. Raises NoDocker."""
    missing = [name for name in BASE_IMAGES if not has_image(name)]
    try:
        for name in missing:
            run("docker", "pull", "--quiet", name, timeout_s=PULL_TIMEOUT_S)
    except CommandFailed as no_registry:
        if os.geteuid() != 0 or shutil.which("debootstrap") is None:
            raise NoDocker(
                f"no registry has {missing[0]}, and building it takes root and debootstrap"
            ) from no_registry
        run(str(ROOT / "infra" / "base-images" / "build"), timeout_s=BASE_BUILD_TIMEOUT_S)


def _say_something(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("now\n")
    process.stdin.flush()


def has_image(name: str) -> bool:
    try:
        run("docker", "image", "inspect", name)
    except CommandFailed:
        return False
    return True


class ComposeDeployment:
    """One compose project with its own names, volumes and ports; its brokers are published."""

    def __init__(self) -> None:
        command = compose_command()
        assert command is not None, "docker_daemon() first"
        self._compose = [*command, *(part for name in FILES for part in ("--file", name))]
        self.port = free_port()
        self.console_port = free_port()
        self.broker_ports = {name: free_port() for name in BROKERS}
        self._env = {
            **os.environ,
            "COMPOSE_PROJECT_NAME": PROJECT,
            "STELE_API_PORT": str(self.port),
            "STELE_CONSOLE_PORT": str(self.console_port),
            **{
                f"{name.upper().replace('-', '_')}_PORT": str(port)
                for name, port in self.broker_ports.items()
            },
            "STELE_VERSION": "deploy-test",
        }

    # ------------------------------------------------------------------------------- life cycle

    def compose(
        self, *arguments: str, timeout_s: float = CALL_TIMEOUT_S, profiles: str = "nodes"
    ) -> str:
        env = {**self._env, "COMPOSE_PROFILES": profiles}
        return run(*self._compose, *arguments, timeout_s=timeout_s, env=env)

    def build(self) -> None:
        """Build the images, unless STELE_TEST_BUILD is `no`, which is for work on the tests themselves."""
        if os.environ.get("STELE_TEST_BUILD") != "no":
            self.compose("build", timeout_s=BUILD_TIMEOUT_S)

    def up(self, *services: str) -> None:
        """Start, and wait until every container is healthy."""
        self.compose("up", "--detach", *services, timeout_s=UP_TIMEOUT_S)
        self.wait_healthy()

    def add(self, profile: str, service: str) -> None:
        """Start one service of another profile without touching the others."""
        arguments = ("up", "--detach", "--no-build", "--no-recreate", "--no-deps", service)
        self.compose(*arguments, timeout_s=UP_TIMEOUT_S, profiles=f"nodes,{profile}")

    def down(self) -> None:
        """Remove containers, network and volumes of all profiles."""
        arguments = ("down", "--volumes", "--remove-orphans")
        self.compose(
            *arguments, timeout_s=UP_TIMEOUT_S, profiles="nodes,grow,observability,analytics"
        )

    def wait_healthy(self, deadline_s: float = 120.0) -> None:
        def all_healthy() -> bool:
            return not self._unhealthy()

        try:
            self.until(all_healthy, "every container to be healthy", deadline_s)
        except AssertionError as error:
            said = "\n".join(f"{n}: {self.logs(n)[-1500:]}" for n in self._unhealthy())
            raise AssertionError(f"{error}\n{said}") from None

    def is_healthy(self, service: str) -> bool:
        return service not in self._unhealthy()

    def _unhealthy(self) -> list[str]:
        """Services that are not healthy; `topics` must have ended with 0 instead."""
        bad: list[str] = []
        for name, state in self.states().items():
            if name == "topics":
                good = state["Status"] == "exited" and state["ExitCode"] == 0
            else:
                good = state.get("Health", {}).get("Status") == "healthy"
            if not good:
                bad.append(name)
        return bad

    # -------------------------------------------------------------------------------- containers

    def containers(self) -> dict[str, dict[str, Any]]:
        """The output of `docker inspect` by service, also for stopped containers."""
        label = f"label=com.docker.compose.project={PROJECT}"
        ids = run("docker", "ps", "--all", "--quiet", "--filter", label).split()
        if not ids:
            return {}
        found = json.loads(run("docker", "inspect", *ids))
        return {c["Config"]["Labels"]["com.docker.compose.service"]: c for c in found}

    def states(self) -> dict[str, dict[str, Any]]:
        return {name: c["State"] for name, c in self.containers().items()}

    def container(self, service: str) -> str:
        return str(self.containers()[service]["Id"])

    def kill(self, service: str) -> None:
        """Send SIGKILL to the container, which stays down until `start`."""
        run("docker", "kill", self.container(service))

    def start(self, service: str) -> None:
        run("docker", "start", self.container(service))

    @contextmanager
    def ready_to_crash(self, service: str) -> Iterator[Callable[[], None]]:
        """A trigger that kills the process in the container; the restart policy must start it again."""
        code = "echo ready; read -r; kill -9 $(cat /proc/1/task/1/children)"
        waiting = subprocess.Popen(
            ["docker", "exec", "--interactive", self.container(service), "bash", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "ready\n", service
        try:
            yield lambda: _say_something(waiting)
        finally:
            waiting.communicate(timeout=CALL_TIMEOUT_S)

    def restarts(self, service: str) -> int:
        return int(self.containers()[service]["RestartCount"])

    def python(self, service: str, code: str, *arguments: str) -> str:
        """Standard output of Python code in the container of a service."""
        return run("docker", "exec", self.container(service), "python", "-c", code, *arguments)

    def logs(self, service: str) -> str:
        done = subprocess.run(
            ["docker", "logs", self.container(service)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=CALL_TIMEOUT_S,
            check=True,
        )
        return done.stdout

    @property
    def bootstrap(self) -> str:
        """Bootstrap servers for a client outside of the containers."""
        return ",".join(f"{LOOPBACK}:{port}" for port in self.broker_ports.values())

    def in_a_container(self, *command: str) -> str:
        """Standard output of a command in a container that ends with it."""
        arguments = ("run", "--rm", "--no-deps", "-T", "topics", *command)
        return self.compose(*arguments, timeout_s=UP_TIMEOUT_S)

    def stele(self, *command: str) -> str:
        return self.in_a_container("stele", *command)

    @contextmanager
    def once(self, service: str, *settings: str) -> Iterator[None]:
        """Run a service with more settings inside the block, in place of its container; end it with Ctrl-C."""
        given = [part for setting in settings for part in ("-e", setting)]
        arguments = ("run", "--rm", "--no-deps", "--use-aliases", "-T", *given, service)
        running = subprocess.Popen(
            [*self._compose, *arguments],
            cwd=ROOT,
            env={**self._env, "COMPOSE_PROFILES": "nodes"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )
        try:
            yield
        finally:
            os.killpg(running.pid, signal.SIGINT)
            said, _ = running.communicate(timeout=CALL_TIMEOUT_S)
            note(f"{service} with {', '.join(settings)} said: {said[-1500:]}")

    def analytics(self, *command: str) -> str:
        """Standard output of a command in a container that can read the tables."""
        arguments = ("run", "--rm", "-T", "analytics", *command)
        return self.compose(*arguments, timeout_s=UP_TIMEOUT_S, profiles="nodes,analytics")

    # --------------------------------------------------------------------------------------- API

    def state(self, level: str = "local") -> dict[str, Any]:
        found = self._call("GET", f"/v1/state?level={level}")
        assert isinstance(found, dict)
        return found

    def submit(self, name: str, command: dict[str, Any]) -> dict[str, Any]:
        """The outcome of a command, repeated under one id until a metadata-log answers."""
        request_id = named(name)
        body = {"request_id": request_id, "actor": "deploy test", "command": command}
        answers: list[dict[str, Any]] = []

        def answered() -> bool:
            answers.append(self._call("POST", "/v1/commands", body))
            return True

        self.until(answered, f"an outcome of {request_id}")
        return answers[-1]

    def has_keyspace(self, name: str, nodes: Sequence[str]) -> None:
        """Create a keyspace with a replica on each of these nodes, once they are the members."""
        members = dict.fromkeys(nodes, "normal")
        self.until(lambda: self.node_states() == members, f"{len(nodes)} members", 90.0)
        command = {"type": "create_keyspace", "name": name, "replication": {"dc1": len(nodes)}}
        assert self.submit(f"keyspace-{name}", command)["applied"]

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            f"http://{LOOPBACK}:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=HTTP_TIMEOUT_S) as answer:
            return json.load(answer)

    def epochs(self, first: int) -> list[dict[str, Any]]:
        found = self._call("GET", f"/v1/epochs?from={first}&limit=1000")
        assert isinstance(found, list)
        return found

    def status_of(self, request_id: str) -> str:
        return str(self._call("GET", f"/v1/requests/{request_id}")["request"]["status"])

    def node_states(self) -> dict[str, str]:
        return {node["node_id"]: node["state"] for node in self.state()["nodes"]}

    def positions(self, services: Sequence[str]) -> dict[str, dict[str, Any]]:
        """`/v1/position` of each service, requested from inside the network."""
        code = (
            "import json,sys,urllib.request as u\n"
            "print(json.dumps({s: json.load(u.urlopen(f'http://{s}:8080/v1/position', timeout=60))"
            " for s in sys.argv[1:]}))"
        )
        found = json.loads(self.python("metadata-log-2", code, *services))
        assert isinstance(found, dict)
        return found

    # ------------------------------------------------------------------------------------ waiting

    def until(
        self,
        condition: Callable[[], object],
        what: str,
        deadline_s: float = 60.0,
        poll_s: float = POLL_S,
    ) -> None:
        """Poll; errors of a service that is away count as not yet."""
        away = (OSError, CommandFailed, ValueError)
        wait_until(condition, what, deadline_s, poll_s=poll_s, tolerate=away)


@contextmanager
def deployed(*services: str) -> Iterator[ComposeDeployment]:
    """All services, or these and their dependencies, healthy inside the block."""
    found = ComposeDeployment()
    try:
        found.down()  # what an interrupted run has left
        note("building the images")
        found.build()
        note("starting everything")
        found.up(*services)
        note("everything is healthy")
        yield found
    finally:
        found.down()


class LoadClient:
    """The load of `container_load.py`, in a container on the network of the deployment."""

    def __init__(self, deployment: ComposeDeployment) -> None:
        script = Path(__file__).with_name("container_load.py")
        urls = ",".join(f"http://metadata-log-{n}:8080" for n in (2, 1))
        self._process = subprocess.Popen(
            [
                "docker", "run", "--rm", "--interactive",
                "--name", f"{PROJECT}-load",
                "--network", f"{PROJECT}_stele",
                "--env", f"STELE_METADATA_LOG_URLS={urls}",
                "--volume", f"{script}:/load.py:ro",
                "--volume", f"{ROOT}/tests/harness/stele_harness:/harness/stele_harness:ro",
                "--env", "PYTHONPATH=/opt/stele/lib:/harness",
                "stele/services:deploy-test", "python", "/load.py",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        first = self._process.stdout.readline()
        assert first == "started\n", f"the load client said {first!r}"

    def stop(self) -> dict[str, Any]:
        """Stop the load; its account, after every key was read back through every member."""
        out, _ = self._process.communicate(timeout=CALL_TIMEOUT_S * 2)
        account = json.loads(out)
        assert isinstance(account, dict)
        return account

    def kill(self) -> None:
        if self._process.poll() is None:
            subprocess.run(
                ["docker", "rm", "--force", f"{PROJECT}-load"],
                capture_output=True,
                timeout=CALL_TIMEOUT_S,
                check=False,
            )
            self._process.wait(CALL_TIMEOUT_S)


def note(text: str) -> None:
    """Print a line of progress, which pytest shows with -s and in failures."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')}  {text}\n")
