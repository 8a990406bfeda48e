"""The domain of the whole cluster: its name, its founding and its recoveries."""

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from stele.domain.base import Rejection, required
from stele.domain.context import Context, Decision, bad_name
from stele.domain.model.cluster import (
    NO_LOG,
    ClusterCreated,
    ClusterFact,
    ClusterImage,
    FoundCluster,
    Incarnation,
    LogRecovered,
    Noop,
)
from stele.domain.model.commits import Commits, CommitsRestricted
from stele.domain.model.features import FeaturesEnabled
from stele.domain.names import PARTITIONER, CommitMode
from stele.domain.registry_entry import Domain
from stele.domain.tables import Json, changed_fields, plain_values

LOG_ID: Final = re.compile(r"[0-9a-f]{32}")

replace = msgspec.structs.replace


def found_cluster(context: Context, command: FoundCluster) -> Decision:
    """Decide the founding of a cluster.

    A repeated founding of the same cluster changes nothing. In a race, the loser adopts the
    winner's cluster in this way.
    """
    name, _, _ = command.cluster_id.partition("/")
    if context.image.cluster:
        # A founding without a name accepts the existing cluster, whatever its name.
        if name in ("", context.image.cluster):
            return ()
        return Rejection(
            "cluster_exists",
            f"The log already holds cluster '{context.image.cluster}'.",
            "Use it, or name another cluster in STELE_CLUSTER.",
        )
    required(_check_ids(command))
    founded = ClusterCreated(
        name, command.cluster_id, PARTITIONER, command.log_id, command.topic_id
    )
    # A cluster that begins with a dump gets the features of the dump, so none are enabled here.
    if command.begin_frozen:
        return founded, _frozen(context)
    if command.enable_features:
        return founded, FeaturesEnabled(tuple(sorted({*command.enable_features})))
    return (founded,)


def _check_ids(command: FoundCluster) -> Rejection | None:
    name, _, unique = command.cluster_id.partition("/")
    required(bad_name("cluster", name))
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
    return None


def _frozen(context: Context) -> CommitsRestricted:
    """Freeze the log in the founding epoch, so that no command precedes the first state."""
    return CommitsRestricted(
        Commits(
            mode=CommitMode.FROZEN,
            by=context.envelope.actor,
            reason=context.envelope.reason or "it begins with a dump",
            since_epoch=context.epoch,
            since_ms=context.at_ms,
        )
    )


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


def log_recovered(image: ClusterImage, fact: LogRecovered) -> ClusterImage:
    """Make the present log the newest earlier incarnation.

    ``recovery_of`` has checked that the fact fits its record.
    """
    before = Incarnation(
        fact.from_log_id,
        image.topic_id,
        fact.last_epoch,
        fact.state_id,
        fact.known_epoch,
        fact.version_floor,
    )
    return replace(
        image,
        log_id=bytes.fromhex(fact.log_id),
        topic_id=fact.topic_id,
        incarnations=(*image.incarnations, before),
    )


def to_facts(image: ClusterImage) -> Iterable[ClusterFact]:
    """Yield the founding as it was, and the recoveries in their order."""
    if not image.name:
        return
    # Each recovery names the ids of the log that it creates. Those are the ids of the next
    # incarnation, or the present ones.
    (first_log, first_topic), *later = (
        *((before.log_id, before.topic_id) for before in image.incarnations),
        (image.log_id_hex, image.topic_id),
    )
    yield ClusterCreated(image.name, image.cluster_id, image.partitioner, first_log, first_topic)
    for before, (log_id, topic_id) in zip(image.incarnations, later, strict=True):
        yield LogRecovered(
            before.log_id,
            before.last_epoch,
            before.state_id,
            log_id,
            topic_id,
            before.known_epoch,
            before.version_floor,
        )


def view(image: ClusterImage) -> Json:
    return {
        "cluster": image.name,
        "cluster_id": image.cluster_id,
        "log_id": image.log_id.hex(),
        "incarnations": image.incarnations,
    }


def diff(before: ClusterImage, after: ClusterImage) -> Json:
    return {"cluster": changed_fields(plain_values(view(before)), plain_values(view(after)))}


DOMAIN = Domain(
    name="founding",
    empty=ClusterImage(),
    decide={FoundCluster: found_cluster, Noop: noop},
    apply={ClusterCreated: cluster_created, LogRecovered: log_recovered},
    to_facts=to_facts,
    view=view,
    diff=diff,
)
