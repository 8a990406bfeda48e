"""Actions that rules return, and ``carried_out``, which turns them into the steps of one call.

A rule states what it wants at every call: a command, an order, a wait. Here these become messages:
a command or an order is sent once, and again only after ``resend_s`` without an effect. All ids and
indexes are made here.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

import msgspec
from immutables import Map

from stele.coordinator.model import (
    Patience,
    SentCommand,
    SentOrder,
    StepContext,
    Steps,
    Wait,
    count_refusals,
    refusal_text,
)
from stele.domain.commands import AnyCommand, Envelope, Rejection, command_name
from stele.domain.messages import Order, WorkKey
from stele.domain.model.requests import RejectRequest, asking_ms, uuid8
from stele.domain.names import COORDINATOR, WaitKind
from stele.domain.not_taken import horizon_of, restricted_text, takes_from


class CommandAction(msgspec.Struct, frozen=True):
    """A command whose effect the log lacks. ``request_ids`` are the requests that wait for it."""

    command: AnyCommand
    request_ids: tuple[str, ...] = ()
    why: str = ""
    """The reason that the log keeps; without one it names the term."""


class WorkOrder(msgspec.Struct, frozen=True):
    """An order that is due now, for a piece of work of a node."""

    work: WorkKey
    request_id: str
    tries: int = 1
    excused: int = 0
    """See ``SentOrder``."""


class WorkReset(msgspec.Struct, frozen=True):
    """Forget the orders of a piece of work, so that its tries are counted from the start."""

    work: WorkKey


class TimerStart(msgspec.Struct, frozen=True):
    """Start a timer, unless it runs already."""

    key: str


class TimerStop(msgspec.Struct, frozen=True):
    """Stop a timer, if it runs."""

    key: str


Action = CommandAction | WorkOrder | WorkReset | TimerStart | TimerStop | Wait

Actions = Sequence[Action]


class Check(msgspec.Struct, frozen=True):
    """The answer of a rule to a question, and the actions that follow from it."""

    passed: bool
    actions: Actions = ()


PASSED: Final = Check(passed=True)


def failed(*actions: Action) -> Check:
    return Check(False, actions)


def reject(
    context: StepContext, request_ids: tuple[str, ...], refusal: Rejection
) -> list[CommandAction]:
    """End pending requests, with advice to the user."""
    why = f"{refusal.message} {refusal.hint}"
    return [CommandAction(RejectRequest(context.term, i, why), (i,)) for i in request_ids]


def carried_out(context: StepContext, actions: Iterable[Action]) -> Steps:
    """Return the steps for these actions, in their order, with the memory of the next call."""
    memory, now_s = context.memory, context.seen.now_s
    sent, ordered, timers = memory.commands, memory.orders, memory.timers
    commands, orders, waits = list[Envelope](), list[Order](), list[Wait]()
    for action in actions:
        match action:
            case CommandAction():
                key = repr(action.command)
                wait, envelope = _submitted(context, action, sent.get(key))
                waits.append(wait)
                if envelope is not None:
                    refused = count_refusals(sent.get(key), context.seen)
                    sent = sent.set(key, SentCommand(envelope.request_id, now_s, refused))
                    commands.append(envelope)
            case WorkOrder(work):
                # A node refuses an index that it has seen, so each order has the next one.
                index = memory.next_index + len(orders)
                before = ordered.get(work)
                first_at_s = now_s if before is None else before.first_at_s
                newest = SentOrder(index, now_s, first_at_s, action.tries, action.excused)
                ordered = ordered.set(work, newest)
                orders.append(_order(context, action, index))
            case WorkReset(work):
                ordered = ordered.delete(work)
            case TimerStart(key):
                timers = timers if key in timers else timers.set(key, now_s)
            case TimerStop(key):
                timers = timers.delete(key) if key in timers else timers
            case Wait():
                waits.append(action)
    begun = {wait.key(): memory.wait_starts.get(wait.key(), now_s) for wait in waits}
    memory = msgspec.structs.replace(
        memory,
        wait_starts=Map(begun),
        timers=timers,
        next_index=memory.next_index + len(orders),
        commands=sent,
        orders=ordered,
    )
    timed = (msgspec.structs.replace(wait, since_s=begun[wait.key()]) for wait in waits)
    return Steps(memory, tuple(commands), tuple(orders), tuple(timed))


def _submitted(
    context: StepContext, action: CommandAction, sent: SentCommand | None
) -> tuple[Wait, Envelope | None]:
    """Return the wait for a command's effect, and the message if one is due.

    The id stays the same until the log shows the effect or the refusal. A refusal is final for its
    id, so the next attempt has another one (docs/design.md, rule 4).
    """
    seen, limits, name = context.seen, context.limits, command_name(action.command)
    if not takes_from(seen.image.commits, COORDINATOR):
        # The log rejects commands of the coordinator now, so it sends none. All other work continues.
        restricted = restricted_text(seen.image.commits)
        what = f"the log to take {name}"
        kind = WaitKind.RESTRICTED
        return Wait(kind, what, request_ids=action.request_ids, detail=restricted), None
    # The wait is recorded even if nothing is sent now: the command still lacks its effect.
    sent_s = seen.now_s if sent is None else sent.at_s
    patience = Patience(sent_s, limits.resend_s, "STELE_RESEND_S", "it is sent again")
    what = f"the log to commit {name}{refusal_text(sent, seen)}"
    wait = Wait(WaitKind.LOG, what, request_ids=action.request_ids, patience=patience)
    if sent is not None and seen.now_s - sent.at_s < limits.resend_s:
        return wait, None
    refused = count_refusals(sent, seen)
    # A repeat keeps its id, so the log applies it once. A refused id would return the same refusal.
    is_repeat = sent is not None and sent.refused == refused
    envelope = Envelope(
        request_id=sent.request_id
        if sent is not None and is_repeat
        else _new_id(context, action.command, refused),
        command=action.command,
        actor=COORDINATOR,
        reason=action.why or f"term {seen.term}",
    )
    return wait, envelope


def _new_id(context: StepContext, command: AnyCommand, refused: int) -> str:
    """Return a UUIDv8 from the time of the image's state, and a hash of that state and of the
    command.

    If the log forgot ids that were ahead of its newest state, all ids with that state's time are
    too old. The refusal of such an id contains the horizon, and the new id is later than that.
    """
    seen, image = context.seen, context.image
    unique = f"{image.cluster_id}/{context.memory.round}/{refused}/{command!r}".encode()
    # No randomness: after a crash the next coordinator must compute the same id (rule 4).
    digest = blake2b(image.state_id + unique, digest_size=16).digest()
    horizon_ms = max(map(horizon_of, seen.refusals.values()), default=-1)
    return uuid8(asking_ms(image.state_id, seen.wall_ms, horizon_ms), digest)


def _order(context: StepContext, action: WorkOrder, index: int) -> Order:
    topology, (node_id, kind, session) = context.image.topology, action.work
    return Order(
        node_id=node_id,
        term=context.term,
        index=index,
        kind=kind,
        # The node must apply the version and its fence before it works (rule 43).
        epoch=max(topology.since_epoch, topology.fence_epoch),
        session=session,
        request_id=action.request_id,
        log_id=context.image.log_id,
    )
