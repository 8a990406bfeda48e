"""What catch-up replicas, readers, people and the coordinator say about the archive. To change its members is
an operation.
"""

from typing import ClassVar

from stele.domain.base import Command


class AnnounceReplica(Command, frozen=True, tag="announce_replica", kw_only=True):
    """A catch-up replica that started tells where it is, and with which folder: see ``Replica``."""

    of_services: ClassVar = True

    replica_id: str
    dc: str
    rack: str
    address: str
    folder_id: str = ""


class ForgetReplica(Command, frozen=True, tag="forget_replica", kw_only=True):
    """The replica never comes back. With ``force`` also a member goes, and what only it has is given up."""

    replica_id: str
    force: bool = False


class AnnounceSnapshot(Command, frozen=True, tag="announce_snapshot", kw_only=True):
    """A replica has a snapshot of this epoch on its disk, and every epoch from ``first_epoch`` on to it.

    See ``AnnouncedSnapshot`` for the fields, ``Replica`` for ``folder_id``.
    """

    of_services: ClassVar = True

    replica_id: str
    epoch: int
    state_id: str
    hash: str
    size_bytes: int
    first_epoch: int
    anchor_offset: int
    log_id: str
    folder_id: str = ""


class WithdrawSnapshot(Command, frozen=True, tag="withdraw_snapshot"):
    """A replica has lost a snapshot that it announced, or found it damaged."""

    of_services: ClassVar = True

    replica_id: str
    epoch: int


class AskSnapshot(Command, frozen=True, tag="ask_snapshot"):
    """Every replica takes a snapshot now."""


class TruncateLog(Command, frozen=True, tag="truncate_log"):
    """Let the records before ``offset``, where the record of ``epoch`` is, be deleted from the topic."""

    epoch: int
    offset: int


class AdmitDivergence(Command, frozen=True, tag="admit_divergence", kw_only=True):
    """A replica sees that its snapshot of this epoch is not the members', and sets aside the folder."""

    of_services: ClassVar = True

    replica_id: str
    epoch: int
    folder_id: str


class ProposeTrim(Command, frozen=True, tag="propose_trim", kw_only=True):
    """A member proposes that the archive begins at this epoch, which has ``state_id`` (32 hex digits)."""

    of_services: ClassVar = True

    replica_id: str
    epoch: int
    state_id: str


class AgreeToTrim(Command, frozen=True, tag="agree_to_trim", kw_only=True):
    """A replica has checked the snapshot of the epoch that is proposed: see ``TrimAgreed``."""

    of_services: ClassVar = True

    replica_id: str
    epoch: int
    hash: str
    store: str = ""
    folder_id: str = ""


class TrimArchive(Command, frozen=True, tag="trim_archive"):
    """Let what is before this epoch be deleted from the archive: a majority of the members has agreed."""

    of_services: ClassVar = True

    epoch: int


class AnnounceReader(Command, frozen=True, tag="announce_reader"):
    """A reader of the log has no more use of what is before ``epoch``. Said once a minute at most: it holds up
    truncation, and nothing else.
    """

    reader_id: str
    epoch: int


class ForgetReader(Command, frozen=True, tag="forget_reader"):
    """The reader never comes back. One that still reads announces itself again."""

    reader_id: str


class ChooseMembers(Command, frozen=True, tag="choose_members"):
    """These replicas are to be the members when the request ``target`` is done, in the order of choice: the
    coordinator of ``term``, which knows who is alive, has chosen them. ``as_of_epoch`` is when a replica had
    come into its state last then.
    """

    of_services: ClassVar = True

    term: int
    target: str
    members: tuple[str, ...]
    as_of_epoch: int


ArchiveCommand = (
    AnnounceReplica
    | ForgetReplica
    | AnnounceSnapshot
    | WithdrawSnapshot
    | AskSnapshot
    | TruncateLog
    | AdmitDivergence
    | ProposeTrim
    | AgreeToTrim
    | TrimArchive
    | AnnounceReader
    | ForgetReader
    | ChooseMembers
)
