"""What a kind of operation is: one row object that says all about it (design, section 3).

No other module compares kinds. An operation is its file here, its command and its schema; see
docs/extending.md.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, Final

import msgspec

from stele.domain.base import Rejection
from stele.domain.context import Context, nothing_left_of, unknown_node
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.membership.facts import Node
from stele.domain.names import NodeState, OrderKind, RequestKind, RequestStatus, TransitionState
from stele.domain.requests.facts import Request
from stele.domain.requests.rows import ended
from stele.domain.ring.placement import Placement
from stele.domain.ring.strategy import NodeLocation
from stele.domain.ring.transition import (
    PlacementDelta,
    TransitionPlan,
    TransitionRow,
    stream_sources,
)
from stele.domain.table_snapshots.facts import WrittenPart
from stele.domain.topology.facts import Transition
from stele.domain.topology.heads import Subject
from stele.domain.topology.rings import Ring

Delta = Callable[[Placement, TransitionPlan, int], PlacementDelta]
"""How the rows of a placement change on entering a state, by the new version."""

Sources = tuple[tuple[str, ...], int]
"""Whom to stream a range from, and how many of them must be read through."""


def given_up(image: Image, transition: Transition) -> frozenset[str]:
    """Nodes whose data is given up: those that are excluded, when all who asked accept that."""
    requests = (image.request(request_id) for request_id in transition.request_ids())
    forced = all(request is not None and request.force for request in requests)
    return image.membership.excluded() if forced else frozenset()


def sources_of_gained(
    image: Image, transition: Transition, row: TransitionRow, node_id: str, unavailable: Set[str]
) -> Sources | None:
    """Sources of a range that the node must be given; None when it need not.

    Who forces it gives up what only excluded nodes have: the others must still give all that they have.
    """
    if node_id not in row.receiving():
        return None
    sources, needed = stream_sources(row, node_id, unavailable)
    if node_id in row.shifting():  # what it has itself is not given up
        return sources, needed
    lost = given_up(image, transition)
    return sources, min(needed, len({*row.old} - lost - {node_id})) if lost else needed


class State(msgspec.Struct, frozen=True, kw_only=True):
    """One state of an operation: what entering it writes, what it waits for, where it goes.

    Every state waits for the barrier and the fence of its version. Without ``on_success`` the transition
    ends after that; it is undone when it was marked. Without ``on_failure`` it is past the point of no return,
    or is itself the way back (``undoing``).
    """

    node_state: NodeState | None = None
    """State of the operation's nodes from here on; None leaves it."""
    delta: Delta | None = None
    """None leaves the rows as they are."""
    takes_tokens: bool = False
    """The operation's nodes have their planned tokens from here on."""
    drops_tokens: bool = False
    streams: bool = False
    """Opens a session, and is left only when the data has been streamed under it."""
    compares: bool = False
    """Who streams compares first, and pulls only what differs."""
    reads_stay: bool = False
    """No reads move to who streams, so those that are excluded are left out."""
    streams_by: OrderKind = OrderKind.STREAM
    """What receivers are ordered to do."""
    everybody_does: OrderKind | None = None
    """Opens a session, and is left only when every member that is not excluded has done this under it; where
    there is a way back, it is undone when one of them cannot.
    """
    cleaned_by: Callable[[Transition], list[str]] | None = None
    """Opens a session, and is left only when these nodes, but those that are excluded, have deleted what is not
    theirs of the ranges of the plans."""
    makes_cdc_generation: bool = False
    """Entering it writes a CDC generation with all tokens that may come back or come; going on commits it."""
    everybody_knows: bool = False
    """Left only when every member that is not excluded has acknowledged it."""
    needs_new_tokens: bool = False
    """Passed over by an operation whose nodes have none."""
    needs_subjects_up: bool = False
    """Left only while the operation's nodes are up: reads move to them next."""
    undoing: bool = False
    on_success: TransitionState | None = None
    on_failure: TransitionState | None = None
    turns_back_if: Callable[[Image, Transition], bool] | None = None
    """When it may go to ``on_failure``; None whenever it likes."""

    @property
    def opens_session(self) -> bool:
        return self.streams or self.everybody_does is not None or self.cleaned_by is not None


class Missing(msgspec.Struct, frozen=True):
    """What a request waits for, in words, and the nodes without which it is not done. ``left`` is what there is
    to do yet, ``of`` what there was in all; 0: it is not counted.
    """

    what: str
    nodes: tuple[str, ...] = ()
    left: int = 0
    of: int = 0


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """How a request is carried out that needs no transition, since it changes no ranges.

    The coordinator takes its next step as soon as nothing is missing. Until it is done it can be cancelled: it
    ends at once, or, once it runs and ``goes_back``, when what was done for it is undone, as its steps see to.
    """

    missing: Callable[[Image, Request], Missing | None]
    step: Callable[[Context, Request], tuple[AnyFact, ...]]
    goes_back: bool = False
    since: Callable[[Image, Request], int] = lambda image, request: 0
    """The epoch of its last step, when it takes several while it runs: each is taken once."""


