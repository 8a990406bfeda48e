"""Dry runs of commands by the coordinator: requests and answers."""

from enum import StrEnum
from typing import Annotated

import msgspec

from stele.domain.base import Rejection
from stele.domain.model.operations import OperationCommand
from stele.domain.preflight import Preflight
from stele.runtime.answers.coordinator import WaitProgress


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command for an operation, as ``POST /v1/commands`` of metadata-log takes it. It is not executed.

    ``together`` are commands of the same operation. ``bytes_per_s`` replaces the measured rate at
    which a node receives.
    """

    command: OperationCommand
    together: tuple[OperationCommand, ...] = ()
    request_id: str = ""
    actor: str = ""
    reason: str = ""
    origin: str = ""
    log_id: str = ""
    bytes_per_s: Annotated[float, msgspec.Meta(gt=0)] | None = None


class PlanVerdict(StrEnum):
    """The first step of the request."""

    STARTS = "starts"
    WAITS = "waits"
    FAILS = "fails"


class PlannedStream(msgspec.Struct, frozen=True):
    """The data that a node receives, and its duration. Unknown values are None."""

    node_id: str
    share: float
    size_bytes: int | None
    duration_s: float | None


class PlanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a command that is sent now, at ``epoch``.

    ``wait`` is its first wait, ``failure`` the rejection with which the coordinator would end it.
    ``held_bytes`` are the sizes that nodes reported. Other sizes are estimates from them, which assume
    equal bytes in all ranges of a keyspace or table. ``bytes_per_s`` is the rate at which a node receives:
    measured or given, and at most the log's ``limit_bytes_per_s`` if that is set. ``at_least``: no rate
    is known, so the limit is used and the duration is a lower bound.
    """

    epoch: int
    state_id: str
    plan: Preflight
    verdict: PlanVerdict
    wait: WaitProgress | None = None
    failure: Rejection | None = None
    held_bytes: dict[str, int] = {}
    bytes_per_s: float | None = None
    limit_bytes_per_s: int | None = None
    at_least: bool = False
    streams: tuple[PlannedStream, ...] = ()
    size_bytes: int | None = None
    duration_s: float | None = None
