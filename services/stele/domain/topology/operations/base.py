"""An operation: one row object that declares everything about a kind of request.

See docs/design.md, rule 18. No other production module compares kinds. An operation consists of its
object in a module here, its command and its schema; see docs/internals/extending.md.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from stele.domain.base import Rejected, Rejection
from stele.domain.context import Context, nothing_left_of, unknown_node
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model.membership import Node
from stele.domain.model.requests import Request
from stele.domain.model.schema import Table
from stele.domain.model.table_snapshots import WrittenPart
from stele.domain.model.topology import Subject
from stele.domain.model.transitions import Transition
from stele.domain.names import NodeState, OrderKind, RequestKind, RequestStatus, TransitionState
from stele.domain.ring.placement import Placement
from stele.domain.ring.strategy import NodeLocation
from stele.domain.ring.transition import (
    PlacementDelta,
    TransitionPlan,
    TransitionRow,
    stream_sources,
)
from stele.domain.rules.requests import ended
from stele.domain.rules.ring import Ring

RowChange = Callable[[Placement, TransitionPlan, int], PlacementDelta]
"""The change of a placement's rows on entering a state, given its plan and the new version."""

Sources = tuple[tuple[str, ...], int]
"""The nodes to stream a range from, and how many of them must be read completely."""


def given_up(image: Image, transition: Transition) -> frozenset[str]:
    """Return the nodes whose data is given up: excluded nodes, if all requests accept the loss."""
    requests = (image.request(request_id) for request_id in transition.request_ids())
    # One request without force is enough to protect the data of all.
    forced = all(request is not None and request.force for request in requests)
    return image.membership.excluded() if forced else frozenset()


def sources_of_gained(
    image: Image, transition: Transition, row: TransitionRow, node_id: str, unavailable: Set[str]
) -> Sources | None:
    """Return the sources of a range that the node must receive; None if it need not.

    A forced request gives up data that only excluded nodes have. All other nodes must still send
    theirs.
    """
    if node_id not in row.receiving():
        return None
    sources, needed = stream_sources(row, node_id, unavailable)
    if node_id in row.shifting():  # its own copy is never given up
        return sources, needed
    lost = given_up(image, transition)
    return sources, min(needed, len({*row.old} - lost - {node_id})) if lost else needed


class State(msgspec.Struct, frozen=True, kw_only=True):
    """One state of an operation: the changes on entry, the conditions to leave it, and the next
    states.

    Every state waits for the barrier and the fence of its version. Without ``on_success`` the
    transition ends after that; it counts as undone if it was marked. A state without ``on_failure``
    is past the point of no return, or belongs to the way back (``undoing``). See docs/design.md,
    rules 21 and 22.
    """

    node_state: NodeState | None = None
    """State of the operation's nodes from this state on; None leaves it unchanged."""
    delta: RowChange | None = None
    """Change of the rows on entry; None leaves them unchanged."""
    takes_tokens: bool = False
    """The operation's nodes own their planned tokens from this state on."""
    drops_tokens: bool = False
    streams: bool = False
    """Opens a session. The state is left only after the data has been streamed under it."""
    compares: bool = False
    """A receiver compares its rows first, and pulls only those that differ."""
    reads_stay: bool = False
    """No reads move to receivers, so excluded receivers are skipped."""
    streams_by: OrderKind = OrderKind.STREAM
    """The kind of order that receivers get."""
    work_of_members: OrderKind | None = None
    """Opens a session. The state is left only after every member that is not excluded has done this
    work under it.

    If there is a way back, the transition is undone when a member cannot do it.
    """
    cleaned_by: Callable[[Transition], list[str]] | None = None
    """Opens a session. The state is left only after these nodes have deleted rows of the plans'
    ranges that are not theirs.

    Excluded nodes are not awaited.
    """
    makes_cdc_generation: bool = False
    """Entering it writes a CDC generation with all tokens that may come or return; the step forward
    commits it.
    """
    awaits_all_acks: bool = False
    """The state is left only after every member that is not excluded has acknowledged it."""
    needs_new_tokens: bool = False
    """An operation whose nodes have no new tokens skips this state."""
    needs_subjects_up: bool = False
    """The state is left only while the operation's nodes are up: reads move to them next."""
    undoing: bool = False
    on_success: TransitionState | None = None
    on_failure: TransitionState | None = None
    turns_back_if: Callable[[Image, Transition], bool] | None = None
    """Condition for the step to ``on_failure``; None: always."""
    reads_have_moved: bool = False
    """Other nodes serve the reads. Only the coordinator turns it back, because the log does not
    know which replicas are alive.
    """

    @property
    def opens_session(self) -> bool:
        return self.streams or self.work_of_members is not None or self.cleaned_by is not None

    @property
    def can_be_cancelled(self) -> bool:
        """True if a cancel leaves all reads where they are."""
        return self.on_failure is not None and not self.reads_have_moved


