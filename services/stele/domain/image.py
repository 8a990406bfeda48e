"""The image: the state of the whole log at one epoch. Images are immutable and share structure.

Each domain has an image of its state. One more holds them together with the epoch and the state id.
"""

from typing import Final

import msgspec

from stele.domain.model.archive import ArchiveImage
from stele.domain.model.cdc_streams import CdcImage
from stele.domain.model.cluster import NO_LOG, ClusterImage
from stele.domain.model.commits import Commits
from stele.domain.model.features import FeaturesImage
from stele.domain.model.membership import MembershipImage, Node
from stele.domain.model.overrides import OverridesImage
from stele.domain.model.repairs import RepairsImage
from stele.domain.model.requests import Request, RequestsImage
from stele.domain.model.ring import RingImage
from stele.domain.model.schema import SchemaImage
from stele.domain.model.services import ServicesImage
from stele.domain.model.table_restores import TableSnapshotsImage
from stele.domain.model.transitions import TopologyImage
from stele.domain.request_memory import RequestMemory
from stele.domain.ring.placement import Placement
from stele.domain.staging import StagingImage

__all__ = ["EMPTY", "EMPTY_FOR_FOLLOWERS", "NO_LOG", "ZERO_STATE", "Image", "without_memory"]

ZERO_STATE: Final = bytes(16)
"""State id before the first epoch."""


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """All of the metadata at ``epoch``, whose state id is ``state_id`` (16 bytes)."""

    epoch: int = 0
    state_id: bytes = ZERO_STATE
    founding: ClusterImage = ClusterImage()
    commits: Commits = Commits()
    overrides: OverridesImage = OverridesImage()
    membership: MembershipImage = MembershipImage()
    ring: RingImage = RingImage()
    schema: SchemaImage = SchemaImage()
    topology: TopologyImage = TopologyImage()
    repairs: RepairsImage = RepairsImage()
    table_snapshots: TableSnapshotsImage = TableSnapshotsImage()
    cdc: CdcImage = CdcImage()
    requests: RequestsImage = RequestsImage()
    features: FeaturesImage = FeaturesImage()
    services: ServicesImage = ServicesImage()
    archive: ArchiveImage = ArchiveImage()
    staging: StagingImage = StagingImage()
    decided: RequestMemory | None = RequestMemory()
    """The decided requests. None in a process that never decides a command and does not
    keep them.
    """

    @property
    def cluster(self) -> str:
        """Name of the cluster; empty before its founding."""
        return self.founding.name

    @property
    def cluster_id(self) -> str:
        return self.founding.cluster_id

    @property
    def log_id(self) -> bytes:
        """Id of the log, 16 bytes; ``NO_LOG`` before its founding."""
        return self.founding.log_id

    @property
    def topic_id(self) -> str:
        """The brokers' id of the topic at the founding or recovery of the log; empty if unknown."""
        return self.founding.topic_id

    def node(self, node_id: str) -> Node | None:
        return self.membership.nodes.get(node_id)

    def request(self, request_id: str) -> Request | None:
        return self.requests.requests.get(request_id)

    def placement_of(self, keyspace: str) -> Placement | None:
        """Return the placement of a keyspace by its name; None when no such keyspace serves."""
        known = self.schema.serving(keyspace)
        return None if known is None else self.ring.placements.get(known.placement)


EMPTY: Final = Image()
EMPTY_FOR_FOLLOWERS: Final = Image(decided=None)
"""The empty image of a process that never decides a command and keeps no decided requests."""


def without_memory(image: Image) -> Image:
    """Return the image as a follower has it.

    The memory of decided requests can grow on one version only.
    """
    return msgspec.structs.replace(image, decided=None)
