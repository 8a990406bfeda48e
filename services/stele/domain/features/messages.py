"""Features that are about what services and nodes tell each other beside the log, and about no fact of it."""

from typing import Final

REPORT_SOURCES: Final = "report_sources"
"""Reports of streams say from whom the bytes came: builds from before cannot read such a report."""

OF_MESSAGES: Final = frozenset({REPORT_SOURCES})
