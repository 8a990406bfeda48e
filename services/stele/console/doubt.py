"""Whether what is shown may be old, though nothing has failed yet: a pure function of what is known."""

from collections.abc import Iterable
from typing import Final

from stele.console.alerts import LATE_EPOCHS, ProcessShown

SERVICE: Final = "metadata-log"
QUIET_S: Final = 12.0
"""The metadata-log gives a sign of life every ten seconds."""
HEARD_S: Final = 3.0
"""Who was heard within so long is there, however long an answer takes."""


def doubt(epoch: int, silent_s: float, processes: Iterable[ProcessShown]) -> str:
    """Why ``epoch``, the newest of a stream that was heard ``silent_s`` ago, may be old; empty: it is not."""
    logs = [each for each in processes if each.service == SERVICE]
    behind = newest_of(logs) - epoch
    if behind > LATE_EPOCHS:
        return f"The console is {behind} epochs behind the metadata-log."
    if logs and not any(each.ok for each in logs):
        worst = next((each for each in logs if each.up), logs[0])
        if worst.up:
            return f"The metadata-log is not well: {worst.reason}"
        if silent_s > HEARD_S:
            return f"The metadata-log does not answer: {worst.reason}."
    if silent_s > QUIET_S:
        return f"The metadata-log has said nothing for {silent_s:.0f} s."
    return ""


def newest_of(processes: Iterable[ProcessShown]) -> int:
    """The newest epoch that a metadata-log which is well has; 0: none is."""
    return max((p.epoch for p in processes if p.service == SERVICE and p.ok), default=0)
