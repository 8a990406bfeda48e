"""Epochs as they come, over cuts and restarts: a stream is taken up after the last epoch that was got."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from stele.cli.client import Client, decode
from stele.cli.errors import UnreachableError
from stele.words.facts import EpochRow

RECONNECT_WAIT_S: Final = 0.5
LASTING_S: Final = 5.0
"""A stream that was open for so long was well, though it had nothing to tell."""


def epochs_from(
    client: Client, first: int, give_up_after_s: float, state_id: str = ""
) -> Iterator[str]:
    """The JSON of each epoch from ``first`` on, each once and in order; connects again where it stopped.

    ``state_id`` is that of the epoch before, where it is known. Raises UnreachableError when no instance
    streams for ``give_up_after_s``, and CliError when the log was recovered without what was told.
    """
    following, failing_since_s = first, float("inf")
    while True:
        opened_s = float("inf")
        why = UnreachableError(
            f"Streams end before epoch {following}.", "Is the metadata-log well? `stele status`."
        )
        try:
            headers = {"accept": "text/event-stream", "last-event-id": str(following - 1)}
            params = {"from": following, "state_id": state_id or None}
            with client.stream("metadata-log", "/v1/epochs", headers, **params) as lines:
                opened_s = time.monotonic()
                for number, data in events(lines):
                    if number > following:
                        break  # what is between would be missing
                    if number == following:
                        failing_since_s = float("inf")
                        yield data
                        following += 1
                        state_id = decode(data.encode(), EpochRow).state_id
        except UnreachableError as error:
            why = error
        now_s = time.monotonic()
        if now_s - opened_s > LASTING_S:
            failing_since_s = float("inf")
        failing_since_s = min(failing_since_s, now_s)
        if now_s - failing_since_s > give_up_after_s:
            raise why
        time.sleep(RECONNECT_WAIT_S)


def events(lines: Iterator[str]) -> Iterator[tuple[int, str]]:
    """(id, data) of each server-sent event that has both."""
    number, data = "", list[str]()
    for line in lines:
        if line.startswith("id:"):
            number = line[3:].strip()
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line:
            if number.isdigit() and data:
                yield int(number), "\n".join(data)
            number, data = "", []
