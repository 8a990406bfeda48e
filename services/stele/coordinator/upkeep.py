"""Work beside the rounds, which blocks no transition.

- Requests that ask all members, such as the enabling of a feature: they are finished after a
  barrier.
- Requests without a transition: each step is taken as soon as no condition is missing.
- Cleanup by nodes that hold data of others.
- CDC generations: each is published in order, and forgotten when its time is over.
- Table snapshots: each is deleted when its time is over.
"""

from stele.coordinator.actions import Action, CommandAction, TimerStart, reject
from stele.coordinator.model import StepContext, Wait
from stele.coordinator.work import failure_of, is_done, order_work, retry_later
from stele.domain.commands import Rejection
from stele.domain.model.cdc import ForgetCdcGeneration, PublishCdcGeneration
from stele.domain.model.membership import Node
from stele.domain.model.requests import Request
from stele.domain.model.table_snapshots import ExpireTableSnapshot
from stele.domain.model.topology import FinishCleanup, FinishEnabling, ServeRequest
from stele.domain.names import OrderKind, WaitKind
from stele.domain.rules.cdc import to_forget, to_publish
from stele.domain.rules.table_snapshots import expired
from stele.domain.topology.barriers import Barrier, Blocker
from stele.domain.topology.live_copies import described, short_of_writes
from stele.domain.topology.operations.base import MissingCondition
from stele.domain.topology.operations.table import OPERATIONS

# --- requests that ask all members


def finish_enabling(context: StepContext) -> list[Action]:
    """Finish requests that ask all members, once these have acknowledged the request's epoch."""
    actions = list[Action]()
    for request in context.image.requests.pending():
        if OPERATIONS[request.kind].asks_all:
            answered = context.barrier_on(request.submitted_epoch)
            if answered.complete:
                actions.append(_finish(context, request))
            else:
                actions += _wait_for_all(context, request, answered)
    return actions


def _finish(context: StepContext, request: Request) -> CommandAction:
    """Finish the request, or reject it if the log's writer has refused that.

    The refusal is final. A writer that does not support the feature refuses it, for instance.
    """
    ids = (request.request_id,)
    command = FinishEnabling(context.term, request.request_id)
    refusal = context.refusal(command)
    if refusal is None:
        return CommandAction(command, ids)
    (rejection,) = reject(context, ids, refusal)
    return rejection


def _wait_for_all(context: StepContext, request: Request, answered: Barrier) -> list[Action]:
    ids, blockers = (request.request_id,), answered.blockers
    dead, patience, timers = list[str](), None, list[Action]()
    if not context.outlasts_silence(request.kind):
        since_s = context.timer_since_s(request.request_id)
        timers = [TimerStart(request.request_id)]
        dead = context.dead([blocker.node_id for blocker in blockers], since_s)
        patience = context.patience_with_dead(since_s)
    if not dead:
        what = "every member, to enable features"
        return [*timers, Wait(WaitKind.MEMBERS, what, blockers, ids, patience)]
    text = f"It is unknown with which build {', '.join(dead)} will come back: dead nodes."
    hint = f"Start them; or if they are dead for good, `stele exclude {' '.join(dead)}`."
    return [*timers, *reject(context, ids, Rejection("dead_nodes", text, hint))]


# --- requests without a transition


def serve(context: StepContext) -> list[Action]:
    """Take the next steps of requests without a transition, in the order of the requests.

    They wait for work that proceeds anyway, so they block no other request. Their waits name the
    missing condition.
    """
    image, actions = context.image, list[Action]()
    for request in image.requests.unfinished():
        served, ids = OPERATIONS[request.kind].served, (request.request_id,)
        if served is None:
            continue
        missing = served.missing(image, request)
        if missing is None:
            step_epoch = served.since(image, request)
            step = ServeRequest(context.term, request.request_id, request.status, step_epoch)
            actions.append(CommandAction(step, ids))
        else:
            kind = WaitKind.WORK if missing.nodes else WaitKind.REST
            blockers, eta_s = _blockers(context, missing), _eta_s(context, request, missing)
            actions.append(Wait(kind, missing.what, blockers, ids, eta_s=eta_s))
    return actions


