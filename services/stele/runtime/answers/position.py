"""Where a process stands in the log: ``GET /v1/position`` of every service."""

import msgspec


class Position(msgspec.Struct, frozen=True):
    """``state_id`` and ``log_id`` are 32 hex digits, ``hash`` the 64 of ``domain.snapshot.state_hash``:
    equal epochs must have equal ones.
    """

    service: str
    instance: str
    epoch: int
    state_id: str
    log_id: str
    hash: str
