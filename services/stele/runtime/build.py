"""The build of a process: its release, and the features that it supports and announces."""

from collections.abc import Set
from importlib.metadata import version as installed_version
from typing import Final

import msgspec

from stele.domain.registry import KNOWN_FEATURES


class Build(msgspec.Struct, frozen=True):
    """Release and features.

    ``features`` are the semantics it folds beyond the first, and message forms it reads.
    """

    release: str
    features: Set[str]


THIS_BUILD: Final = Build(installed_version("stele"), KNOWN_FEATURES)
