"""The cluster as a whole: how it is named, and its founding."""

from collections.abc import Iterable

from stele.domain.base import Rejection
from stele.domain.cluster.facts import ClusterCreated, ClusterImage, CreateCluster, Noop
from stele.domain.context import Context, Decision, bad_name
from stele.domain.names import PARTITIONER
from stele.domain.registry_entry import Domain
from stele.domain.tables import Json, changed_fields


def create_cluster(context: Context, command: CreateCluster) -> Decision:
    if context.image.cluster:
        return Rejection(
            "cluster_exists",
            f"The log already holds cluster '{context.image.cluster}'.",
            "Use it, or name another cluster in STELE_CLUSTER.",
        )
    name, _, unique = command.cluster_id.partition("/")
    refused = bad_name("cluster", name)
    if refused is not None:
        return refused
    if not unique:
        return Rejection(
            "bad_cluster_id",
            f"'{command.cluster_id[:80]}' is no cluster id.",
            "Send '<name>/<uuid>'.",
        )
    return (ClusterCreated(name, command.cluster_id, PARTITIONER),)


def noop(context: Context, command: Noop) -> Decision:
    return ()


def cluster_created(_: ClusterImage, fact: ClusterCreated) -> ClusterImage:
    return ClusterImage(fact.cluster, fact.cluster_id, fact.partitioner)


def to_facts(image: ClusterImage) -> Iterable[ClusterCreated]:
    if image.name:
        yield ClusterCreated(image.name, image.cluster_id, image.partitioner)


def view(image: ClusterImage) -> Json:
    return {"cluster": image.name, "cluster_id": image.cluster_id}


def diff(before: ClusterImage, after: ClusterImage) -> Json:
    return {"cluster": changed_fields(view(before), view(after))}


DOMAIN = Domain(
    name="founding",
    empty=ClusterImage(),
    decide={CreateCluster: create_cluster, Noop: noop},
    apply={ClusterCreated: cluster_created},
    to_facts=to_facts,
    view=view,
    diff=diff,
)
