from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.deploy.docker_host import NoDocker, docker_daemon
from tests.deployment.compose import provide_base_images


@pytest.fixture(scope="package")
def docker() -> Iterator[None]:
    """A Docker daemon that has the base images; skips with the reason where there can be none.

    It ends with the last of these tests: no second one can use its folder meanwhile.
    """
    try:
        with docker_daemon():
            provide_base_images()
            yield
    except NoDocker as reason:
        pytest.skip(f"No Docker here: {reason}")
