"""Build the records of a command: decide it on a state, split large decisions, and encode the result.

Without input and output. Records in flight carry the futures of their callers.
"""

import asyncio
from collections.abc import Callable, Iterator, Set
from typing import Final, cast

import msgspec

from stele.domain.base import Rejection
from stele.domain.commands import (
    Advance,
    AlterSchema,
    AnyCommand,
    CreateKeyspace,
    CreateTable,
    Envelope,
    FoundCluster,
    LoadState,
    Outcome,
    RevertState,
    Rollback,
    command_name,
)
from stele.domain.context import Decision, DecisionCache
from stele.domain.decide import decide
from stele.domain.evolve import evolve
from stele.domain.facts import AnyFact, Epoch
from stele.domain.image import NO_LOG, Image
from stele.domain.model.cluster import ClusterCreated
from stele.domain.model.requests import CommandRefused, time_ms
from stele.domain.model.schema import KeyspaceCreation, TableCreation, ViewCreation
from stele.domain.not_taken import expired, restricted
from stele.domain.registry import features_of
from stele.domain.staging import Part, PartsCommitted, StagedFact
from stele.log.chain import STATE_BYTES
from stele.log.codec import encode_epoch, fact_size

ENTROPY_BITS: Final = 74
"""Random bits: 128 less those of the time, the version and the variant."""
_VERSION_7: Final = 0x7 << 76
_VARIANT: Final = 0b10 << 62

# Records in flight of a commit pipeline, with their commands and waiting callers.

MAX_RECORD_BYTES: Final = 8 * 1024 * 1024 - 4096
"""Largest record, in bytes. The topic takes 8 MiB including the header of the batch."""

Pending = asyncio.Future[Outcome]
"""The outcome of a command or read. A caller that gives up cancels it."""
Records = list[tuple[bytes, Epoch]]
"""Pairs of encoded bytes and epoch, each chained to the record before it."""


class Waiting(msgspec.Struct, frozen=True):
    """A caller with its command.

    ``digest`` is that of the command as its caller sent it. ``problem`` is the reason to refuse the
    command unless it was decided before.
    """

    envelope: Envelope
    digest: bytes
    pending: Pending
    problem: Rejection | None = None


class CommandInFlight(msgspec.Struct):
    """A command in flight, all callers that wait for it, and its refusal if it is refused."""

    request_id: str
    digest: bytes
    callers: list[Waiting]
    refused: CommandRefused | None = None


class InFlight(msgspec.Struct):
    """A record in flight, the image if it wins, and the callers that wait for it.

    A NOOP carries refusals, which rest on the state before it. They are answered when it wins,
    and decided again when it loses. ``readers`` are linearizable reads. ``not_taken`` are commands whose
    reason is certain once the NOOP has won. A part has no callers, because its command waits for
    the record that commits the parts.
    """

    value: bytes
    image: Image
    commands: list[CommandInFlight] = []
    readers: list[Pending] = []
    not_taken: list[Waiting] = []


class PendingNoop(msgspec.Struct):
    """A NOOP record that is not encoded yet.

    ``image`` is the image after it, without the effect of its refusals on the memory.
    """

    image: Image
    at_ms: int
    size_bytes: int = 0
    commands: list[CommandInFlight] = []
    readers: list[Pending] = []
    not_taken: list[Waiting] = []


def set_outcome(pending: Pending, outcome: Outcome) -> None:
    """Give a caller its outcome, unless the caller has given up."""
    if not pending.done():
        pending.set_result(outcome)


def images_after(image: Image, records: Records) -> Iterator[Image]:
    """Yield the image after each of the records, as if all of them win."""
    for _, epoch in records:
        image = evolve(image, epoch)
        yield image


def outcome_of(request_id: str, image: Image, rejection: Rejection | None) -> Outcome:
    """Return the outcome of a request that was decided at the epoch of ``image``."""
    return Outcome(
        request_id=request_id,
        applied=rejection is None,
        epoch=image.epoch,
        state_id=image.state_id,
        rejection=rejection,
        log_id=image.log_id,
    )


