"""Trying again until it works, with pauses that grow."""

from functools import partial
from typing import Final

import stamina
import stamina.instrumentation

FIRST_PAUSE_S: Final = 0.1
LAST_PAUSE_S: Final = 2.0

stamina.instrumentation.set_on_retry_hooks([])
"""Who retries says once what is away, in its own words; a command's output is its own too."""

retried = stamina.retry_context

until_it_works = partial(
    stamina.retry_context,
    attempts=None,
    timeout=None,
    wait_initial=FIRST_PAUSE_S,
    wait_max=LAST_PAUSE_S,
    wait_jitter=FIRST_PAUSE_S,
)
"""``async for attempt in until_it_works(on=OSError): with attempt: ...``"""
