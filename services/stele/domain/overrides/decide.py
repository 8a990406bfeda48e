"""Whether a state may take the place of the log's own, and the facts that make it true."""

from itertools import chain

import msgspec

from stele.domain.base import Rejection
from stele.domain.commits.facts import Commits, CommitsRestricted
from stele.domain.context import Context, Decision
from stele.domain.facts import AnyFact
from stele.domain.image import EMPTY_FOR_FOLLOWERS, Image
from stele.domain.names import CommitMode, OverrideKind
from stele.domain.overrides.awaited import awaits_state
from stele.domain.overrides.commands import LoadState, RevertState
from stele.domain.overrides.content import unpacked_state
from stele.domain.overrides.draft import Draft
from stele.domain.overrides.facts import Override, StateReplaced
from stele.domain.overrides.first import begin
from stele.domain.overrides.loss import losses
from stele.domain.overrides.replace import put_in_place
from stele.domain.requests.facts import DecidedFact
from stele.domain.ring.facts import RingFact
from stele.domain.soundness.check import flaws_of
from stele.domain.soundness.numbers import MOST, number_flaws
from stele.domain.soundness.transitions import under_way


def revert_state(context: Context, command: RevertState) -> Decision:
    refused = _check_alone(context)
    if refused is not None:
        return refused
    if not 0 < command.to_epoch < context.epoch or not command.content:
        return Rejection(
            "unknown_epoch",
            f"There is no state of epoch {command.to_epoch} to go back to;"
            f" the log is at {context.image.epoch}.",
            "`stele epochs` shows which there are.",
        )
    target = _state(context, command.content, command.to_epoch)
    if isinstance(target, Rejection):
        return target
    override = _override(context, OverrideKind.REVERT, command.to_epoch, command.accept_loss)
    return _replaced(context, target, override)


def load_state(context: Context, command: LoadState) -> Decision:
    refused = _check_founded_for_it(context) if command.founds else _check_alone(context)
    if refused is not None:
        return refused
    target = _state(context, command.content, command.of_epoch)
    if isinstance(target, Rejection):
        return target
    if not command.founds:
        override = _override(context, OverrideKind.LOAD, command.of_epoch, command.accept_loss)
        return _replaced(context, target, override)
    draft = Draft(context)
    refused = begin(draft, target)
    if refused is not None:
        return refused
    override = Override(
        epoch=context.epoch,
        kind=OverrideKind.FOUND,
        of_epoch=command.of_epoch,
        of_cluster_id=command.of_cluster_id[:200],
        of_log_id=command.of_log_id[:32],
        hash_before=context.hash_of(context.image),
        hash_after=context.hash_of(draft.image),
        above_version=target.topology.version,
    )
    return *draft.facts, CommitsRestricted(Commits()), StateReplaced(override)


def _check_alone(context: Context) -> Rejection | None:
    """Nobody else may change what the operator has looked at; the reason becomes part of the history."""
    commits, envelope = context.image.commits, context.envelope
    if commits.mode is CommitMode.OPEN:
        return Rejection(
            "log_is_open",
            "The log takes everybody's commands, so the state may change under an override.",
            "Freeze it first: `stele log freeze`, or `stele log single-user` with your name.",
        )
    owner = commits.by if commits.mode is CommitMode.FROZEN else commits.actor
    if owner != envelope.actor:
        return Rejection(
            "not_yours",
            f"The log is {owner or '(nobody)'}'s at present, and not {envelope.actor or '(nobody)'}'s.",
            "Who froze it may override its state: ask there, or freeze it yourself.",
            {"owner": owner},
        )
    if not envelope.reason:
        return Rejection(
            "reason_missing",
            "An override stays in the history, and there is no reason for it.",
            "Say it with --reason.",
        )
    return None


def _check_founded_for_it(context: Context) -> Rejection | None:
    image = context.image
    if awaits_state(image) and not (image.membership.nodes or image.schema.by_id):
        return None
    return Rejection(
        "not_empty",
        f"Cluster '{image.cluster}' was not founded to begin with a dump, or has begun already.",
        "`stele found --from` needs an empty log, whose metadata-log runs with STELE_FOUND=no. To put a dump in"
        " the place of a cluster's state: `stele unsafe load`.",
    )


def _state(context: Context, content: bytes, of_epoch: int) -> Image | Rejection:
    """A sound state in which nothing is under way."""
    try:
        facts = unpacked_state(content)
        what = next(chain.from_iterable(map(number_flaws, filter(_is_no_row, facts))), None)
        if what is not None or not 0 <= of_epoch <= MOST:
            raise ValueError(what or f"there is no epoch {str(of_epoch)[:40]}")
        target = context.fold(EMPTY_FOR_FOLLOWERS, facts)
    except (ValueError, LookupError, AssertionError, TypeError, OverflowError) as error:
        return Rejection(
            "no_state",
            f"What is to be loaded is no state: {str(error)[:300]}.",
            "`stele state check` says what is wrong with a file.",
        )
    target = msgspec.structs.replace(target, epoch=max(of_epoch, context.epoch))
    flaw = next(flaws_of(target), None)
    if flaw is not None:
        return Rejection(
            "unsound_state",
            f"The state is unsound: {flaw}.",
            "`stele state check` shows all that is wrong with a file.",
        )
    flaw = next(under_way(target), None)
    if flaw is not None:
        return Rejection(
            "not_at_rest",
            f"The state is not at rest: {flaw}; nobody would work for it.",
            "Take that of another epoch, at which nothing was under way.",
        )
    return target


def _is_no_row(fact: AnyFact) -> bool:
    return not isinstance(fact, RingFact | DecidedFact)


def _override(context: Context, kind: OverrideKind, of_epoch: int, accept_loss: bool) -> Override:
    image = context.image
    return Override(
        epoch=context.epoch,
        kind=kind,
        of_epoch=of_epoch,
        of_cluster_id=image.cluster_id,
        of_log_id=image.log_id.hex(),
        hash_before=context.hash_of(image),
        hash_after="",
        above_version=image.topology.version,
        accept_loss=accept_loss,
    )


def _replaced(context: Context, target: Image, override: Override) -> Decision:
    draft = Draft(context)
    refused = put_in_place(draft, target)
    if refused is not None:
        return refused
    lost = losses(context.image, draft.image)
    if lost and not override.accept_loss:
        more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
        return Rejection(
            "rows_would_be_lost",
            f"Acknowledged rows may be lost: {lost[0]}{more}.",
            "Say --accept-loss if that is meant, and repair afterwards what is left.",
            {"losses": str(len(lost))},
        )
    done = msgspec.structs.replace(override, hash_after=context.hash_of(draft.image))
    facts: tuple[AnyFact, ...] = (*draft.facts, StateReplaced(done))
    return facts
