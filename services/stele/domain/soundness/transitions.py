"""What is under way: versions in order, and transitions and requests that point to what is there."""

from collections.abc import Iterator
from typing import Final

from stele.domain.image import Image
from stele.domain.names import NodeState
from stele.domain.soundness.flaw import Flaw
from stele.domain.soundness.rows import MOST_VERSION
from stele.domain.topology.facts import Transition
from stele.domain.topology.operations.table import OPERATIONS

AT_REST: Final = frozenset({NodeState.NORMAL, NodeState.LEFT, NodeState.NONE})


def version_flaws(image: Image) -> Iterator[Flaw]:
    topology = image.topology
    if not 1 <= topology.fence_version <= topology.version:
        what = f"the fence is at version {topology.fence_version}, and the topology at {topology.version}"
        yield Flaw("topology", what)
    if topology.version > MOST_VERSION:
        yield Flaw("topology", f"its version {topology.version} is above {MOST_VERSION}")
    if max(topology.since_epoch, topology.fence_epoch) > image.epoch:
        yield Flaw("topology", f"its epochs are after epoch {image.epoch}, which this state is of")


def transition_flaws(image: Image) -> Iterator[Flaw]:
    sessions = dict[str, str]()
    for each in image.topology.open():
        place = f"transition {each.transition_id} ({each.kind})"
        yield from (Flaw(place, what) for what in _of_transition(image, each))
        if each.session and each.session in sessions:
            what = f"its session {each.session} is also that of {sessions[each.session]}"
            yield Flaw(place, what)
        sessions[each.session] = each.transition_id
    carried = {id_ for each in image.topology.open() for id_ in each.request_ids()}
    for request in image.requests.unfinished():
        place = f"request {request.request_id} ({request.kind})"
        gone = sorted(node for node in request.nodes() if image.node(node) is None)
        if gone:
            yield Flaw(place, f"there is no node {', '.join(gone)}")
        if request.table_id and request.table_id not in image.schema.tables:
            yield Flaw(place, f"there is no table {request.table_id}")
        if request.keyspace_id and request.keyspace_id not in image.schema.by_id:
            yield Flaw(place, f"there is no keyspace {request.keyspace_id}")
    for id_ in sorted(carried - {*image.requests.open}):
        yield Flaw(
            f"request {id_}", "a transition carries it out, and it is not there or has ended"
        )


def _of_transition(image: Image, each: Transition) -> Iterator[str]:
    if each.state not in OPERATIONS[each.kind].states:
        yield f"{each.kind} has no state {each.state}"
    if each.entered_version > image.topology.version:
        yield f"it was entered at version {each.entered_version}, which is to come"
    for subject in each.subjects:
        node = image.node(subject.node_id)
        if node is None or node.state is NodeState.LEFT:
            yield f"there is no node {subject.node_id}, which it is about"
    if each.table_id and each.table_id not in image.schema.tables:
        yield f"there is no table {each.table_id}"
    if each.keyspace_id and each.keyspace_id not in image.schema.by_id:
        yield f"there is no keyspace {each.keyspace_id}"
    for name, plan in sorted(each.plans.items()):
        if name not in image.ring.placements:
            yield f"there is no placement {name}, which it plans for"
        named = {node for row in plan.rows for node in (*row.old, *row.new)}
        unknown = sorted(node for node in named if image.node(node) is None)
        if unknown:
            yield f"its plan for {name} names {', '.join(unknown)}, which are no nodes"


def under_way(image: Image) -> Iterator[Flaw]:
    """A state that takes the place of another has none of this: nobody works for it there."""
    for each in image.topology.open():
        yield Flaw(f"transition {each.transition_id} ({each.kind})", "it is under way")
    for node_id in sorted(image.membership.nodes):
        node = image.membership.nodes[node_id]
        if node.state not in AT_REST:
            yield Flaw(f"node {node_id}", f"it is {node.state}, and not {NodeState.NORMAL}")
    for data in image.schema.all_data():
        if data.dropped_version:
            yield Flaw(f"data of {data.name}", "it is being dropped")
