"""Commands: what a caller may ask the metadata log to make true, and how it answers.

Every command comes in an ``Envelope`` with the caller's request id. The same id is never applied twice,
so a caller that does not know what became of its command sends it again, unchanged.
"""

from typing import Final

import msgspec

from stele.domain.base import Command, Rejection
from stele.domain.cluster.facts import CreateCluster, Noop
from stele.domain.features.facts import EnableFeatures, FeaturesCommand, SetSetting
from stele.domain.membership.commands import AnnounceNode, MembershipCommand
from stele.domain.requests.commands import Cancel, RejectRequest, RequestsCommand
from stele.domain.schema.facts import CreateKeyspace
from stele.domain.topology.commands import (
    Advance,
    AdvanceFence,
    ClaimCoordinator,
    FinishCleanup,
    Move,
    Rollback,
    TopologyCommand,
)
from stele.domain.topology.operations.commands import (
    DropKeyspace,
    Join,
    Leave,
    OperationCommand,
)

__all__ = [
    "Advance",
    "AdvanceFence",
    "AnnounceNode",
    "AnyCommand",
    "Cancel",
    "ClaimCoordinator",
    "Command",
    "CreateCluster",
    "CreateKeyspace",
    "DropKeyspace",
    "EnableFeatures",
    "Envelope",
    "FinishCleanup",
    "Join",
    "Leave",
    "Move",
    "Noop",
    "Outcome",
    "RejectRequest",
    "Rejection",
    "Rollback",
    "SetSetting",
    "command_name",
]

AnyCommand = (
    CreateCluster
    | Noop
    | MembershipCommand
    | OperationCommand
    | RequestsCommand
    | CreateKeyspace
    | TopologyCommand
    | FeaturesCommand
)

MAX_REQUEST_ID_CHARS: Final = 128
MAX_TEXT_CHARS: Final = 4096
"""Longest actor, reason or origin."""


class Envelope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command with the caller's id for it and, for the history, who asked and why."""

    request_id: str
    command: AnyCommand
    actor: str = ""
    reason: str = ""
    origin: str = ""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a command. ``epoch`` is the one that it became, or the one that refused it."""

    request_id: str
    applied: bool
    epoch: int
    state_id: bytes
    rejection: Rejection | None = None


def command_name(command: AnyCommand) -> str:
    """The command's name as JSON and the log show it."""
    tag = command.__struct_config__.tag
    assert isinstance(tag, str)
    return tag
