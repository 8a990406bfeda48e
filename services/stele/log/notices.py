"""What librdkafka says in its own log alone: that the topic of a name is another one now.

A consumer fetches by the topic's id. Where that is gone it asks for the metadata, finds the new topic of the
name, and goes on there at the offset that it had, without an error. The line about it is delivered before any
record of the new topic.
"""

import logging
import re
from collections.abc import Callable
from typing import Final

DEBUG: Final = "metadata"
"""What the client has to say for that; some lines each time it asks for the metadata, none for records."""
_CHANGED: Final = re.compile(r"Topic \S+ changed id from (\S+) to (\S+)")
_NO_ID: Final = "A" * 22
"""Sixteen zero bytes: the client had not asked yet, or the broker has no ids."""

_log: Final = logging.getLogger("librdkafka")


class Notices:
    """Takes the lines of one client, as its ``logger``. More than debugging goes to the process's log: as
    warnings, since a client goes on by itself, and says what it cannot mend to ``error_cb`` too.
    """

    def __init__(self, on_another_topic: Callable[[str], None]) -> None:
        self._on_another_topic = on_another_topic

    def log(self, level: int, text: str, *values: object) -> None:
        if level > logging.DEBUG:
            _log.log(min(level, logging.WARNING), text, *values)
            return
        changed = _CHANGED.search(text % values)
        if changed is not None and changed[1] != _NO_ID:
            self._on_another_topic(f"the topic is another one, {changed[2]} and not {changed[1]}")