class MissingCondition(msgspec.Struct, frozen=True):
    """The condition that a request waits for, in words, and the nodes that must act first.

    ``left`` is the remaining number of pieces of work and ``of`` the total; 0 means that they are
    not counted.
    """

    what: str
    nodes: tuple[str, ...] = ()
    left: int = 0
    of: int = 0


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of a request that needs no transition, because it changes no ranges.

    The coordinator takes the next step as soon as no condition is missing. It can be cancelled
    until it is done, and then ends at once. A running request with ``goes_back`` ends after its
    steps have undone its work.
    """

    missing: Callable[[Image, Request], MissingCondition | None]
    step: Callable[[Context, Request], tuple[AnyFact, ...]]
    goes_back: bool = False
    since: Callable[[Image, Request], int] = lambda image, request: 0
    """The epoch of its last step, if it takes several while it runs: each step is taken once."""


def done(context: Context, request: Request) -> tuple[AnyFact, ...]:
    """Return the facts of the last step of a served request."""
    return ended(context, context.image, request, RequestStatus.DONE, "")


class OwnPlacement(msgspec.Struct, frozen=True):
    """The separate placement of a keyspace while its replication changes.

    ``begins_as`` names the placement whose rows it copies; ``before`` and ``after`` are the
    replications.
    """

    name: str
    begins_as: str
    before: dict[str, int]
    after: dict[str, int]


def unchanged(image: Image, ring: Ring, subjects: tuple[Subject, ...]) -> Ring:
    return ring


def no_receivers(transition: Transition) -> list[str]:
    return []


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One kind of operation: its parts in the order in which they are called."""

    # The command queues a request, and the coordinator serves requests in order.
    kind: RequestKind
    command: type | None
    """The command that asks for it; None if the command of another kind does so and selects the
    kind.
    """
    ask: Callable[..., Any]
    """Decides that command: it queues the request or refuses it."""
    priority: int
    """Lower is served first: replace, join, remove, leave, rebuild, then the global requests."""

    # A request that changes no ranges opens no transition, so no later part applies but the end.
    served: Served | None = None
    asks_all: bool = False
    """It needs no transition, but every member must acknowledge its epoch."""
    foreseen: Callable[[Image, Request], tuple[str, ...]] = lambda image, request: ()
    """Work of other services for a request that needs no transition, in sentences."""

    # The coordinator checks who must be up before a pending request may open.
    needed: Callable[[Image, list[Request]], list[str]] = lambda image, requests: []
    """Nodes without which it does not start, sorted, in addition to receivers and quorums. None by
    default: quorums are fenced, and they refuse requests of the nodes that are down.
    """
    subjects_work: bool = True
    """True if its nodes are alive: it is undone if they are not, and live nodes form groups."""
    ends_by_silence: bool = False
    """It is undone or rejected after a needed node was silent for too long; others wait by default.

    The balancer asks again for what a tablet needs. A truncation that begins late would delete rows
    that are newer than the request.
    """
    prepared_by: Callable[[Image, Request], Set[str]] = lambda image, request: frozenset()
    """Nodes that must have prepared their storage before it opens; their acks report it."""
    grouped: bool = False
    """Pending requests may open together, as one transition with one plan."""

    # ``plan_group`` plans the transition, for the coordinator and again in the Advance.
    check: Callable[[Image, list[Request]], Rejection | None] = lambda image, requests: None
    """Returns why it has become impossible; called just before it opens."""
    subjects: Callable[[Image, Ring, list[Request]], tuple[Subject, ...]] | None = None
    """Its nodes with the tokens that they receive or had, given the ring after all open operations.
    None: no nodes.
    """
    own_placement: Callable[[Image, Request], OwnPlacement | None] = lambda image, request: None
    """The placement that it changes on an unchanged ring."""
    ring_after: Callable[[Image, Ring, tuple[Subject, ...]], Ring] = unchanged
    """The ring after the operation."""
    plans: Callable[[Image, list[Request]], dict[str, TransitionPlan]] | None = None
    """Its plans by placement, if they do not follow from ``ring_after``. Raises Rejected."""
    blocked: Callable[[Image, Transition, list[Request]], Rejection | None] = (
        lambda image, planned, requests: None
    )
    """Returns why it waits for later operations; it reserves no locks, which these may need."""

    # In each state of the open transition come its barriers, then its streams or the work of all
    # members.
    first: TransitionState | None = None
    """First state; None without a transition: it is served, asks all members, or only excludes its
    nodes.
    """
    states: Mapping[TransitionState, State] = field(default_factory=dict)
    on_open: Callable[[Image, Transition, int], Iterable[AnyFact]] = (
        lambda image, transition, version: ()
    )
    """Additional facts of the opening, given the new version."""
    touched: Callable[[Image, Transition], Iterable[frozenset[str]]] = lambda image, transition: ()
    """Replica sets of each of which a barrier needs a quorum (I5)."""
    receivers: Callable[[Transition], list[str]] = no_receivers
    """Nodes that must stream, sorted."""
    skipped_receivers: Callable[[Image, Transition], Set[str]] = lambda image, transition: (
        frozenset()
    )
    """Those receivers that the request leaves out."""
    sources: Callable[[Image, Transition, TransitionRow, str, Set[str]], Sources | None] = (
        sources_of_gained
    )
    """Sources of a planned range for a receiver, without unavailable nodes; None if it need not
    stream.
    """
    invalidated: Callable[[Image, Transition], str] = lambda image, transition: ""
    """Returns why the finished work of all members is useless; empty while it is not."""
    on_written: Callable[[Image, Transition, tuple[WrittenPart, ...], int], Iterable[AnyFact]] = (
        lambda image, transition, wrote, log_ms: ()
    )
    """Additional facts after all members have done a state's work.

    The arguments are the parts that nodes report to have written, and the log's own time in
    milliseconds.
    """

    # The end: what becomes of its nodes and its data once it is done, undone or refused.
    done: NodeState | None = None
    """State of its nodes once it is done."""
    on_done: Callable[[Image, Transition, int], Iterable[AnyFact]] = (
        lambda image, transition, epoch: ()
    )
    """Additional facts of the end, in the given epoch."""
    undone: NodeState | None = None
    """State of a blamed node after the operation was undone."""
    on_undone: Callable[[Image, Transition], Iterable[AnyFact]] = lambda image, transition: ()
    """Additional facts of the end after it was undone."""
    cleans_up: bool = True
    """Rows that its nodes hold and do not own are deleted after it; otherwise it deletes them
    itself.
    """
    rejected: NodeState | None = None
    """State of the node of a request that ended while pending; None leaves it unchanged."""
    child_requests: Callable[[Image, Request], Iterable[Request]] = lambda image, request: ()
    """Requests on its behalf, which are cancelled with it."""
    on_ended: Callable[[Image, Request], Iterable[AnyFact]] = lambda image, request: ()
    """Additional facts of the end of a request that has changed no ranges."""

    def following(
        self, state: TransitionState, subjects: tuple[Subject, ...]
    ) -> TransitionState | None:
        """Return the next state on the way forward; None if the transition ends."""
        to = self.states[state].on_success
        has_tokens = any(subject.tokens for subject in subjects)
        while to is not None and self.states[to].needs_new_tokens and not has_tokens:
            to = self.states[to].on_success
        return to

    def receiving(self, image: Image, transition: Transition) -> list[str]:
        """Return all nodes that must stream, sorted."""
        aside = self.skipped_receivers(image, transition)
        return [node_id for node_id in self.receivers(transition) if node_id not in aside]

    @property
    def is_of_nodes(self) -> bool:
        """True if nodes join, leave, move or are rebuilt by it."""
        return self.subjects is not None

    @property
    def excludes_only(self) -> bool:
        """True if the epoch that excludes its nodes completes it."""
        return not (self.states or self.served or self.asks_all)


