"""Parts of a decision that is too large for one record: inert until the commit that follows them."""

from stele.domain.archive.facts import ArchiveFact
from stele.domain.base import Fact
from stele.domain.cdc.facts import CdcFact
from stele.domain.commits.facts import CommitsFact
from stele.domain.features.facts import FeaturesFact
from stele.domain.membership.facts import MembershipFact
from stele.domain.overrides.facts import OverridesFact
from stele.domain.repairs.facts import RepairsFact
from stele.domain.requests.facts import RequestsFact
from stele.domain.ring.facts import RingFact
from stele.domain.schema.facts import SchemaFact
from stele.domain.table_snapshots.facts import TableSnapshotsFact
from stele.domain.topology.facts import TopologyFact

StagedFact = (
    MembershipFact
    | RequestsFact
    | RingFact
    | SchemaFact
    | TopologyFact
    | RepairsFact
    | TableSnapshotsFact
    | FeaturesFact
    | CdcFact
    | ArchiveFact
    | CommitsFact
    | OverridesFact
)
"""What may go in parts: all that a command changes in a cluster that is founded."""


class Part(Fact, frozen=True):
    """Facts that are not true yet. Parts count from 0; a first one replaces whatever was staged before."""

    staging_id: str
    index: int
    facts: tuple[StagedFact, ...]


class PartsCommitted(Fact, frozen=True):
    """The facts of all ``parts`` are true from here on, in their order, before the facts that follow."""

    staging_id: str
    parts: int


StagingFact = Part | PartsCommitted
