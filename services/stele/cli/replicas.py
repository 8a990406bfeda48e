"""What the catch-up replicas say of themselves, whatever the log says of them."""

from __future__ import annotations

import msgspec

from stele.cli.client import Client
from stele.cli.optional import ask_each


class Replica(msgspec.Struct, frozen=True):
    """As much of an ``ArchiveAnswer`` as a table needs: what that is made of takes long to import.

    ``epoch`` is the newest of log ``log_id`` that it holds, and ``trouble`` why it reads no further.
    """

    replica_id: str
    log_id: str
    epoch: int
    trouble: str


def replicas_of(client: Client) -> dict[str, Replica]:
    """Those that answer, by their addresses."""
    return ask_each(client, "catch-up", "/v1/archive", Replica)


def older_log(client: Client) -> Replica | None:
    """What is left of a log that is empty now, by the replica that has most of it."""
    held = [each for each in replicas_of(client).values() if each.epoch]
    return max(held, key=lambda each: (each.log_id, each.epoch), default=None)
