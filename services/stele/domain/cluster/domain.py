"""The cluster as a whole: how it is named, and its founding."""

import re
from collections.abc import Iterable
from typing import Final

from stele.domain.base import Rejection
from stele.domain.cluster.facts import (
    NO_LOG,
    ClusterCreated,
    ClusterImage,
    FoundCluster,
    Noop,
)
from stele.domain.context import Context, Decision, bad_name
from stele.domain.names import PARTITIONER
from stele.domain.registry_entry import Domain
from stele.domain.tables import Json, changed_fields

LOG_ID: Final = re.compile(r"[0-9a-f]{32}")


def found_cluster(context: Context, command: FoundCluster) -> Decision:
    """Founding the same cluster again changes nothing; the loser of a race adopts the winner so."""
    name, _, unique = command.cluster_id.partition("/")
    if context.image.cluster:
        if name in ("", context.image.cluster):
            return ()
        return Rejection(
            "cluster_exists",
            f"The log already holds cluster '{context.image.cluster}'.",
            "Use it, or name another cluster in STELE_CLUSTER.",
        )
    refused = bad_name("cluster", name)
    if refused is not None:
        return refused
    if not unique:
        return Rejection(
            "bad_cluster_id",
            f"'{command.cluster_id[:80]}' is no cluster id.",
            "Send '<name>/<uuid>'.",
        )
    if command.log_id and not LOG_ID.fullmatch(command.log_id):
        return Rejection(
            "bad_log_id",
            f"'{command.log_id[:80]}' is no log id.",
            "Send 32 hex digits, or nothing: then one is made.",
        )
    founded = ClusterCreated(
        name, command.cluster_id, PARTITIONER, command.log_id, command.topic_id
    )
    return (founded,)


def noop(context: Context, command: Noop) -> Decision:
    return ()


def cluster_created(_: ClusterImage, fact: ClusterCreated) -> ClusterImage:
    return ClusterImage(
        fact.cluster,
        fact.cluster_id,
        fact.partitioner,
        bytes.fromhex(fact.log_id) or NO_LOG,
        fact.topic_id,
    )


def to_facts(image: ClusterImage) -> Iterable[ClusterCreated]:
    if image.name:
        yield ClusterCreated(
            image.name,
            image.cluster_id,
            image.partitioner,
            "" if image.log_id == NO_LOG else image.log_id.hex(),
            image.topic_id,
        )


def view(image: ClusterImage) -> Json:
    return {
        "cluster": image.name,
        "cluster_id": image.cluster_id,
        "log_id": image.log_id.hex(),
    }


def diff(before: ClusterImage, after: ClusterImage) -> Json:
    return {"cluster": changed_fields(view(before), view(after))}


DOMAIN = Domain(
    name="founding",
    empty=ClusterImage(),
    decide={FoundCluster: found_cluster, Noop: noop},
    apply={ClusterCreated: cluster_created},
    to_facts=to_facts,
    view=view,
    diff=diff,
)
