"""A Docker daemon for the deployment tests: a running one, or a private one.

On a Debian machine with root and without Docker, the packages are installed and a daemon runs during the
tests. Elsewhere the tests are skipped with a reason.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PACKAGES = ("docker.io", "debootstrap", "docker-compose", "iptables")
INSTALL_TIMEOUT_S = 300  # 120 MB of packages over a slow connection
ANSWER_TIMEOUT_S = 10
START_DEADLINE_S = 90.0
STOP_DEADLINE_S = 60.0
POLL_S = 0.2
ENDED_WITH_US = ("setpriv", "--pdeathsig", "TERM")
STORAGE_DRIVERS = ("overlay2", "vfs")  # vfs works everywhere, but copies every layer


class NoDocker(Exception):
    """The deployment cannot be tested here, for this reason."""


@contextmanager
def docker_daemon() -> Iterator[None]:
    """Ensure that a daemon answers inside the block. Raises NoDocker."""
    if os.environ.get("STELE_TEST_DOCKER") == "no":
        raise NoDocker("STELE_TEST_DOCKER=no")
    if daemon_answers():
        if compose_command() is None:
            raise NoDocker("Docker answers, but there is neither docker compose nor docker-compose")
        yield
        return
    if not Path("/etc/debian_version").exists() or os.geteuid() != 0:
        raise NoDocker("no Docker daemon answers, and only root on Debian can install one here")
    if not (shutil.which("dockerd") and shutil.which("debootstrap") and compose_command()):
        _install()
    with _own_daemon():
        yield


def daemon_answers() -> bool:
    docker = shutil.which("docker")
    if docker is None:
        return False
    try:
        found = subprocess.run(
            [docker, "info"], capture_output=True, timeout=ANSWER_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return found.returncode == 0 and b"ERROR" not in found.stdout


def compose_command() -> list[str] | None:
    """Return the command of Compose v2 if Docker has it, otherwise docker-compose."""
    docker = shutil.which("docker")
    if docker is not None:
        found = subprocess.run(
            [docker, "compose", "version"],
            capture_output=True,
            timeout=ANSWER_TIMEOUT_S,
            check=False,
        )
        if found.returncode == 0:
            return [docker, "compose"]
    classic = shutil.which("docker-compose")
    return None if classic is None else [classic]


def _install() -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *PACKAGES],
    ):
        try:
            done = subprocess.run(
                command,
                env=environment,
                capture_output=True,
                text=True,
                timeout=INSTALL_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise NoDocker(f"{' '.join(command)} did not end in {INSTALL_TIMEOUT_S} s") from error
        if done.returncode != 0:
            raise NoDocker(f"{' '.join(command)} failed: {done.stderr[-500:]}")


@contextmanager
def _own_daemon() -> Iterator[None]:
    """Start a daemon on a private socket, on which no other program depends."""
    dockerd = shutil.which("dockerd")
    if dockerd is None:
        raise NoDocker("the package docker.io has no dockerd")
    said = []
    given = os.environ.get("DOCKER_HOST")
    with tempfile.TemporaryDirectory(prefix="stele-docker-", ignore_cleanup_errors=True) as folder:
        os.environ["DOCKER_HOST"] = f"unix://{folder}/docker.sock"
        try:
            for driver in STORAGE_DRIVERS:
                log = Path(folder) / f"{driver}.log"
                process = _spawn(dockerd, driver, Path(folder), log)
                try:
                    if _answers_in_time(process):
                        yield
                        return
                    said.append(f"{driver}: {log.read_text()[-800:]}")
                finally:
                    _end(process)
        finally:
            del os.environ["DOCKER_HOST"]
            if given is not None:
                os.environ["DOCKER_HOST"] = given
    raise NoDocker("a Docker daemon does not start here: " + "\n".join(said))


def _spawn(dockerd: str, driver: str, folder: Path, log: Path) -> subprocess.Popen[bytes]:
    """Its images stay in the folder of Docker for the next run.

    If the test process dies, the daemon stops its containers and ends.
    """
    options = {
        "--host": os.environ["DOCKER_HOST"],
        "--pidfile": str(folder / "docker.pid"),
        "--exec-root": str(folder / "exec"),
        "--storage-driver": driver,
    }
    with log.open("wb") as out:
        return subprocess.Popen(
            [*ENDED_WITH_US, dockerd, *(part for pair in options.items() for part in pair)],
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _answers_in_time(process: subprocess.Popen[bytes]) -> bool:
    end = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < end and process.poll() is None:
        if daemon_answers():
            return True
        time.sleep(POLL_S)
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
