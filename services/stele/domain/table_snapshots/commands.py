"""What is asked about snapshots that are there; to take one is an operation."""

from typing import ClassVar

from stele.domain.base import Command


class DeleteTableSnapshot(Command, frozen=True, tag="delete_table_snapshot"):
    """Forget a snapshot; each node deletes its files."""

    snapshot: str
    """Its tag."""


class ExpireTableSnapshot(Command, frozen=True, tag="expire_table_snapshot"):
    """The coordinator of ``term`` has seen that its time is over."""

    of_services: ClassVar = True

    term: int
    snapshot_id: str


TableSnapshotsCommand = DeleteTableSnapshot | ExpireTableSnapshot
