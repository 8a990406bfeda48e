"""What a process is by its code, and tells the cluster of itself: its release and its features (seed 004)."""

from collections.abc import Set
from importlib.metadata import version as installed_version
from typing import Final

import msgspec

from stele.domain.registry import KNOWN_FEATURES


class Build(msgspec.Struct, frozen=True):
    """``features`` are the semantics, beyond the first, that it can fold, and forms of messages it can read."""

    release: str
    features: Set[str]


THIS_BUILD: Final = Build(installed_version("stele"), KNOWN_FEATURES)
