"""Facts of CDC generations: written in pieces, committed with a time, published, forgotten.

Source: ScyllaDB, topology-over-raft.md, "Topology state machine" (``commit_cdc_generation``).
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from stele.domain.base import Command, Fact
from stele.domain.model.features import Count


class CdcGenerationWritten(Fact, frozen=True):
    """Stream ids of a generation. A later fact of the same generation appends more.

    ``streams`` are ids of 16 bytes each, in the order of their tokens (``cdc_streams.stream_ids``). ``epoch``
    wrote them for ``transition_id``. They are not used before they are committed.
    """

    generation_id: str
    transition_id: str
    epoch: int
    streams: bytes


class CdcGenerationCommitted(Fact, frozen=True):
    """The generation holds for writes of ``since_ms`` (milliseconds since 1970) and later.

    It holds until the next one does.
    """

    generation_id: str
    since_ms: int
    epoch: int


class CdcGenerationPublished(Fact, frozen=True):
    """All nodes that answered the barrier of its version have it.

    Readers may look for its streams.
    """

    generation_id: str


class CdcGenerationForgotten(Fact, frozen=True):
    """The generation leaves the image.

    It was never committed, or its streams are no longer read.
    """

    generation_id: str


CdcFact = (
    CdcGenerationWritten | CdcGenerationCommitted | CdcGenerationPublished | CdcGenerationForgotten
)


# The coordinator's commands about CDC generations, each guarded by its term.


class PublishCdcGeneration(Command, frozen=True, tag="publish_cdc_generation"):
    """Publish the oldest unpublished generation. All members that take writes have it."""

    of_services: ClassVar = True

    term: int
    generation_id: str


class ForgetCdcGeneration(Command, frozen=True, tag="forget_cdc_generation"):
    """Forget a generation whose successor has been in force for longer than the retention."""

    of_services: ClassVar = True

    term: int
    generation_id: str


CdcCommand = PublishCdcGeneration | ForgetCdcGeneration


# CDC generations without their streams.


STREAM_BYTES: Final = 16
"""Size of a stream id."""


class GenerationHead(msgspec.Struct, frozen=True, kw_only=True):
    """A generation without its streams.

    ``epoch`` wrote it, for ``transition_id``. It holds for writes from ``since_ms`` on.
    ``since_ms`` and ``committed_epoch`` are 0 until it is committed.
    """

    generation_id: str
    transition_id: str
    epoch: int
    since_ms: int = 0
    committed_epoch: int = 0
    published: bool = False


class GenerationSummary(GenerationHead, frozen=True, kw_only=True):
    """A generation as people see it, with the number of its streams."""

    streams: int


# Limits of time between CDC generations.


GENERATION_LEEWAY_MS: Final = 5_000
"""Largest difference between a write's time and the clock of its node (ScyllaDB's
generation_leeway).
"""

CDC_MARGIN_S: Final = Count(
    name="cdc_margin_s",
    counts="seconds from a CDC generation's commit until it holds",
    default=65,
    most=31_536_000,
    least=2 * GENERATION_LEEWAY_MS // 1000,
)
"""Every node must have the generation by that time. ScyllaDB uses the same: twice its ring_delay of
30 s, and the leeway.
"""

CDC_RETENTION_S: Final = Count(
    name="cdc_retention_s",
    counts="seconds that a CDC generation is kept after the next one has taken effect",
    default=86_400,
    most=31_536_000,
    least=2 * GENERATION_LEEWAY_MS // 1000,
)
"""ScyllaDB uses the same: the 24 hours that rows of a CDC log live by default."""
