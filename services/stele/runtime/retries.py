"""Retry until success, with growing pauses."""

from functools import partial
from typing import Final

import stamina
import stamina.instrumentation

FIRST_PAUSE_S: Final = 0.1
LAST_PAUSE_S: Final = 2.0

stamina.instrumentation.set_on_retry_hooks([])
"""Callers log once what is unavailable, in their own text.

The output of a command has no other lines.
"""

retried = stamina.retry_context

until_it_works = partial(
    stamina.retry_context,
    attempts=None,
    timeout=None,
    wait_initial=FIRST_PAUSE_S,
    wait_max=LAST_PAUSE_S,
    wait_jitter=FIRST_PAUSE_S,
)
"""Usage: ``async for attempt in until_it_works(on=OSError): with attempt: ...``"""
