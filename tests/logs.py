"""Where logs go is a setting of the process, and a test leaves it as it found it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog


@contextmanager
def same_logs() -> Iterator[None]:
    """After the block logs go where they went before it.

    ``capture_logs`` alone puts back the processors, but says from then on that somebody has set logs up.
    """
    set_up, before = structlog.is_configured(), structlog.get_config()
    try:
        yield
    finally:
        if set_up:
            structlog.configure(**before)
        else:
            structlog.reset_defaults()
