"""Commands about the cluster as a whole: its beginning, its features, its settings, its coordinator."""

import re
from typing import Final

from stele.domain import commands, facts
from stele.domain.commands import MAX_SETTING_CHARS, Rejection
from stele.domain.decide.context import Context, Decision
from stele.domain.entities import Coordinator
from stele.domain.names import PARTITIONER, NodeState
from stele.domain.requests import memory

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def bad_name(what: str, name: str) -> Rejection | None:
    """None when ``name`` may name a node, dc, rack, keyspace, feature or setting."""
    if NAME.fullmatch(name):
        return None
    return Rejection(
        "bad_name",
        f"'{name[:80]}' is no name for a {what}.",
        "Use 1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit.",
    )


def create_cluster(context: Context, command: commands.CreateCluster) -> Decision:
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
    return (facts.ClusterCreated(name, command.cluster_id, PARTITIONER),)


def noop(context: Context, command: commands.Noop) -> Decision:
    return ()


def enable_features(context: Context, command: commands.EnableFeatures) -> Decision:
    """Seed 004: a feature is enabled once all normal nodes support it, and never disabled again."""
    for feature in command.features:
        refused = bad_name("feature", feature)
        if refused is not None:
            return refused
        lacking = _nodes_without(context, feature)
        if lacking:
            return Rejection(
                "feature_not_supported",
                f"Feature '{feature}' is not supported by {', '.join(lacking)}.",
                "Upgrade these nodes first.",
                {"feature": feature, "nodes": ",".join(lacking)},
            )
    fresh = tuple(sorted({*command.features} - {*context.image.features.enabled}))
    return (facts.FeaturesEnabled(fresh),) if fresh else ()


def _nodes_without(context: Context, feature: str) -> list[str]:
    nodes = context.image.membership.nodes
    alive = (nodes[n] for n in sorted(nodes) if nodes[n].state is not NodeState.LEFT)
    return [node.node_id for node in alive if feature not in node.supported_features]


def set_setting(context: Context, command: commands.SetSetting) -> Decision:
    refused = bad_name("setting", command.name)
    if refused is not None:
        return refused
    if len(command.value) > MAX_SETTING_CHARS:
        return Rejection(
            "setting_too_large",
            f"The value has {len(command.value)} characters; at most {MAX_SETTING_CHARS} fit.",
            "Store it elsewhere and keep a reference here.",
        )
    if command.name == memory.SETTING and command.value and not memory.is_limit(command.value):
        return Rejection(
            "bad_setting",
            f"'{memory.SETTING}' is '{command.value[:40]}'; it counts generations of decided requests.",
            f"Send a whole number from 1 to {memory.MAX_GENERATIONS}; each takes half a MiB.",
        )
    return (facts.SettingChanged(command.name, command.value),)


def claim_coordinator(context: Context, command: commands.ClaimCoordinator) -> Decision:
    """A claim succeeds for exactly the next term, so of two rivals one learns that it lost."""
    current = context.image.topology.coordinator
    if command.term != current.term + 1:
        return Rejection(
            "stale_term",
            f"Term {command.term} cannot be claimed: the log is at term {current.term}.",
            "Read the log to its end and claim the next term if you still should.",
            {"term": str(current.term), "holder": current.holder},
        )
    return (facts.CoordinatorChanged(Coordinator(command.term, command.holder)),)
