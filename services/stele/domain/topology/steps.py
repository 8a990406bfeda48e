"""Facts of entering a state of an operation, and of ending it, as its row declares."""

from functools import partial

import msgspec

from stele.domain.context import Context
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model.membership import NodeChanged
from stele.domain.model.requests import RequestChanged
from stele.domain.model.topology import Move
from stele.domain.model.transitions import Transition, TransitionFinished, TransitionMoved
from stele.domain.names import NodeState, RequestStatus, TransitionState
from stele.domain.rules.cdc import abandoned, committed, written
from stele.domain.rules.requests import ended
from stele.domain.rules.ring import tokens_of_streams
from stele.domain.topology.live_copies import tablets_may_lack_writes
from stele.domain.topology.operations.base import RowChange, gaining_nodes, losing_nodes
from stele.domain.topology.operations.table import OPERATIONS, State

# A draft of one epoch: its facts so far, and the image after them.


class Draft:
    """Facts of an epoch in which several transitions move; each sees the changes of those before
    it.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.image: Image = context.image
        self.facts: list[AnyFact] = []

    def add(self, *facts: AnyFact) -> None:
        self.facts.extend(facts)
        self.image = self.context.fold(self.image, facts)

    @property
    def version(self) -> int:
        """The topology version that the epoch creates."""
        return self.image.topology.version


replace = msgspec.structs.replace

Facts = tuple[AnyFact, ...]


def move(draft: Draft, transition: Transition, asked: Move) -> None:
    """Take the next step of a transition, or the step back of a marked one."""
    operation = OPERATIONS[transition.kind]
    state = operation.states[transition.state]
    if state.cleaned_by is not None:
        # If the new replicas may lack writes, the old rows may be the last copy: all are cleaned up
        # later.
        kept = tablets_may_lack_writes(draft.image, transition)
        late = [n for n in state.cleaned_by(transition) if kept or n in asked.uncleaned]
        draft.add(*_mark_cleanup(draft, late))
    goes_back = bool(transition.mark and state.on_failure)
    if state.work_of_members is not None and not goes_back:
        log_ms = draft.context.log_ms
        draft.add(*operation.on_written(draft.image, transition, asked.wrote, log_ms))
    if state.makes_cdc_generation:
        _close_generation(draft, transition, goes_back=goes_back)
    to = (
        state.on_failure
        if goes_back
        else operation.following(transition.state, transition.subjects)
    )
    if to is None:
        _end(draft, transition, undone=bool(transition.mark))
    else:
        enter(draft, transition, to)


def _close_generation(draft: Draft, transition: Transition, *, goes_back: bool) -> None:
    if goes_back:
        draft.add(*abandoned(draft.image, transition.transition_id))
    else:
        draft.add(*committed(draft.context, draft.image, transition.transition_id))


def enter(draft: Draft, transition: Transition, to: TransitionState) -> None:
    """Write session, placements and nodes of the state ``to``, all with the draft's version."""
    state = OPERATIONS[transition.kind].states[to]
    epoch = draft.context.epoch
    # Each working state has its own session: work of an earlier state has no later effect (rule
    # 41).
    session = draft.context.unique(transition.transition_id) if state.opens_session else ""
    draft.add(TransitionMoved(transition.transition_id, to, session, draft.version, epoch))
    _change_placements(draft, transition, state)
    draft.add(*_nodes(draft, transition, state))
    if state.makes_cdc_generation:
        tokens = tokens_of_streams(draft.image)
        draft.add(*written(draft.context, transition.transition_id, tokens))


def _change_placements(draft: Draft, transition: Transition, state: State) -> None:
    if state.delta is None:
        return
    for name in sorted(transition.plans):
        changes = partial(_changes_of, draft, transition, state.delta, name)
        draft.add(*draft.context.cache.once(("rows", transition.transition_id, name), changes))


