"""Servers for the tests, each found or started once a run, however many workers it has.

Kafka: `STELE_TEST_KAFKA` (bootstrap servers), else a container when Docker answers and the image
is there already, else a broker on the local JVM. Redis: `STELE_TEST_REDIS` (a URL), else local.
"""

from __future__ import annotations

import gc
import os
import sys
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import xdist
from hypothesis import HealthCheck, settings

from stele.log.brokers import Brokers
from stele.runtime.kafka import ensure_topics
from stele.runtime.service import THRESHOLDS
from tests.disk import Disk, mounted
from tests.logs import same_logs
from tests.secured import Secured, secured_broker
from tests.servers import GIVEN_KAFKA, GIVEN_REDIS, S3Server, broker, redis, s3_server
from tests.workers import ByModule, put_in_order

# How fast this machine is says nothing about what is tested. The same examples each time tell of a change what
# it broke; `make hunt` looks for others, and for more of them.
HUNTS = "STELE_HUNT" in os.environ
settings.register_profile(
    "stele",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not HUNTS,
    max_examples=400 if HUNTS else 50,
)
settings.load_profile("stele")

# How wide the terminal is says nothing either, and readline tells the processes that pytest starts.
os.environ.pop("COLUMNS", None)

# Matrices are small: threads to multiply them only take each process that imports numpy 30 ms more to start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Each of the hundreds of processes that tests start would compile all that it imports, which takes it seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False  # nor are 400 modules of tests to be compiled by each run


def pytest_sessionstart(session: pytest.Session) -> None:
    """Where there are workers, they are given what the process that starts them has started."""
    if not xdist.is_xdist_controller(session):
        return
    running = ExitStack()
    session.config.add_cleanup(running.close)
    directory = Path(running.enter_context(TemporaryDirectory(prefix="stele-tests-")))
    os.environ[GIVEN_KAFKA] = running.enter_context(broker(directory / "kafka"))
    os.environ[GIVEN_REDIS] = running.enter_context(redis(directory / "redis"))


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByModule:
    config.option.loadscopereorder = False  # the order is that of the items
    return ByModule(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt imported modules and collected tests from garbage collection, and collect less often.

    With Python's thresholds, collections took a fifth of the processor time of a worker.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        put_in_order(items)
    else:  # deployment starts a Docker daemon: before it, the others find the servers that they find anyway
        items.sort(key=lambda item: item.get_closest_marker("deploy") is not None)


@pytest.fixture(scope="module", autouse=True)
def _logs_of_the_module() -> Iterator[None]:
    with same_logs():
        yield


@pytest.fixture(autouse=True)
def _logs_of_the_test() -> Iterator[None]:
    with same_logs():
        yield


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap servers of a real broker (one node, replication factor 1)."""
    with broker(tmp_path_factory.mktemp("kafka")) as bootstrap:
        yield bootstrap


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A real broker that is reached by TLS, and a password or a certificate."""
    with secured_broker(tmp_path_factory.mktemp("secured")) as found:
        yield found


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a real Redis or Valkey server. Tests share it: use keys with the cluster's name."""
    with redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A disk that can be filled."""
    with mounted(tmp_path / "disk") as found:
        yield found


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A real server of S3's protocol on loopback; it looks at no signatures."""
    with s3_server() as server:
        yield server


@pytest.fixture
def cluster() -> str:
    """Return a new cluster name for each test: topics and keys never collide."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def topics(kafka: str, cluster: str) -> str:
    """The cluster's name, once all of its topics exist on the broker."""
    ensure_topics(Brokers(kafka), cluster)
    return cluster


@pytest.fixture
def fake_module(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a module that `python -m` finds: `folder = fake_module(name, source)`.

    Put the folder on the child's PYTHONPATH.
    """

    def write(name: str, source: str) -> Path:
        folder = tmp_path / "modules"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(source)
        return folder

    return write
