"""Names for the ids in the history, as the metadata-log tells them."""

from __future__ import annotations

from contextlib import suppress

from stele.cli.client import Client
from stele.cli.errors import CliError
from stele.cli.reading import Reading
from stele.words.names import HistoryNames


def names_at(client: Client, *epochs: int) -> HistoryNames:
    """All names as they were at these epochs; none where a state cannot be had."""
    found = HistoryNames()
    for epoch in epochs:
        if epoch < 1:
            continue
        reading = Reading(client, epoch, "local")
        with suppress(CliError):
            found.add(reading.keyspaces(), reading.tables(), reading.requests(unfinished="true"))
    return found
