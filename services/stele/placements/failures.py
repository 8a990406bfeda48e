"""Why a query stopped, in one sentence, and whether starting it again can help."""

import re
from typing import Final

import msgspec

from stele.placements.decode import UNREADABLE

_UNREADABLE: Final = re.compile(re.escape(UNREADABLE) + r"\s*([^\n]+)")
_DATA_LOSS: Final = re.compile(r"KAFKA_DATA_LOSS|Some data may have been lost|failOnDataLoss")
_MAX_TEXT: Final = 500


class Failure(msgspec.Struct, frozen=True):
    """``final``: the log itself must be seen to, and a restart would meet the same record."""

    reason: str
    final: bool


def failure_of(text: str) -> Failure:
    """From the text of whatever Spark raised, which quotes the causes with their traces."""
    unreadable = _UNREADABLE.search(text)
    if unreadable:
        return Failure(unreadable.group(1).strip(" '\"")[:_MAX_TEXT], final=True)
    if _DATA_LOSS.search(text):
        reason = "Records that were not read yet are gone from the log. Restore the topic."
        return Failure(reason, final=True)
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
    return Failure(first[:_MAX_TEXT], final=False)