def why_not_taken(image: Image, envelope: Envelope) -> Rejection | None:
    """Return why an undecided command is not taken in this state; None when it can be decided."""
    decided = image.decided
    if decided is not None and time_ms(envelope.request_id) <= decided.horizon_ms:
        return expired(decided.horizon_ms)
    return restricted(image.commits, envelope)


def log_id_of_founding(facts: tuple[AnyFact, ...]) -> bytes:
    """Return the log id that the facts of a founding record create."""
    fact, *_ = facts
    assert isinstance(fact, ClusterCreated)
    return bytes.fromhex(fact.log_id)


def size_of_refusal(fact: CommandRefused) -> int:
    """Return an upper estimate of the bytes of a refusal in a record, at four bytes a character."""
    texts = (fact.message, fact.hint, fact.actor, fact.reason, fact.origin)
    details = (text for item in fact.details.items() for text in item)
    return 200 + 4 * sum(map(len, (*texts, *details)))


def internal(error: Exception) -> Rejection:
    """Return the rejection for a command that raised ``error`` in the core."""
    return Rejection(
        "internal",
        "The command breaks the metadata log's own rules, so nothing was changed.",
        "Report it with the service's log.",
        {"error": repr(error)[:500]},
    )


def too_large(size_bytes: int) -> Rejection:
    """Return the rejection for a change with a fact that needs a record of ``size_bytes``."""
    return Rejection(
        "record_too_large",
        f"A single fact of the change needs a record of {size_bytes} bytes; the log takes {MAX_RECORD_BYTES}.",
        "Shorten the command's largest value.",
        {"size_bytes": str(size_bytes)},
    )


# Large commands: decided in a thread, while the commands that arrive meanwhile are held.
#
# A command that may touch every row of large placements takes seconds. It is decided on the state
# after all records in flight. That state stays the newest because no other command is decided: those
# that arrive wait in their order. If the record of another writer wins meanwhile, the decision is
# discarded. See docs/design.md, rules 9 and 15.


Made = tuple[Records, list[Image]] | Rejection | Exception
"""The result of a decision: records with the image after each, a rejection, or an exception."""

WHOLE_PLACEMENTS: Final = (
    Advance,
    Rollback,
    CreateKeyspace,
    CreateTable,
    RevertState,
    LoadState,
    KeyspaceCreation,
    TableCreation,
    ViewCreation,
)
"""Commands and changes whose decision may read or create many rows of the placements."""
LARGE_ROWS: Final = 5_000
"""Rows from which a command is large: reading all of them takes about 20 ms of a processor."""
LARGE_CHANGES: Final = 50
"""Changes from which a batch of schema changes is large: each may create a table."""
LARGE_BYTES: Final = 64 * 1024
"""Size of a state inside a command from which the command is large."""


class Deciding(msgspec.Struct):
    """A command under decision, with the commands (in order) and reads that arrived meanwhile.

    ``decide`` reads immutable images only, so any thread may call it.
    """

    command: CommandInFlight
    decide: Callable[[], Made]
    held: list[Waiting] = []
    readers: list[Pending] = []

    def __len__(self) -> int:
        return 1 + len(self.held) + len(self.readers)


def is_large(image: Image, command: AnyCommand) -> bool:
    """Return whether the decision on ``image`` may block an event loop for too long."""
    changes = command.changes if isinstance(command, AlterSchema) else (command,)
    if len(changes) >= LARGE_CHANGES:
        return True
    rows = [_rows(image, change) for change in changes if isinstance(change, WHOLE_PLACEMENTS)]
    return bool(rows) and sum(rows) >= LARGE_ROWS


def _rows(image: Image, change: object) -> int:
    """Return the number of rows that the decision on a command or change may read or create."""
    rows = image.ring.rows
    if isinstance(change, RevertState | LoadState) and len(change.content) >= LARGE_BYTES:
        return LARGE_ROWS
    if isinstance(change, CreateKeyspace | KeyspaceCreation):
        return rows + sum(len(node.tokens) for node in image.membership.nodes.values())
    if isinstance(change, CreateTable | TableCreation | ViewCreation):
        keyspace = image.schema.named(change.name.partition(".")[0])
        tablets = 0 if keyspace is None else keyspace.initial_tablets
        # Only the first new table of a process counts the tablets of all others.
        others = 0 if image.ring.has_tablet_counts else rows
        return others + max(tablets, change.options.min_tablet_count)
    return rows