def location_of(node: Node) -> NodeLocation:
    return NodeLocation(dc=node.dc, rack=node.rack)


def replicas_of_data(image: Image, transition: Transition) -> Iterable[frozenset[str]]:
    """Return every replica set of the transition's table, or of all tables of its keyspace.

    A keyspace's own placement is included.
    """
    schema = image.schema
    if transition.table_id:
        used = {schema.data_of(schema.tables[transition.table_id]).placement}
    else:
        keyspace = schema.by_id[transition.keyspace_id]
        used = {schema.data_of(table).placement for table in schema.tables_of(keyspace)}
        used |= {keyspace.placement} - {""}
    rows = (row for name in used for row in image.ring.placements[name].rows)
    return {frozenset(nodes) for row in rows for nodes in (row.reads, row.writes)}


GLOBAL_PRIORITY: Final = 100
"""Global requests follow all operations on nodes, and are served in the order of submission."""


def fence_missing(image: Image, epoch: int) -> MissingCondition | None:
    """Return the wait for the fence of the version in use at an epoch; None once it is fenced."""
    topology = image.topology
    if topology.settled() or topology.since_epoch > epoch:
        return None
    return MissingCondition(f"version {topology.version} to be fenced")


def every_member(image: Image, requests: list[Request]) -> list[str]:
    """Return all members and the nodes that ask, without those declared dead. None of them may be
    down.
    """
    members = {*image.membership.taking_part(), *(r.node_id for r in requests if r.node_id)}
    return sorted(members - declared_dead(requests))


