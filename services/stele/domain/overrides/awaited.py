"""Whether a log is still empty: it was founded for a state that has not come yet."""

from typing import Final

from stele.domain.image import Image
from stele.domain.names import CommitMode

FOUNDED: Final = 1
"""The epoch of a founding."""


def awaits_state(image: Image) -> bool:
    """Nothing can be said of this cluster before it has the state that it begins with."""
    commits = image.commits
    frozen = commits.mode is CommitMode.FROZEN and commits.since_epoch == FOUNDED
    return frozen and image.overrides.begun_with is None
