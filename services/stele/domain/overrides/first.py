"""The first state of a cluster that begins with a dump: all of it but what was the old log's own."""

import msgspec

from stele.domain.base import Rejection
from stele.domain.features.facts import FeaturesEnabled, SettingChanged
from stele.domain.image import Image
from stele.domain.membership.facts import NodeChanged
from stele.domain.membership.hosts import unclaimed
from stele.domain.names import NodeState
from stele.domain.overrides.draft import Draft
from stele.domain.recovery.versions import floor_after
from stele.domain.schema.facts import BalancingSwitched, KeyspaceChanged, TableChanged
from stele.domain.tables import sorted_values
from stele.domain.topology.facts import VersionsChanged
from stele.domain.topology.heads import Versions

replace = msgspec.structs.replace


def begin(draft: Draft, target: Image) -> Rejection | None:
    """Nodes have yet to come, each to the place that has its host id. Versions go on above all that the old
    log can have made after the dump, as in a recovery: data on disks is named by them.
    """
    epoch = draft.context.epoch
    for node in sorted_values(target.membership.nodes):
        there = node.state is not NodeState.LEFT
        draft.add(
            NodeChanged(
                replace(
                    node,
                    request_id="",
                    host_id=unclaimed(node.host_id or node.node_id) if there else node.host_id,
                    excluded_since=epoch if node.excluded else 0,
                    cleanup_since=epoch if node.cleanup_since else 0,
                )
            )
        )
    schema = target.schema
    draft.add(*(KeyspaceChanged(keyspace) for keyspace in sorted_values(schema.by_id)))
    draft.add(*(TableChanged(table) for table in sorted_values(schema.tables)))
    if schema.balancing.off_since:
        draft.add(BalancingSwitched("", schema.balancing))
    for name in sorted(target.ring.placements):
        draft.add(*draft.image.ring.creation(name, target.ring.placements[name]))
    settings = target.features.settings
    draft.add(*(SettingChanged(name, settings[name]) for name in sorted(settings)))
    if target.features.enabled:
        draft.add(FeaturesEnabled(target.features.enabled))
    is_new = target.topology.version == 1
    version = 1 if is_new else floor_after(target.topology.version, draft.context.log_ms)
    draft.add(VersionsChanged(rest_at(version, epoch)))
    return None


def rest_at(version: int, epoch: int) -> Versions:
    """No older version is of any use from this epoch on: whoever has read it refuses them."""
    return Versions(version=version, fence_version=version, since_epoch=epoch, fence_epoch=epoch)