def done(context: Context, request: Request) -> tuple[AnyFact, ...]:
    """The last step of a served request."""
    return ended(context, context.image, request, RequestStatus.DONE, "")


class OwnPlacement(msgspec.Struct, frozen=True):
    """The placement that a keyspace has for itself while its replication changes: its name, as which other
    placement it begins, and the replications before and after.
    """

    name: str
    begins_as: str
    before: dict[str, int]
    after: dict[str, int]


def unchanged(image: Image, ring: Ring, subjects: tuple[Subject, ...]) -> Ring:
    return ring


def no_receivers(transition: Transition) -> list[str]:
    return []


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of operation."""

    kind: RequestKind
    command: type | None
    """What a caller sends to ask for it; None: the command of another kind, which says when it is this one."""
    ask: Callable[..., Any]
    """Decides that command: queues the request, or refuses."""
    priority: int
    """Lower is served first (seed 000: replace, join, remove, leave, rebuild; then the global requests)."""
    first: TransitionState | None = None
    """None for what needs no transition: it is served, all are asked, or its nodes are excluded."""
    states: Mapping[TransitionState, State] = msgspec.field(default_factory=dict)
    served: Served | None = None
    asks_all: bool = False
    """It needs no transition, but an acknowledgement of its epoch by every member."""
    grouped: bool = False
    """Pending requests may open together, as one transition with one plan."""
    done: NodeState | None = None
    """State of its nodes once it is done."""
    undone: NodeState | None = None
    """State of a blamed node once it has been undone."""
    rejected: NodeState | None = None
    """State of the node of a request that ended while it was pending; None leaves it."""
    subjects: Callable[[Image, Ring, list[Request]], tuple[Subject, ...]] | None = None
    """The nodes with the tokens that they get or had, given the ring after all that is open. None: no nodes."""
    ring_after: Callable[[Image, Ring, tuple[Subject, ...]], Ring] = unchanged
    """The ring once it is done."""
    plans: Callable[[Image, list[Request]], dict[str, TransitionPlan] | Rejection] | None = None
    """Its plans by placement, where they are not the way to ``ring_after``."""
    plans_of_tablets: Callable[[Image, tuple[Subject, ...]], dict[str, TransitionPlan]] = (
        lambda image, subjects: {}
    )
    """What it changes of tablet maps besides."""
    held: Callable[[Image, Transition, list[Request]], Rejection | None] = (
        lambda image, planned, requests: None
    )
    """Why it has no room yet, and keeps no place for itself either: what comes later makes it."""
    prepared_by: Callable[[Image, Request], Set[str]] = lambda image, request: frozenset()
    """Nodes that must have prepared their storage before it opens; they say so in their acks."""
    cleans_up: bool = True
    """What its nodes have and is not theirs is deleted once it is over; else it has seen to that itself."""
    needed: Callable[[Image, list[Request]], list[str]]
    """Nodes without which it does not start, sorted (seed 000: all that are not ignored)."""
    subjects_work: bool = True
    """Whether its nodes are alive: it is undone when they are not, and those that are go together."""
    receivers: Callable[[Transition], list[str]] = no_receivers
    """Nodes that must stream, sorted."""
    left_aside: Callable[[Image, Transition], Set[str]] = lambda image, transition: frozenset()
    """Those of them that need not, by what was asked for."""
    sources: Callable[[Image, Transition, TransitionRow, str, Set[str]], Sources | None] = (
        sources_of_gained
    )
    """Whom a receiver streams a planned range from, without those who are unavailable; None: it need not."""
    touched: Callable[[Image, Transition], Iterable[frozenset[str]]]
    """Replica sets of which a barrier needs a quorum each (I5)."""
    foreseen: Callable[[Image, Request], tuple[str, ...]] = lambda image, request: ()
    """What others do for a request that needs no transition, in sentences."""
    check: Callable[[Image, list[Request]], Rejection | None] = lambda image, requests: None
    """Why it cannot be carried out any more, asked just before it opens."""
    made_for: Callable[[Image, Request], Iterable[Request]] = lambda image, request: ()
    """Requests on its behalf that are cancelled with it."""
    own_placement: Callable[[Image, Request], OwnPlacement | None] = lambda image, request: None
    """What it changes on a ring that stays as it is."""
    on_open: Callable[[Image, Transition, int], Iterable[AnyFact]] = (
        lambda image, transition, version: ()
    )
    """What else opening writes, by the new version."""
    on_done: Callable[[Image, Transition, int], Iterable[AnyFact]] = (
        lambda image, transition, epoch: ()
    )
    """What else finishing writes, in this epoch."""
    on_written: Callable[[Image, Transition, tuple[WrittenPart, ...], int], Iterable[AnyFact]] = (
        lambda image, transition, wrote, log_ms: ()
    )
    """What else is written when everybody has done what a state asks for, by what nodes have reported to have
    written, and the log's own time."""
    on_ended: Callable[[Image, Request], Iterable[AnyFact]] = lambda image, request: ()
    """What else ending a request writes that has changed no ranges."""
    spoiled: Callable[[Image, Transition], str] = lambda image, transition: ""
    """Why what everybody does has become worthless; empty while it has not."""
    on_undone: Callable[[Image, Transition], Iterable[AnyFact]] = lambda image, transition: ()
    """What else ending writes when it has been undone."""

    def following(
        self, state: TransitionState, subjects: tuple[Subject, ...]
    ) -> TransitionState | None:
        """The state after this one on the way forward; None: it ends."""
        to = self.states[state].on_success
        has_tokens = any(subject.tokens for subject in subjects)
        while to is not None and self.states[to].needs_new_tokens and not has_tokens:
            to = self.states[to].on_success
        return to

    def receiving(self, image: Image, transition: Transition) -> list[str]:
        """All who must stream, sorted."""
        aside = self.left_aside(image, transition)
        return [node_id for node_id in self.receivers(transition) if node_id not in aside]

    @property
    def excludes_only(self) -> bool:
        """It is done by the epoch that excludes its nodes."""
        return not (self.states or self.served or self.asks_all)