# Split decisions too large for one record into parts and a commit (docs/design.md, rule 7).


PART_BYTES: Final = 4 * 1024 * 1024
"""Target size of the facts in one record, in bytes. It is half of the limit of a record, so one
fact more still fits."""

Facts = tuple[AnyFact, ...]
DecideAfter = Callable[[int], Decision]
"""Return the decision as it is after the given number of further epochs."""


def in_parts(
    facts: Facts, staging_id: str, decide_after: DecideAfter, part_bytes: int
) -> tuple[list[Part], Facts] | Rejection:
    """Split a decision into parts and the facts of the record that commits them.

    Facts name the epoch that makes them true, which follows the parts. Therefore the command is
    decided again for that epoch. If it then needs one more part, it is decided once more. If it
    needs fewer, empty parts are sent. Returns a rejection when a later decision refuses the
    command.
    """
    sizes = _Sizes()
    groups, parts = list(_groups(facts, part_bytes, sizes)), 0
    while len(groups) - 1 > parts:
        parts = len(groups) - 1
        decision = decide_after(parts)
        if isinstance(decision, Rejection):
            return decision
        groups = list(_groups(decision, part_bytes, sizes))
    if parts == 0:
        return [], facts
    *staged, rest = groups
    staged += [()] * (parts - len(staged))
    found = [
        Part(staging_id, index, cast("tuple[StagedFact, ...]", group))
        for index, group in enumerate(staged)
    ]
    return found, (PartsCommitted(staging_id, parts), *rest)


class _Sizes:
    """Cache of the sizes of facts, in bytes.

    Most facts of the second decision are the same objects as those of the first.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[AnyFact, int]] = {}

    def of(self, fact: AnyFact) -> int:
        known = self._known.get(id(fact))
        # The fact is kept beside its size: a freed object could pass its id on to another fact.
        if known is None:
            known = self._known[id(fact)] = fact, fact_size(fact)
        return known[1]


def _groups(facts: Facts, part_bytes: int, sizes: _Sizes) -> Iterator[Facts]:
    """Yield the facts in order, in groups of at most ``part_bytes`` unless it is a single fact."""
    group, size = list[AnyFact](), 0
    for fact in facts:
        more = sizes.of(fact)
        if group and size + more > part_bytes:
            yield tuple(group)
            group, size = [], 0
        group.append(fact)
        size += more
    yield tuple(group)


# Make the records of a command: decide it on a state and encode the result. Pure.


NO_DIGEST: Final = bytes(16)
"""The command digest of a NOOP, which has no caller."""
FEW_FACTS: Final = 16
"""Up to this many facts are encoded at once to see whether they fit into one record."""

replace = msgspec.structs.replace


class Ids(msgspec.Struct, frozen=True):
    """Sources of nondeterministic values for a writer: state ids and its clock."""

    next_state_id: Callable[[bytes], bytes]
    """Return a new state id that is greater than the given one."""
    now_ms: Callable[[], int]
    """The writer's clock, in milliseconds since 1970."""


