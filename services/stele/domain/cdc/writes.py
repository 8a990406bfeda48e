"""Which stream of CDC a write goes to, by its time and its token."""

from collections.abc import Sequence

from stele.domain.base import Rejection
from stele.domain.cdc.image import Generation
from stele.domain.cdc.limits import GENERATION_LEEWAY_MS
from stele.domain.cdc.streams import place_of, stream_at


def stream_of(
    generations: Sequence[Generation], token: int, write_ms: int, now_ms: int
) -> bytes | Rejection:
    """The id of the stream, 16 bytes, by Scylla's rule (cdc/metadata.cc, ``get_stream``).

    ``generations`` are the committed ones in the order of their times; ``write_ms`` is the write's own time
    and ``now_ms`` the clock of whoever takes it. A write goes to the generation that holds at its time. It is
    refused if its time is further ahead than the leeway, since a generation that nobody knows yet may hold
    then; or if it is further behind than the leeway and of a generation that does not hold any more, since
    readers may be past its end.
    """
    if write_ms > now_ms + GENERATION_LEEWAY_MS:
        return Rejection(
            "cdc_write_from_the_future",
            f"The write is {write_ms - now_ms} ms ahead of the clock; no more than {GENERATION_LEEWAY_MS} ms"
            " are taken, since it is not known which CDC generation will hold then.",
            "Synchronize the clocks, or let the store give the write its time.",
        )
    held = [generation for generation in generations if generation.since_ms <= write_ms]
    if not held:
        return Rejection(
            "cdc_no_generation",
            "No CDC generation that is kept holds at the write's time.",
            "`stele cdc generations` shows from when the oldest holds: wait for that, or let the store give the"
            " write its time.",
        )
    used = held[-1]
    following = next((g for g in generations if used.since_ms < g.since_ms <= now_ms), None)
    if following is not None and write_ms <= now_ms - GENERATION_LEEWAY_MS:
        return Rejection(
            "cdc_write_too_old",
            f"The write is of {write_ms}; since {following.since_ms} another CDC generation holds, and readers"
            " may be past the end of the one before.",
            "Synchronize the clocks, or let the store give the write its time.",
        )
    return stream_at(used.streams, place_of(used.streams, token))