def asking_nodes(image: Image, requests: list[Request]) -> list[str]:
    """Return the nodes that ask, without those declared dead.

    It starts while other nodes are down, as long as the receivers are up and every barrier has its
    quorums. Members that answer later are fenced out.
    """
    return sorted({r.node_id for r in requests if r.node_id} - declared_dead(requests))


def declared_dead(requests: Iterable[Request]) -> frozenset[str]:
    """Return the nodes that the requests declare permanently dead."""
    return frozenset(node_id for request in requests for node_id in request.dead_nodes)


def table_of(image: Image, request: Request) -> Table | None:
    """Return the table of a request, None if it was dropped since."""
    table = image.schema.tables.get(request.table_id)
    return None if table is None or image.schema.data_of(table).dropped_version else table


def requested_table(image: Image, request: Request) -> Table:
    """Return the table of a request. Raises Rejected if it was dropped since."""
    table = table_of(image, request)
    if table is None:
        raise Rejected("table_dropped", "The table was dropped.", "There is nothing left to do.")
    return table


def check_dead(image: Image, node_ids: Iterable[str]) -> Rejection | None:
    """Return what is wrong with the ids of nodes that are declared dead."""
    for node_id in node_ids:
        node = image.node(node_id)
        if node is None:
            return unknown_node(node_id)
        if node.state is NodeState.LEFT:
            return nothing_left_of(node_id)
    return None


def gaining_nodes(transition: Transition) -> list[str]:
    """Return the nodes that gain ranges, or hold them on another shard afterwards, sorted."""
    rows = transition.rows()
    return sorted({node for row in rows for node in (*row.coming(), *row.shifting())})


def receiving_nodes(transition: Transition) -> list[str]:
    """Return the nodes that must receive acknowledged writes before reads move to them, sorted."""
    return sorted({node for row in transition.rows() for node in row.receiving()})


def receiving_and_own_nodes(transition: Transition) -> list[str]:
    """Return the same nodes with the operation's own: streaming proves that these work before they
    get reads.
    """
    return sorted({*receiving_nodes(transition), *transition.nodes()})


def losing_nodes(transition: Transition) -> list[str]:
    """Return the nodes that lose ranges, or held them on another shard before, sorted."""
    rows = transition.rows()
    return sorted({node for row in rows for node in (*row.leaving(), *row.shifting())})


def planned_sets(image: Image, transition: Transition) -> Iterable[frozenset[str]]:
    """Return the old replicas, the new ones, and both together, of every range that the plans
    change; each set once.

    While a transition is being undone, no answers are counted. All versions in use read its ranges
    from the old replicas, and a quorum of those has each acknowledged write (docs/design.md, rule
    30). Later transitions of these ranges count for themselves.
    """
    return () if transition.mark else sets_of_both(transition)


def sets_of_both(transition: Transition) -> set[frozenset[str]]:
    """Return the old replicas, the new ones, and both together, of every planned range; each set
    once.
    """
    rows = {(row.old, row.new) for row in transition.rows()}
    return {frozenset(each) for old, new in rows for each in (old, new, (*old, *new))}


def more_dead_after(transition: Transition, dead: Set[str]) -> int:
    """Return how many more of the new replicas are dead than of the old ones, over all rows."""
    before = {node_id for row in transition.rows() for node_id in row.old}
    return len(new_replicas(transition) & dead) - len(before & dead)


def new_replicas(transition: Transition) -> set[str]:
    """Return the nodes that have any of its ranges after the transition."""
    return {node_id for row in transition.rows() for node_id in row.new}
