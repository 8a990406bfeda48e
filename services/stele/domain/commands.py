"""Commands: what a caller may ask the metadata log to make true, and how it answers.

Every command comes in an ``Envelope`` with the caller's request id. One id has one outcome, applied or
refused, so a caller that does not know what became of its command sends it again, unchanged.
"""

from hashlib import blake2b
from typing import Final

import msgspec

DIGEST_BYTES: Final = 16
_SORTED_JSON: Final = msgspec.json.Encoder(order="deterministic")


class Command(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True):
    """Base of all commands; the tag is their name in JSON and the record's name in Avro."""


class CreateCluster(Command, frozen=True, tag="create_cluster"):
    """The first epoch of a log."""

    cluster_id: str


class Noop(Command, frozen=True, tag="noop"):
    """Changes nothing and takes an epoch: the read barrier of a linearizable read (seed 003)."""


class Join(Command, frozen=True, tag="join", kw_only=True):
    """JOIN_NODE_REQUEST: a node asks to become a member (seed 004). It is queued as a request."""

    node_id: str
    cluster: str
    address: str
    dc: str
    rack: str
    num_tokens: int = 16
    initial_tokens: tuple[int, ...] = ()
    supported_features: tuple[str, ...] = ()
    release_version: str = ""
    partitioner: str = "Murmur3Partitioner"


class AnnounceNode(Command, frozen=True, tag="announce_node", kw_only=True):
    """A member that restarted tells its address, release and features."""

    node_id: str
    address: str
    supported_features: tuple[str, ...] = ()
    release_version: str = ""


class Leave(Command, frozen=True, tag="leave"):
    """Decommission: the node streams its data to those who take over, then leaves."""

    node_id: str


class Cancel(Command, frozen=True, tag="cancel"):
    """Undo a request that is pending, or running before its point of no return."""

    target: str


class CreateKeyspace(Command, frozen=True, tag="create_keyspace"):
    """NetworkTopologyStrategy with a replication factor for each dc."""

    name: str
    replication: dict[str, int]


class DropKeyspace(Command, frozen=True, tag="drop_keyspace"):
    name: str


class EnableFeatures(Command, frozen=True, tag="enable_features"):
    features: tuple[str, ...]


class SetSetting(Command, frozen=True, tag="set_setting"):
    """A cluster-wide setting, at most 64 KiB; an empty value removes it."""

    name: str
    value: str


class ClaimCoordinator(Command, frozen=True, tag="claim_coordinator"):
    """Become the coordinator of ``term``, which must be one above the term that the log knows."""

    holder: str
    term: int


class StartRequest(Command, frozen=True, tag="start_request"):
    term: int
    target: str


class RejectRequest(Command, frozen=True, tag="reject_request"):
    term: int
    target: str
    why: str


class Advance(Command, frozen=True, tag="advance"):
    """The step after ``version`` of the operation of request ``target``."""

    term: int
    target: str
    version: int


class AdvanceFence(Command, frozen=True, tag="advance_fence"):
    """Fence out every version below ``version``, which must be the current one."""

    term: int
    version: int


class Rollback(Command, frozen=True, tag="rollback"):
    term: int
    target: str
    why: str


class FinishCleanup(Command, frozen=True, tag="finish_cleanup"):
    """The node has dropped the data of ranges it no longer owns, as of topology ``version``."""

    term: int
    node_id: str
    version: int


AnyCommand = (
    CreateCluster
    | Noop
    | Join
    | AnnounceNode
    | Leave
    | Cancel
    | CreateKeyspace
    | DropKeyspace
    | EnableFeatures
    | SetSetting
    | ClaimCoordinator
    | StartRequest
    | RejectRequest
    | Advance
    | AdvanceFence
    | Rollback
    | FinishCleanup
)

MAX_TEXT_CHARS: Final = 4096
"""Longest actor, reason or origin."""
MAX_SETTING_CHARS: Final = 65_536


class Envelope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command with the caller's id for it and, for the history, who asked and why."""

    request_id: str
    command: AnyCommand
    actor: str = ""
    reason: str = ""
    origin: str = ""


class Rejection(msgspec.Struct, frozen=True):
    """Why a command was not applied: a code, a sentence, what to do, and the details behind it."""

    code: str
    message: str
    hint: str = ""
    details: dict[str, str] = {}


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


def command_name(command: AnyCommand) -> str:
    """The command's name as JSON and the log show it."""
    tag = command.__struct_config__.tag
    assert isinstance(tag, str)
    return tag


def command_digest(command: AnyCommand) -> bytes:
    """16 bytes that tell two commands apart: the hash of the command in JSON, fields in fixed order."""
    return blake2b(_SORTED_JSON.encode(command), digest_size=DIGEST_BYTES).digest()
