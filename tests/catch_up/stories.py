"""Deterministic histories of a small cluster."""

from __future__ import annotations

from stele.domain.commands import FoundCluster, SetSetting
from stele.domain.image import EMPTY
from tests.domain.epochs import LOG_ID
from tests.domain.epochs import History as Story

NEW = bytes([0xC0] * 16)
"""The log id after the recovery."""


def story_of(epochs: int) -> Story:
    story = Story(empty=EMPTY)
    assert story.apply(FoundCluster("demo/1", LOG_ID.hex())) is None
    while story.image.epoch < epochs:
        assert story.apply(SetSetting("s", str(story.image.epoch))) is None
    return story


def recovered_story(epochs: int, kept: int) -> Story:
    """Return a story that continues after epoch ``kept``, with one more epoch after the recovery."""
    story = story_of(epochs)
    story.recover(NEW, kept)
    assert story.apply(SetSetting("after", "1")) is None
    return story
