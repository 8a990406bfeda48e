"""Deployment tests come last: until then every other test has found the servers that it finds anyway."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.deploy.deployment import provide_base_images
from tests.deploy.docker_host import NoDocker, docker_daemon


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("deploy") is not None)


@pytest.fixture(scope="session")
def docker() -> Iterator[None]:
    """A Docker daemon that has the base images; skips with the reason where there can be none."""
    try:
        with docker_daemon():
            provide_base_images()
            yield
    except NoDocker as reason:
        pytest.skip(f"No Docker here: {reason}")
