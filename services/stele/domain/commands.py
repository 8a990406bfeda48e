"""Commands: what a caller may ask the metadata log to make true, and how it answers.

Every command comes in an ``Envelope`` with the caller's request id. One id has one outcome, applied or
refused, so a caller that does not know what became of its command sends it again, unchanged.
"""

from hashlib import blake2b
from typing import Final, get_args

import msgspec

from stele.domain.archive.commands import (
    AdmitDivergence,
    AgreeToTrim,
    AnnounceReader,
    AnnounceReplica,
    AnnounceSnapshot,
    ArchiveCommand,
    AskSnapshot,
    ChooseMembers,
    ForgetReader,
    ForgetReplica,
    ProposeTrim,
    TrimArchive,
    TruncateLog,
    WithdrawSnapshot,
)
from stele.domain.base import Command, Rejection
from stele.domain.cdc.commands import CdcCommand, ForgetCdcGeneration, PublishCdcGeneration
from stele.domain.cluster.facts import FoundCluster, Noop
from stele.domain.commits.facts import CommitsCommand, RestrictCommits
from stele.domain.features.facts import FeaturesCommand, SetSetting
from stele.domain.hashing import as_before
from stele.domain.membership.commands import AnnounceNode, MembershipCommand
from stele.domain.overrides.commands import LoadState, OverridesCommand, RevertState
from stele.domain.requests.commands import Cancel, RejectRequest, RequestsCommand
from stele.domain.schema.facts import (
    AlterTable,
    CreateKeyspace,
    CreateTable,
    SchemaCommand,
    SwitchBalancingOff,
    SwitchBalancingOn,
)
from stele.domain.services.facts import AnnounceService, ForgetService, ServicesCommand
from stele.domain.table_snapshots.commands import (
    DeleteTableSnapshot,
    ExpireTableSnapshot,
    TableSnapshotsCommand,
)
from stele.domain.topology.commands import (
    Advance,
    AdvanceFence,
    ClaimCoordinator,
    ExcludeDead,
    FinishCleanup,
    FinishEnabling,
    Move,
    Rollback,
    ServeRequest,
    TopologyCommand,
)
from stele.domain.topology.operations.commands import (
    Cleanup,
    DropKeyspace,
    DropTable,
    EnableFeatures,
    Exclude,
    Join,
    KeyspaceRfChange,
    Leave,
    MoveNode,
    MoveTablets,
    NewCdcGeneration,
    NoopRequest,
    OperationCommand,
    Quiesce,
    Rebuild,
    ReconfigureCatchUp,
    Remove,
    RepairTable,
    RepairTablets,
    Replace,
    ResizeTable,
    RestoreTable,
    RestoreTablets,
    SnapshotTable,
    Truncate,
)

__all__ = [
    "COMMANDS",
    "AdmitDivergence",
    "Advance",
    "AdvanceFence",
    "AgreeToTrim",
    "AlterTable",
    "AnnounceNode",
    "AnnounceReader",
    "AnnounceReplica",
    "AnnounceService",
    "AnnounceSnapshot",
    "AnyCommand",
    "AskSnapshot",
    "Cancel",
    "ChooseMembers",
    "ClaimCoordinator",
    "Cleanup",
    "Command",
    "CreateKeyspace",
    "CreateTable",
    "DeleteTableSnapshot",
    "DropKeyspace",
    "DropTable",
    "EnableFeatures",
    "Envelope",
    "Exclude",
    "ExcludeDead",
    "ExpireTableSnapshot",
    "FinishCleanup",
    "FinishEnabling",
    "ForgetCdcGeneration",
    "ForgetReader",
    "ForgetReplica",
    "ForgetService",
    "FoundCluster",
    "Join",
    "KeyspaceRfChange",
    "Leave",
    "LoadState",
    "Move",
    "MoveNode",
    "MoveTablets",
    "NewCdcGeneration",
    "Noop",
    "NoopRequest",
    "Outcome",
    "ProposeTrim",
    "PublishCdcGeneration",
    "Quiesce",
    "Rebuild",
    "ReconfigureCatchUp",
    "RejectRequest",
    "Rejection",
    "Remove",
    "RepairTable",
    "RepairTablets",
    "Replace",
    "ResizeTable",
    "RestoreTable",
    "RestoreTablets",
    "RestrictCommits",
    "RevertState",
    "Rollback",
    "ServeRequest",
    "SetSetting",
    "SnapshotTable",
    "SwitchBalancingOff",
    "SwitchBalancingOn",
    "TrimArchive",
    "Truncate",
    "TruncateLog",
    "WithdrawSnapshot",
    "command_digest",
    "command_name",
]

AnyCommand = (
    FoundCluster
    | Noop
    | CommitsCommand
    | OverridesCommand
    | MembershipCommand
    | OperationCommand
    | RequestsCommand
    | SchemaCommand
    | TopologyCommand
    | FeaturesCommand
    | ServicesCommand
    | CdcCommand
    | TableSnapshotsCommand
    | ArchiveCommand
)

COMMANDS: Final[tuple[type[Command], ...]] = get_args(AnyCommand)
MAX_TEXT_CHARS: Final = 4096
"""Longest actor, reason or origin."""


class Envelope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command with the caller's id for it and, for the history, who asked and why."""

    request_id: str
    command: AnyCommand
    actor: str = ""
    reason: str = ""
    origin: str = ""
    log_id: str = ""
    """The log that it is meant for, 32 hex digits; empty: any."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a command. ``epoch`` is the one that it became, or the one that refused it.

    When it was not ``taken``, nothing was decided: ``rejection`` says why, ``epoch`` how far the log was read.
    """

    request_id: str
    applied: bool
    epoch: int
    state_id: bytes
    rejection: Rejection | None = None
    taken: bool = True
    log_id: bytes = b""


COMMAND_DIGEST_BYTES: Final = 16
_CANONICAL: Final = msgspec.json.Encoder(order="deterministic")


def command_digest(command: AnyCommand) -> bytes:
    """Equal commands have equal digests, in every process: BLAKE2b of the canonical JSON, 16 bytes."""
    encoded = as_before(_CANONICAL.encode(command))
    return blake2b(encoded, digest_size=COMMAND_DIGEST_BYTES).digest()


def command_name(command: Command) -> str:
    """The command's name as JSON and the log show it."""
    tag = command.__struct_config__.tag
    assert isinstance(tag, str)
    return tag
