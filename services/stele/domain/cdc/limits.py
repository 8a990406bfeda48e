"""How CDC generations follow each other in time."""

from typing import Final

from stele.domain.features.counts import Count

GENERATION_LEEWAY_MS: Final = 5_000
"""Writes may be this much ahead of, or behind, the clock of whoever takes them (Scylla's generation_leeway)."""

CDC_MARGIN_S: Final = Count(
    name="cdc_margin_s",
    counts="seconds from a CDC generation's commit until it holds",
    default=65,
    most=31_536_000,
    least=2 * GENERATION_LEEWAY_MS // 1000,
)
"""Until then everybody must know it. Scylla's: twice its ring_delay of 30 s, and the leeway."""

CDC_RETENTION_S: Final = Count(
    name="cdc_retention_s",
    counts="seconds that a CDC generation is kept after the next one has come to hold",
    default=86_400,
    most=31_536_000,
    least=2 * GENERATION_LEEWAY_MS // 1000,
)
"""Scylla's: the 24 hours that rows of a CDC log live by default."""