class RecordBuilder:
    """Makes the records of one writer, with the ``supported`` features only."""

    def __init__(self, ids: Ids, supported: Set[str]) -> None:
        self._ids = ids
        self._supported = supported

    def made(
        self, envelope: Envelope, digest: bytes, tip: Image, begin: Image, read: Image
    ) -> Made:
        """Decide a command on ``tip``; return its records and the image after each, from ``begin``.

        ``read`` is the applied image, which the records name as their witness. A founding gets a new
        log id, which is ordered by time as state ids are. Returns a rejection when the command is
        refused, and the exception when it fails. Changes nothing, so it may run in a thread.
        """
        try:
            command = envelope.command
            if isinstance(command, FoundCluster) and not command.log_id:
                log_id = self._ids.next_state_id(NO_LOG).hex()
                envelope = replace(envelope, command=replace(command, log_id=log_id))
            records = self._records(envelope, digest, tip, read)
            if isinstance(records, Rejection):
                return records
            return records, list(images_after(begin, records))
        except Exception as error:
            return error

    def _records(
        self, envelope: Envelope, digest: bytes, tip: Image, read: Image
    ) -> Records | Rejection:
        """Return the records of a command: one, or parts and the record that commits them."""
        at_ms, decided_on, cache = self._ids.now_ms(), tip, DecisionCache()

        def decide_after(epochs: int) -> Decision:
            after = replace(decided_on, epoch=decided_on.epoch + epochs)
            return decide(after, envelope, at_ms, cache, self._supported)

        facts = decide_after(0)
        if isinstance(facts, Rejection):
            return facts
        if len(facts) <= FEW_FACTS:
            record = self.encode(tip, read, envelope, digest, tuple(facts), at_ms)
            if len(record[0]) <= PART_BYTES:
                return [record]
        # The command is decided again for each number of parts: facts name the epoch that makes
        # them true, and ``cache`` keeps the costly results of the first decision.
        staging_id = self._ids.next_state_id(tip.state_id).hex()
        split = in_parts(facts, staging_id, decide_after, PART_BYTES)
        if isinstance(split, Rejection):
            return split
        parts, commit = split
        records, without_id = Records(), replace(envelope, request_id="")
        for part in parts:
            value, epoch = self.encode(tip, read, without_id, NO_DIGEST, (part,), at_ms)
            records.append((value, epoch))
            # Each part takes an epoch, so the next record must follow it.
            tip = replace(tip, epoch=epoch.epoch, state_id=epoch.state_id)
        records.append(self.encode(tip, read, envelope, digest, commit, at_ms))
        largest = max(len(value) for value, _ in records)
        return records if largest <= MAX_RECORD_BYTES else too_large(largest)

    def encode(
        self,
        tip: Image,
        read: Image,
        envelope: Envelope,
        digest: bytes,
        facts: tuple[AnyFact, ...],
        at_ms: int,
        state_id: bytes = b"",
    ) -> tuple[bytes, Epoch]:
        """Encode the epoch after ``tip``; return its bytes and the epoch.

        ``read`` is the last image that this writer has read, named as the witness. ``at_ms`` is the
        time of the decision in milliseconds, so that any reader can decide again and compare.
        ``state_id`` is a new id if empty.
        """
        epoch = Epoch(
            prev_state_id=tip.state_id,
            state_id=state_id or self._ids.next_state_id(tip.state_id),
            log_id=tip.log_id if tip.log_id != NO_LOG else log_id_of_founding(facts),
            witness_state_id=read.state_id,
            epoch=tip.epoch + 1,
            witness_epoch=read.epoch,
            request_id=envelope.request_id,
            command=command_name(envelope.command),
            command_digest=digest,
            facts=facts,
            actor=envelope.actor,
            reason=envelope.reason,
            origin=envelope.origin,
            at_ms=at_ms,
            required_features=features_of(facts).required,
        )
        return encode_epoch(epoch), epoch


def next_state_id(previous: bytes, now_ms: int, entropy: int) -> bytes:
    """Return a state id of ``now_ms`` (milliseconds since 1970) that is greater than ``previous``.

    A state id has 16 bytes, like a UUID version 7 (docs/design.md, rule 1; source: ScyllaDB,
    raft-in-scylla.md, "Using Group 0 to perform schema changes"). ``entropy`` is ENTROPY_BITS
    random bits. The clock may be behind the log. The id is then the previous one plus a small
    random step, which two writers are unlikely to choose both.
    """
    low = entropy & ((1 << 62) - 1)
    mid = (entropy >> 62) & 0xFFF
    candidate = (now_ms << 80) | _VERSION_7 | (mid << 64) | _VARIANT | low
    floor = int.from_bytes(previous, "big")
    if candidate <= floor:
        candidate = floor + 1 + (entropy & 0xFFFF_FFFF)
    return candidate.to_bytes(STATE_BYTES, "big")
