"""The founding of a cluster's log: its names, once and for ever."""

import msgspec

from stele.domain.base import Command, Fact


class ClusterCreated(Fact, frozen=True):
    """The first epoch of a log says which cluster it is of."""

    cluster: str
    cluster_id: str
    partitioner: str


class CreateCluster(Command, frozen=True, tag="create_cluster"):
    """The first epoch of a log; ``cluster_id`` is '<name>/<uuid>'."""

    cluster_id: str


class Noop(Command, frozen=True, tag="noop"):
    """Changes nothing and takes an epoch: the read barrier of a linearizable read (seed 003)."""


class ClusterImage(msgspec.Struct, frozen=True):
    name: str = ""
    cluster_id: str = ""
    partitioner: str = ""
