"""Answers of the session guard: barriers, liveness, checks. Times in seconds."""

from enum import StrEnum

import msgspec

from stele.domain.names import BarrierLevel
from stele.domain.schema.objects import SchemaVersion


class BlockerView(msgspec.Struct, frozen=True):
    """A node that something waits for. Seconds; ``silent_for_s`` is None when it never sent a heartbeat."""

    node_id: str
    why: str
    silent_for_s: float | None = None
    blocking_for_s: float | None = None


class BarrierView(msgspec.Struct, frozen=True):
    """``GET /v1/barrier`` of the session guard: ``satisfied`` when so many have answered as ``level`` asks for;
    ``missing`` are the replicas whose answers it lacks.
    """

    complete: bool
    satisfied: bool
    blockers: tuple[BlockerView, ...] = ()
    epoch: int = 0
    version: int = 0
    level: BarrierLevel = BarrierLevel.EACH_QUORUM
    missing: tuple[str, ...] = ()


class Liveness(StrEnum):
    """``unknown``: not heard lately, but neither has the guard read the acks for a full time-out."""

    UP = "up"
    DOWN = "down"
    UNKNOWN = "unknown"


class NodeLiveness(msgspec.Struct, frozen=True):
    """One row of ``GET /v1/nodes`` of the session guard; ``lag`` in epochs; None: never heard."""

    node_id: str
    liveness: Liveness
    epoch: int = 0
    lag: int | None = None
    version: int = 0
    silent_for_s: float | None = None


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
    """What ``GET /v1/check`` says; the first that applies."""

    PERMITTED = "permitted"
    NOT_CURRENT = "not_current"
    OTHER_LOG = "other_log"
    STALE_VERSION = "stale_version"
    SESSION_NOT_OPEN = "session_not_open"


class CheckView(msgspec.Struct, frozen=True):
    """``GET /v1/check`` of the session guard: ``ok`` when all that was asked about may go on.

    The log's end was asked ``proof_age_s`` ago, and all that was there is in this answer; None when it
    never was. A refusal has the shape of every error: ``code``, ``message``, ``hint``, ``details``.
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
    """``GET /v1/sessions`` of the session guard: those that are open at ``epoch``, in order of their ids."""

    log_id: str
    epoch: int
    sessions: tuple[str, ...]
