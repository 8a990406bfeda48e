"""Commands: the changes that a caller may request from the metadata log, and its answers.

Every command comes in an ``Envelope`` with the caller's request id. One id has one outcome, applied
or refused. A caller that does not know the outcome of its command therefore sends it again,
unchanged.
"""

from hashlib import blake2b
from typing import Final, get_args

import msgspec

from stele.domain.base import Command, Rejection
from stele.domain.hashing import as_before
from stele.domain.model.archive import (
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
from stele.domain.model.cdc import CdcCommand, ForgetCdcGeneration, PublishCdcGeneration
from stele.domain.model.cluster import FoundCluster, Noop
from stele.domain.model.commits import CommitsCommand, RestrictCommits
from stele.domain.model.features import FeaturesCommand, SetSetting
from stele.domain.model.membership import AnnounceNode, MembershipCommand
from stele.domain.model.operations import (
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
from stele.domain.model.overrides import LoadState, OverridesCommand, RevertState
from stele.domain.model.requests import Cancel, RejectRequest, RequestsCommand
from stele.domain.model.schema import (
    AlterSchema,
    AlterTable,
    CreateKeyspace,
    CreateTable,
    SchemaCommand,
    SwitchBalancingOff,
    SwitchBalancingOn,
)
from stele.domain.model.services import AnnounceService, ForgetService, ServicesCommand
from stele.domain.model.table_snapshots import (
    DeleteTableSnapshot,
    ExpireTableSnapshot,
    TableSnapshotsCommand,
)
from stele.domain.model.topology import (
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

__all__ = [
    "COMMANDS",
    "AdmitDivergence",
    "Advance",
    "AdvanceFence",
    "AgreeToTrim",
    "AlterSchema",
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
    | AlterSchema
    | TopologyCommand
    | FeaturesCommand
    | ServicesCommand
    | CdcCommand
    | TableSnapshotsCommand
    | ArchiveCommand
)

COMMANDS: Final[tuple[type[Command], ...]] = get_args(AnyCommand)
MAX_TEXT_CHARS: Final = 4096
"""Longest actor, reason or origin, in characters."""


class Envelope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command with the caller's request id and, for the history, the sender and the reason."""

    request_id: str
    command: AnyCommand
    actor: str = ""
    reason: str = ""
    origin: str = ""
    log_id: str = ""
    """Id of the log that the command is meant for, 32 hex digits; empty for any log."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a command. ``epoch`` is the epoch that applied it, or that refused it.

    If it was not ``taken``, nothing was decided. ``rejection`` gives the reason, and ``epoch`` is
    the newest epoch that the writer had read.
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
    """Return BLAKE2b of the command's canonical JSON, 16 bytes.

    Equal commands have equal digests.
    """
    # Later fields with their empty value are left out, so that older builds compute the same
    # digest.
    encoded = as_before(_CANONICAL.encode(command))
    return blake2b(encoded, digest_size=COMMAND_DIGEST_BYTES).digest()


def command_name(command: Command) -> str:
    """Return the command's name in JSON and in the log."""
    tag = command.__struct_config__.tag
    assert isinstance(tag, str)
    return tag
