"""Another state in the place of the one that is: what is taken from it, and what never goes back
(docs/decisions/031-overrides-only-go-forward.md).
"""

import msgspec

from stele.domain.base import Rejection
from stele.domain.cdc.generations import abandoned
from stele.domain.features.facts import SettingChanged
from stele.domain.features.known import KNOWN
from stele.domain.image import Image
from stele.domain.membership.facts import Node, NodeChanged
from stele.domain.names import NodeState, RequestStatus
from stele.domain.overrides.draft import Draft
from stele.domain.overrides.first import rest_at
from stele.domain.overrides.rows import place_rows
from stele.domain.overrides.schema import Renamed, put_schema, renamed
from stele.domain.repairs.facts import RepairsForgotten
from stele.domain.requests.rows import ended
from stele.domain.ring.facts import PlacementDropped
from stele.domain.table_snapshots.facts import TableRestoreEnded
from stele.domain.tables import sorted_values
from stele.domain.topology.facts import TransitionFinished, VersionsChanged

replace = msgspec.structs.replace


def put_in_place(draft: Draft, target: Image) -> Rejection | None:
    """Nodes, keyspaces, tables, placements and settings become those of ``target``, in a new version."""
    refused = _check_nodes(draft.before, target) or _check_features(draft.before, target)
    if refused is not None:
        return refused
    names = renamed(draft.context, target)
    if isinstance(names, Rejection):
        return names
    draft.add(VersionsChanged(rest_at(draft.before.topology.version + 1, draft.context.epoch)))
    _end_what_is_under_way(draft)
    _put_nodes(draft, target)
    put_schema(draft, names)
    _put_placements(draft, target, names)
    _put_settings(draft, target)
    return None


def _check_nodes(before: Image, target: Image) -> Rejection | None:
    for node in sorted_values(target.membership.nodes):
        now = before.node(node.node_id)
        if node.state is NodeState.LEFT:
            continue
        if now is None:
            return Rejection(
                "unknown_node",
                f"The log has never had a node '{node.node_id}'.",
                "A node comes by joining: leave it out, and start it afterwards.",
                {"node": node.node_id},
            )
        if now.state is NodeState.LEFT:
            return Rejection(
                "node_left",
                f"Node '{node.node_id}' has left since, and an id of a node is never used again.",
                "Take a state without it: export one, edit it, and load it.",
                {"node": node.node_id},
            )
    return None


def _check_features(before: Image, target: Image) -> Rejection | None:
    lacking = sorted({*target.features.enabled} - {*before.features.enabled})
    if not lacking:
        return None
    return Rejection(
        "feature_not_enabled",
        f"The state needs {', '.join(lacking)}, which the cluster has not enabled.",
        f"Enable it first: `stele features enable {' '.join(lacking)}`.",
    )


def _end_what_is_under_way(draft: Draft) -> None:
    """Transitions and their sessions, and all requests but those about the archive, which stays as it is."""
    before, context = draft.before, draft.context
    for each in before.topology.open():
        draft.add(*abandoned(draft.image, each.transition_id))
        draft.add(TransitionFinished(each.transition_id))
    why = f"The state was replaced in epoch {context.epoch}: {context.envelope.reason}"
    for request in before.requests.unfinished():
        if not request.reconfigures:
            draft.add(*ended(context, draft.image, request, RequestStatus.FAILED, why))
    draft.add(*(TableRestoreEnded(id_) for id_ in sorted(before.table_snapshots.restores)))
    draft.add(
        *(RepairsForgotten(id_, restricted=True) for id_ in sorted(before.repairs.restricted))
    )


def _put_nodes(draft: Draft, target: Image) -> None:
    for node in sorted_values(draft.before.membership.nodes):
        wanted = target.node(node.node_id)
        changed = _node(node, wanted)
        if changed != node:
            draft.add(NodeChanged(changed))


def _node(now: Node, wanted: Node | None) -> Node:
    """Its tokens and state are the target's; who it is, what it runs and that it is dead are its own. A node
    that is not in the target has left.
    """
    if now.state is NodeState.LEFT:
        return now
    if wanted is None or wanted.state is NodeState.LEFT:
        return now.gone()
    return replace(
        now,
        dc=wanted.dc,
        rack=wanted.rack,
        num_tokens=wanted.num_tokens,
        tokens=wanted.tokens,
        initial_tokens=wanted.initial_tokens,
        state=wanted.state,
    )


def _put_placements(draft: Draft, target: Image, names: Renamed) -> None:
    there = draft.before.ring.placements
    placements = {names.placement(n): p for n, p in target.ring.placements.items()}
    version = draft.image.topology.version
    changed = {n for n in sorted(placements) if place_rows(draft, n, placements[n], version)}
    for table in draft.before.schema.with_tablets():
        if table.table_id in draft.before.repairs.tables and (
            table.placement in changed or table.placement not in placements
        ):
            draft.add(RepairsForgotten(table.table_id))
    draft.add(*(PlacementDropped(name) for name in sorted({*there} - {*placements})))


def _put_settings(draft: Draft, target: Image) -> None:
    now, wanted = draft.before.features.settings, target.features.settings
    for name in sorted({*now, *wanted}):
        value = wanted.get(name, "")
        if now.get(name, "") != value:
            setting = KNOWN.get(name)
            unsafe = bool(value) and setting is not None and setting.is_unsafe(value)
            draft.add(SettingChanged(name, value, unsafe))
