"""The position of a process in the log: ``GET /v1/position`` of every service."""

import msgspec


class Position(msgspec.Struct, frozen=True):
    """A position. All processes at one epoch have equal hashes.

    ``state_id`` and ``log_id`` have 32 hex digits, ``hash`` the 64 of ``domain.snapshot.state_hash``.
    """

    service: str
    instance: str
    epoch: int
    state_id: str
    log_id: str
    hash: str
