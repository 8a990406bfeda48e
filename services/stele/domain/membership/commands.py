"""What nodes say of themselves to the cluster (seed 004)."""

from typing import ClassVar

from stele.domain.base import Command


class AnnounceNode(Command, frozen=True, tag="announce_node", kw_only=True):
    """A member that restarted tells its address, release and features."""

    of_services: ClassVar = True

    node_id: str
    address: str
    supported_features: tuple[str, ...] = ()
    release_version: str = ""
    host_id: str = ""
    claims_host_id: str = ""
    """Of the directory whose place it takes, where that is free (``hosts``)."""


MembershipCommand = AnnounceNode