def location_of(node: Node) -> NodeLocation:
    return NodeLocation(dc=node.dc, rack=node.rack)


def replicas_of_data(image: Image, transition: Transition) -> Iterable[frozenset[str]]:
    """Every replica set of the transition's table, or of its keyspace and all tables of that."""
    schema = image.schema
    if transition.table_id:
        used = {schema.data_of(schema.tables[transition.table_id]).placement}
    else:
        keyspace = schema.by_id[transition.keyspace_id]
        used = {schema.data_of(table).placement for table in schema.tables_of(keyspace)}
        used |= {keyspace.placement} - {""}
    rows = (row for name in used for row in image.ring.placements[name].rows)
    return {frozenset(nodes) for row in rows for nodes in (row.reads, row.writes)}


def no_sets(image: Image, transition: Transition) -> Iterable[frozenset[str]]:
    return ()


GLOBAL_PRIORITY: Final = 100
"""Global requests come after all that is about nodes, and among themselves in the order of asking."""


def fence_missing(image: Image, epoch: int) -> Missing | None:
    """The fence of the version that was in use at an epoch; None once that is fenced."""
    topology = image.topology
    if topology.settled() or topology.since_epoch > epoch:
        return None
    return Missing(f"version {topology.version} to be fenced")


def nobody(image: Image, requests: list[Request]) -> list[str]:
    """It starts whoever is down: quorums are fenced, the rest is refused by them."""
    return []


def every_member(image: Image, requests: list[Request]) -> list[str]:
    """All members but those who are declared dead, and the nodes that ask: none of them may be down."""
    members = {*image.membership.taking_part(), *(r.node_id for r in requests if r.node_id)}
    return sorted(members - declared_dead(requests))


def declared_dead(requests: Iterable[Request]) -> frozenset[str]:
    """The nodes that whoever asked says are dead for good."""
    return frozenset(node_id for request in requests for node_id in request.dead_nodes)


def check_dead(image: Image, node_ids: Iterable[str]) -> Rejection | None:
    """What is wrong with the names of nodes that are declared dead."""
    for node_id in node_ids:
        node = image.node(node_id)
        if node is None:
            return unknown_node(node_id)
        if node.state is NodeState.LEFT:
            return nothing_left_of(node_id)
    return None


def gaining_nodes(transition: Transition) -> list[str]:
    """Nodes that gain ranges, or have them on other shards then, sorted."""
    rows = _planned_rows(transition)
    return sorted({node for row in rows for node in (*row.coming(), *row.shifting())})


def receiving_nodes(transition: Transition) -> list[str]:
    """Nodes that must be given what was acknowledged before reads move to them, sorted."""
    return sorted({node for row in _planned_rows(transition) for node in row.receiving()})


def losing_nodes(transition: Transition) -> list[str]:
    """Nodes that lose ranges, or had them on other shards before, sorted."""
    rows = _planned_rows(transition)
    return sorted({node for row in rows for node in (*row.leaving(), *row.shifting())})


def planned_sets(image: Image, transition: Transition) -> Iterable[frozenset[str]]:
    """The replicas before, those after, and both together, of every range that the plans change; each once.

    While it is being undone nobody is counted: its ranges are read from the old replicas in every version
    in use, and a quorum of those has each acknowledged write. What follows on these ranges counts for
    itself.
    """
    return () if transition.mark else sets_of_both(transition)


def sets_of_both(transition: Transition) -> set[frozenset[str]]:
    """Of every range that the plans change the replicas before, those after, and both together; each once."""
    rows = {(row.old, row.new) for row in _planned_rows(transition)}
    return {frozenset(each) for old, new in rows for each in (old, new, (*old, *new))}


def more_dead_after(transition: Transition, dead: Set[str]) -> int:
    """How many more of the replicas after are dead than of those before, of all rows together."""
    before = {node_id for row in _planned_rows(transition) for node_id in row.old}
    return len(new_replicas(transition) & dead) - len(before & dead)


def new_replicas(transition: Transition) -> set[str]:
    """Whoever has any of its ranges once it is done."""
    return {node_id for row in _planned_rows(transition) for node_id in row.new}


def _planned_rows(transition: Transition) -> Iterable[TransitionRow]:
    return (row for plan in transition.plans.values() for row in plan.rows)
