"""The image: everything the log says, at one epoch. Immutable; images share structure.

There is one image for each domain, and one that holds them together with its place in the log.
"""

from typing import Final

import msgspec

from stele.domain.archive.image import ArchiveImage
from stele.domain.cdc.image import CdcImage
from stele.domain.cluster.facts import NO_LOG, ClusterImage
from stele.domain.commits.facts import Commits
from stele.domain.features.facts import FeaturesImage
from stele.domain.membership.facts import Node
from stele.domain.membership.image import MembershipImage
from stele.domain.overrides.facts import OverridesImage
from stele.domain.repairs.image import RepairsImage
from stele.domain.requests.facts import Request
from stele.domain.requests.image import RequestsImage
from stele.domain.requests.memory import RequestMemory
from stele.domain.ring.image import RingImage
from stele.domain.ring.placement import Placement
from stele.domain.schema.facts import SchemaImage
from stele.domain.services.facts import ServicesImage
from stele.domain.staging.image import StagingImage
from stele.domain.table_snapshots.image import TableSnapshotsImage
from stele.domain.topology.image import TopologyImage

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
    """Which requests were decided. None in a process that never decides and does not keep it."""

    @property
    def cluster(self) -> str:
        """Name of the cluster; empty before its founding."""
        return self.founding.name

    @property
    def cluster_id(self) -> str:
        return self.founding.cluster_id

    @property
    def log_id(self) -> bytes:
        """Which log it is, 16 bytes; ``NO_LOG`` before its founding."""
        return self.founding.log_id

    @property
    def topic_id(self) -> str:
        """What the brokers called the topic when the log was founded or recovered; empty: not known."""
        return self.founding.topic_id

    def node(self, node_id: str) -> Node | None:
        return self.membership.nodes.get(node_id)

    def request(self, request_id: str) -> Request | None:
        return self.requests.requests.get(request_id)

    def placement_of(self, keyspace: str) -> Placement | None:
        """The placement of a keyspace by its name; None when no such keyspace serves."""
        known = self.schema.serving(keyspace)
        return None if known is None else self.ring.placements.get(known.placement)


EMPTY: Final = Image()
EMPTY_FOR_FOLLOWERS: Final = Image(decided=None)
"""For a process that never decides a command: it does not remember who was told what."""


def without_memory(image: Image) -> Image:
    """The image as a follower has it. The memory of decided requests can grow on one version only."""
    return msgspec.structs.replace(image, decided=None)
