"""Overrides: an operator replaces the state of the log, by facts of a new epoch."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

import msgspec

from stele.domain.base import Rejection, required
from stele.domain.column import as_list, column_of
from stele.domain.context import Context, Decision
from stele.domain.facts import AnyFact
from stele.domain.image import EMPTY_FOR_FOLLOWERS, Image
from stele.domain.model.commits import Commits, CommitsRestricted
from stele.domain.model.overrides import (
    LoadState,
    Override,
    OverridesImage,
    RevertState,
    StateReplaced,
)
from stele.domain.model.requests import DecidedFact
from stele.domain.model.ring import RingFact
from stele.domain.model.settings import KNOWN
from stele.domain.names import CommitMode, OverrideKind
from stele.domain.override_facts import LoadedFacts, begin, put_in_place
from stele.domain.registry_entry import Domain
from stele.domain.ring.placement import Placement, text_of
from stele.domain.ring.ranges import RangeReplicas, range_of
from stele.domain.soundness import MOST, flaws_of, number_flaws, under_way
from stele.domain.tables import Json, changed_fields, row_json

# Check for a log that was founded for an import and has not received its initial state.


FOUNDED: Final = 1
"""The epoch of a founding."""


def awaits_state(image: Image) -> bool:
    """Return True while the cluster has not received its initial state.

    Until then it has no valid state.
    """
    commits = image.commits
    frozen = commits.mode is CommitMode.FROZEN and commits.since_epoch == FOUNDED
    return frozen and image.overrides.begun_with is None


# A state as the bytes of a command: its facts as JSON, compressed.


LARGEST_BYTES: Final = 256 * 1024 * 1024
"""Limit of the uncompressed size: a hundred times that of a cluster of 300 nodes."""

_facts: Final[msgspec.json.Decoder[tuple[AnyFact, ...]]] = msgspec.json.Decoder(
    tuple[AnyFact, ...], dec_hook=column_of
)


def packed_state(facts: Iterable[AnyFact]) -> bytes:
    return zlib.compress(msgspec.json.encode([*facts], enc_hook=as_list))


def unpacked_state(content: bytes) -> tuple[AnyFact, ...]:
    """Return the facts in the content. Raises ValueError if it is no state."""
    unpacker = zlib.decompressobj()
    try:
        encoded = unpacker.decompress(content, LARGEST_BYTES)
        # The decompressor stops at the limit, so a small command cannot fill the memory.
        if not unpacker.eof:
            raise ValueError(f"it is torn, or has more than {LARGEST_BYTES} bytes")
        return _facts.decode(encoded)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (zlib.error, msgspec.MsgspecError) as error:
        raise ValueError(str(error)) from error


# The losses of an override: dropped data, and ranges whose readers may lack acknowledged rows.


def losses(before: Image, after: Image) -> list[str]:
    """Return each loss in words; empty when the read quorums still have every acknowledged row.

    A range is safe when it is read from the same shards of the same nodes as before. Any other set
    of replicas may have a quorum that lacks a row. No rows were streamed for it, and nodes that
    left the range may have deleted it.
    """
    found = list[str]()
    now = {data.data_id: data for data in after.schema.all_data()}
    for data in sorted(before.schema.all_data(), key=lambda data: data.name):
        if data.dropped_version:
            continue
        kept = now.get(data.data_id)
        if kept is None:
            found.append(f"{data.name} is dropped with its rows")
            continue
        old, new = before.ring.placements[data.placement], after.ring.placements[kept.placement]
        # The same object, so no row has changed.
        if old is new:
            continue
        found += (f"{data.name}, range {each}" for each in _moved(old, new))
    return [*found, *_unsafe_settings(before, after)]


def _unsafe_settings(before: Image, after: Image) -> Iterator[str]:
    """Yield the settings that ``SetSetting`` accepts only with force."""
    was, now = before.features.settings, after.features.settings
    for name in sorted(now):
        setting = KNOWN.get(name)
        if setting is not None and setting.is_unsafe(now[name]) and now[name] != was.get(name):
            yield f"with setting {name} at {now[name]} they are from now on"


def _moved(old: Placement, new: Placement) -> Iterator[str]:
    for row in new.rows:
        places = _readers(row)
        had = next(
            (each for each in old.overlapping(range_of(row)) if _readers(each) != places), None
        )
        if had is not None:
            yield (
                f"{text_of(range_of(row))} is read from {_names(row)}, and was from {_names(had)}"
            )


def _readers(row: RangeReplicas) -> set[tuple[str, int]]:
    return {(node, row.shard_of(node)) for node in row.reads}


def _names(row: RangeReplicas) -> str:
    return ", ".join(sorted(map(row.place, row.reads))) or "nobody"


# Decisions on overrides: the checks of the new state, and the facts that make it true.


def revert_state(context: Context, command: RevertState) -> Decision:
    required(_check_alone(context))
    if not 0 < command.to_epoch < context.epoch or not command.content:
        return Rejection(
            "unknown_epoch",
            f"There is no state of epoch {command.to_epoch} to go back to;"
            f" the log is at {context.image.epoch}.",
            "`stele epochs` shows which there are.",
        )
    target = required(_state(context, command.content, command.to_epoch))
    override = _override(context, OverrideKind.REVERT, command.to_epoch, command.accept_loss)
    return _replaced(context, target, override)


def load_state(context: Context, command: LoadState) -> Decision:
    required(_check_founded_for_it(context) if command.founds else _check_alone(context))
    target = required(_state(context, command.content, command.of_epoch))
    if not command.founds:
        override = _override(context, OverrideKind.LOAD, command.of_epoch, command.accept_loss)
        return _replaced(context, target, override)
    draft = LoadedFacts(context)
    required(begin(draft, target))
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
    """Check that only this operator can change the state now, and that a reason is given."""
    commits, envelope = context.image.commits, context.envelope
    if commits.mode is CommitMode.OPEN:
        return Rejection(
            "log_is_open",
            "The log accepts the commands of all actors, so the state may change under an override.",
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
    """Return the state in ``content``, which must be sound and at rest, or a rejection."""
    try:
        facts = unpacked_state(content)
        what = next(chain.from_iterable(map(number_flaws, filter(_is_no_row, facts))), None)
        if what is not None or not 0 <= of_epoch <= MOST:
            # A file may contain any facts. Folding them can fail in many ways, which all mean an
            # invalid file.
            raise ValueError(what or f"there is no epoch {str(of_epoch)[:40]}")
        target = context.fold(EMPTY_FOR_FOLLOWERS, facts)
    except (ValueError, LookupError, AssertionError, TypeError, OverflowError) as error:
        return Rejection(
            "no_state",
            f"The dump is no valid state: {str(error)[:300]}.",
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
            f"The state is not at rest: {flaw}; no coordinator would finish it.",
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
    draft = LoadedFacts(context)
    required(put_in_place(draft, target))
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


# The entry of overrides in the registry.


def state_replaced(image: OverridesImage, fact: StateReplaced) -> OverridesImage:
    if fact.override.kind is OverrideKind.FOUND:
        return msgspec.structs.replace(image, begun_with=fact.override)
    return msgspec.structs.replace(image, last=fact.override)


def to_facts(image: OverridesImage) -> Iterable[StateReplaced]:
    for override in (image.begun_with, image.last):
        if override is not None:
            yield StateReplaced(override)


def view(image: OverridesImage) -> Json:
    return {"overrides": image}


def diff(before: OverridesImage, after: OverridesImage) -> Json:
    fields = changed_fields(_fields(before.last), _fields(after.last))
    return {
        "overrides": fields or changed_fields(_fields(before.begun_with), _fields(after.begun_with))
    }


def _fields(override: Override | None) -> Json:
    return {} if override is None else row_json(override)


DOMAIN = Domain(
    name="overrides",
    empty=OverridesImage(),
    decide={RevertState: revert_state, LoadState: load_state},
    apply={StateReplaced: state_replaced},
    to_facts=to_facts,
    view=view,
    diff=diff,
)
