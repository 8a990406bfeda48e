"""Answers of the session guard: barriers, liveness, checks. Times in seconds."""

from enum import StrEnum
from typing import Final

import msgspec

from stele.domain.model.schema_objects import SchemaVersion
from stele.domain.names import BarrierLevel

AGREEMENT_PATH: Final = "/v1/schema/agreement"
LONGEST_AGREEMENT_S: Final = 60
"""Limit of ``timeout_s``, in seconds: proxies often close a request that is silent for longer."""


class BlockerView(msgspec.Struct, frozen=True):
    """A node that delays a barrier. ``silent_for_s`` is None if it never sent a heartbeat.

    ``blocking_for_s`` is None for any other barrier than that of the newest step.
    """

    node_id: str
    why: str
    silent_for_s: float | None = None
    blocking_for_s: float | None = None


class BarrierView(msgspec.Struct, frozen=True):
    """``GET /v1/barrier`` of the session guard.

    ``satisfied``: as many nodes as ``level`` requires have acknowledged. ``missing`` are the replicas
    whose acks are missing.
    """

    complete: bool
    satisfied: bool
    blockers: tuple[BlockerView, ...] = ()
    epoch: int = 0
    version: int = 0
    level: BarrierLevel = BarrierLevel.EACH_QUORUM
    missing: tuple[str, ...] = ()


class Liveness(StrEnum):
    """Liveness of a node. ``unknown``: the guard has not read the acks for a full time-out yet."""

    UP = "up"
    DOWN = "down"
    UNKNOWN = "unknown"


class NodeLiveness(msgspec.Struct, frozen=True):
    """One row of ``GET /v1/nodes`` of the session guard.

    ``lag`` is in epochs. It and ``silent_for_s`` are None if no heartbeat was received.
    ``returning``: it was down and sends heartbeats again; it is up once they are steady.
    """

    node_id: str
    liveness: Liveness
    epoch: int = 0
    lag: int | None = None
    version: int = 0
    silent_for_s: float | None = None
    returning: bool = False


class MemberSchema(msgspec.Struct, frozen=True):
    """A member and the newest epoch that it has acknowledged. ``why`` is empty if it has applied the schema."""

    node_id: str
    liveness: Liveness
    epoch: int
    applied: bool
    why: str = ""


class SchemaAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """``GET /v1/schema/agreement`` of the session-guard: whether the live members have applied ``epoch``.

    Without a given epoch, that is the epoch of ``schema_version``. A member is live until the guard declares it
    down. ``behind`` are the live members that have not applied the epoch.
    """

    epoch: int
    schema_version: SchemaVersion
    agreed: bool
    behind: tuple[str, ...]
    members: tuple[MemberSchema, ...]


class CheckCode(StrEnum):
    """Result of ``GET /v1/check``: the first that applies."""

    PERMITTED = "permitted"
    NOT_CURRENT = "not_current"
    OTHER_LOG = "other_log"
    STALE_VERSION = "stale_version"
    SESSION_NOT_OPEN = "session_not_open"


class CheckView(msgspec.Struct, frozen=True):
    """``GET /v1/check`` of the session guard. ``ok``: all requested work is permitted.

    The answer includes the log up to its end of ``proof_age_s`` ago. None: the end was never read. A
    refusal has the fields of every error: ``code``, ``message``, ``hint``, ``details``.
    """

    ok: bool
    code: CheckCode
    message: str
    hint: str
    proof_age_s: float | None
    log_id: str = ""
    epoch: int = 0
    version: int = 0
    fence_version: int = 0
    details: dict[str, float | None] = {}


class SessionsView(msgspec.Struct, frozen=True):
    """``GET /v1/sessions`` of the session guard: the sessions that are open at ``epoch``, by id."""

    log_id: str
    epoch: int
    sessions: tuple[str, ...]