def _changes_of(draft: Draft, transition: Transition, delta: RowChange, name: str) -> Facts:
    """Return the facts that give a placement the rows of the entered state."""
    ring = draft.image.ring
    changed = delta(ring.placements[name], transition.plans[name], draft.version)
    return (*ring.change(name, changed),) if changed.removed or changed.added else ()


def _nodes(draft: Draft, transition: Transition, state: State) -> list[AnyFact]:
    changes: list[AnyFact] = []
    for subject in transition.subjects:
        node = draft.image.membership.nodes[subject.node_id]
        tokens = subject.tokens if state.takes_tokens else node.tokens
        changed = replace(
            node,
            state=state.node_state or node.state,
            tokens=() if state.drops_tokens else tokens,
            num_tokens=len(tokens) if state.takes_tokens else node.num_tokens,
        )
        if changed != node:
            changes.append(NodeChanged(changed))
        if state.takes_tokens and subject.replaced_id:
            dead = draft.image.membership.nodes[subject.replaced_id]
            # A token has one owner, so the replaced node loses its tokens in the same epoch.
            changes.append(NodeChanged(replace(dead, tokens=())))
    return changes


def _end(draft: Draft, transition: Transition, *, undone: bool) -> None:
    """End a transition whose last version is fenced: release its locks and end its requests."""
    operation = OPERATIONS[transition.kind]
    # The locks end here and not earlier: the fence of the last version is known (rule 21).
    draft.add(TransitionFinished(transition.transition_id))
    for request_id in transition.request_ids():
        _end_request(draft, transition, request_id, undone=undone)
    if undone:
        draft.add(*operation.on_undone(draft.image, transition))
        if operation.cleans_up:
            draft.add(*_mark_cleanup(draft, gaining_nodes(transition)))
        return
    for subject in transition.subjects:
        if operation.done is not None:
            node = draft.image.membership.nodes[subject.node_id]
            changed = replace(node, state=operation.done)
            draft.add(NodeChanged(node.gone() if operation.done is NodeState.LEFT else changed))
    draft.add(*operation.on_done(draft.image, transition, draft.context.epoch))
    if operation.cleans_up:
        draft.add(*_mark_cleanup(draft, losing_nodes(transition)))


def _end_request(draft: Draft, transition: Transition, request_id: str, *, undone: bool) -> None:
    """End one request of a transition.

    If the transition was undone, a blamed request fails or is cancelled. The others become pending
    again.
    """
    request = draft.image.requests.requests[request_id]
    node = draft.image.node(request.node_id)
    operation = OPERATIONS[transition.kind]
    if not undone:
        draft.add(*ended(draft.context, draft.image, request, RequestStatus.DONE, request.error))
        return
    blamed = not transition.blamed or request_id in transition.blamed
    if blamed:
        status = RequestStatus.CANCELLED if request.cancelled else RequestStatus.FAILED
        draft.add(
            *ended(draft.context, draft.image, request, status, request.error or transition.mark)
        )
    else:
        waiting = replace(request, status=RequestStatus.PENDING, started_epoch=0, started_at_ms=0)
        draft.add(RequestChanged(waiting))
    if node is not None and operation.undone is not None:
        # A joining node that is not blamed may try again, so it must not become LEFT.
        waits_anew = NodeState.NONE if operation.undone is NodeState.LEFT else operation.undone
        state = operation.undone if blamed else waits_anew
        draft.add(NodeChanged(replace(node, state=state)))


def _mark_cleanup(draft: Draft, touched: list[str]) -> list[AnyFact]:
    """Mark nodes that hold rows of ranges that they do not own.

    Normal nodes receive the order to clean up. Nodes that leave, or wait to join, receive it once
    they are normal.
    """
    nodes, epoch = draft.image.membership.nodes, draft.context.epoch
    stay = [nodes[n] for n in touched if nodes[n].state is not NodeState.LEFT]
    return [NodeChanged(replace(node, cleanup_since=epoch)) for node in stay]