def _eta_s(context: StepContext, request: Request, missing: MissingCondition) -> float | None:
    """Return the seconds until its end, by the progress since its start.

    It is None without progress, and while the request is being cancelled.
    """
    done = missing.of - missing.left
    if done <= 0 or not request.started_at_ms or request.cancelled:
        return None
    elapsed_s = max(0.0, context.seen.wall_ms - request.started_at_ms) / 1000
    return elapsed_s * missing.left / done


def _blockers(context: StepContext, missing: MissingCondition) -> tuple[Blocker, ...]:
    down = context.down([*missing.nodes])
    silent = {blocker.node_id for blocker in down}
    working = (n for n in missing.nodes if n not in silent)
    late = (Blocker(n, "has not reported yet", context.silent_for_s(n)) for n in working)
    return *down, *late


# --- cleanup


def clean_up(context: StepContext) -> list[Action]:
    """Order cleanup from live nodes that hold data of others, beside all other work.

    This is safe: a node deletes only ranges that no placement and no open plan gives to it, and
    checks before each batch. While the live replicas of a range may lack acknowledged writes, all
    nodes keep their data.
    """
    image, excluded = context.image, context.image.membership.excluded()
    dirty = [node for node in image.membership.normal().values() if node.cleanup_since]
    short = tuple(short_of_writes(image, excluded)) if dirty else ()
    if short:
        dead = ", ".join(sorted(frozenset[str]().union(*(each.dead(excluded) for each in short))))
        what = f"cleanup until {described(image, short)} no longer depend on {dead}"
        return [Wait(WaitKind.CLEANUP, what)]
    # A node that is down keeps its mark and gets the order after its return.
    up = (node for node in dirty if context.is_up(node.node_id))
    return [action for node in up for action in _clean_up_node(context, node)]


def _clean_up_node(context: StepContext, node: Node) -> list[Action]:
    node_id, session = node.node_id, node.cleanup_session()
    work = (node_id, OrderKind.CLEANUP, session)
    if is_done(context, work):
        return [CommandAction(FinishCleanup(context.term, node_id, session))]
    failure = failure_of(context, work)
    if failure:
        blockers = (Blocker(node_id, failure, context.silent_for_s(node_id)),)
        what = f"the next try to clean up: {failure}"
        return [*retry_later(context, work), Wait(WaitKind.CLEANUP, what, blockers)]
    then = "it is tried again later"
    state = order_work(context, OrderKind.CLEANUP, session, node.request_id, [node_id], then)
    what = f"cleanup by {node_id}"
    wait = Wait(WaitKind.CLEANUP, what, state.unfinished, patience=state.patience)
    return [*state.orders, wait]


# --- CDC generations and table snapshots


def keep_generations(context: StepContext) -> list[Action]:
    """Publish the oldest unpublished generation once that is safe. Forget generations whose time is
    over by this clock.

    A generation is published once every member that is not excluded has applied the epoch with its
    time. No request waits for this.
    """
    image, actions = context.image, list[Action]()
    due = to_publish(image)
    if due and context.barrier_on(image.cdc.generations[due].committed_epoch).complete:
        actions.append(CommandAction(PublishCdcGeneration(context.term, due)))
    for generation_id in to_forget(image, context.seen.wall_ms):
        actions.append(CommandAction(ForgetCdcGeneration(context.term, generation_id)))
    return actions


def expire_snapshots(context: StepContext) -> list[Action]:
    """Delete the table snapshots whose time is over by this clock. The log checks its own time
    again. No request waits for this.
    """
    due = expired(context.image, context.seen.wall_ms)
    return [CommandAction(ExpireTableSnapshot(context.term, each)) for each in due]
