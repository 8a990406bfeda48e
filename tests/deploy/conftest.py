from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.deploy.docker_host import NoDocker, docker_daemon
from tests.deployment.compose import provide_base_images


@pytest.fixture(scope="package")
def docker() -> Iterator[None]:
    """Provide a Docker daemon with the base images, or skip the tests with the reason.

    The daemon ends with the last of these tests, since a second one cannot use its folder.
    """
    try:
        with docker_daemon():
            provide_base_images()
            yield
    except NoDocker as reason:
        pytest.skip(f"No Docker here: {reason}")
