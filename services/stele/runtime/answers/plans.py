"""Questions to the coordinator about what a command would do, and its answers."""

from enum import StrEnum
from typing import Annotated

import msgspec

from stele.domain.base import Rejection
from stele.domain.topology.operations.commands import OperationCommand
from stele.domain.topology.preflight import Preflight
from stele.runtime.answers.coordinator import WaitProgress


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command for an operation, as ``POST /v1/commands`` of metadata-log takes it; nothing of it is done.

    ``together`` are asked for at the same time, and go with it as one operation. ``bytes_per_s`` is what a node
    receives, when it is not to be the rate that was measured last.
    """

    command: OperationCommand
    together: tuple[OperationCommand, ...] = ()
    request_id: str = ""
    actor: str = ""
    reason: str = ""
    origin: str = ""
    log_id: str = ""
    bytes_per_s: Annotated[float, msgspec.Meta(gt=0)] | None = None


class Verdict(StrEnum):
    """What becomes of the request at first."""

    STARTS = "starts"
    WAITS = "waits"
    FAILS = "fails"


class PlannedStream(msgspec.Struct, frozen=True):
    """What a node must receive, and how long that takes; None where it is not known."""

    node_id: str
    share: float
    size_bytes: int | None
    duration_s: float | None


class PlanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a command would do if it were sent now, in the light of ``epoch``.

    ``wait`` is the first thing that it waits for, ``failure`` what the coordinator would end it with.
    ``held_bytes`` are of the nodes that were asked; sizes are estimates from them, as if all ranges of all
    keyspaces held the same. ``bytes_per_s`` is what a node receives: the rate that was measured last or that
    was asked with, and not more than the log's ``limit_bytes_per_s``, none while no limit is set. ``at_least``:
    no rate is known, so it is that limit, and it takes no less.
    """

    epoch: int
    state_id: str
    plan: Preflight
    verdict: Verdict
    wait: WaitProgress | None = None
    failure: Rejection | None = None
    held_bytes: dict[str, int] = {}
    bytes_per_s: float | None = None
    limit_bytes_per_s: int | None = None
    at_least: bool = False
    streams: tuple[PlannedStream, ...] = ()
    size_bytes: int | None = None
    duration_s: float | None = None
