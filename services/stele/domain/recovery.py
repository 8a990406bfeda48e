"""Recovery of a lost log: the choice of a history, and the first record of the new log."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from stele.domain.base import Rejection
from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.domain.model.cluster import NO_LOG, Incarnation, LogRecovered
from stele.domain.override_facts import floor_after
from stele.domain.registry import features_of

# The choice of a history, by the state ids that archives and processes report for epochs.
#
# A state id stands for the whole history before it. Sources with equal ids for an epoch share
# everything up to it. Sources with different ids share nothing from it on. These are two
# histories, and an operator must choose one. The same holds if it is unknown whether they are
# two: the longer one may be the lost one.


replace = msgspec.structs.replace


class HistorySource(msgspec.Struct, frozen=True, kw_only=True):
    """The report of one archive or process on the log that it has read last.

    ``states`` are the state ids that it has, by epoch. It can supply the image of each epoch
    from ``first_image`` to ``last_image``, which must be in ``states``. Both are 0 if it has no
    image, like a node that only reports its acknowledged epochs. ``incarnations`` are those of its
    newest image. A source with ``promised`` reports only the epoch that it has acknowledged, maybe
    long ago.
    """

    name: str
    log_id: str
    states: Mapping[int, bytes]
    first_image: int = 0
    last_image: int = 0
    incarnations: tuple[Incarnation, ...] = ()
    promised: bool = False

    @property
    def newest(self) -> int:
        return max(self.states, default=0)


class GivenUp(msgspec.Struct, frozen=True, kw_only=True):
    """Epochs that a source has of log ``log_id``, and that a recovery left out."""

    source: str
    log_id: str
    first: int
    last: int


class HistoryChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The epoch to continue from, and the source of its image. Names are in order.

    ``known_epoch`` is the newest epoch that any source reports of the same log, or of one recovered
    from it. Epochs from ``epoch`` + 1 to it are lost. ``shared`` have this very state. ``ahead``
    report later epochs, and ``apart`` another history. ``unproven`` report epochs that may be of
    another history. Their newest epoch is not known to be the same in this history; if they report
    later ones, ``epoch`` itself is not. Or they are of a later log whose epochs are all lost.
    ``given_up`` are epochs that sources have and that an earlier recovery left out.
    """

    source: str
    epoch: int
    state_id: bytes
    known_epoch: int
    shared: tuple[str, ...]
    ahead: tuple[str, ...]
    apart: tuple[str, ...]
    unproven: tuple[str, ...]
    given_up: tuple[GivenUp, ...] = ()


def choose(told: Sequence[HistorySource], take: str = "") -> HistoryChoice | Rejection:
    """Return the longest available history if it is the only one, or that of ``take``.

    A source named by ``take`` is used without regard to the others. If it has no image, another
    source must have the image of its newest epoch. Epochs that a recovery known to another source
    left out are ignored, and named in the choice. A source that is taken keeps all its epochs.
    """
    # A named source keeps epochs that an earlier recovery left out. Otherwise neither of two ends
    # could be continued from (docs/decisions/077).
    sources = [*map(_with_ends, told)] if take else _as_it_is_known(told)
    taken = next((source for source in told if source.name == take), None)
    if take and taken is None:
        return Rejection(
            "unknown_source",
            f"No source is called '{take[:80]}'.",
            f"Name one of: {', '.join(sorted(each.name for each in sources)) or '(there is none)'}.",
        )
    among = sources if taken is None else _leading_to(taken, sources)
    chosen = _longest(among)
    if chosen is None:
        return Rejection(
            "nothing_left",
            "No image of the log can be had from "
            + (f"'{take}'." if take else "any of the sources."),
            "A catch-up replica recovers the log: start one with its own folder, or with a backup of one"
            " (`stele restore`), and ask again.",
        )
    # With ``take``, only the sources that lead to the named history must agree.
    two = _two_histories(among)
    if two is not None:
        return two
    strangers = [each for each in sources if not take and _unrelated(chosen, each)]
    if strangers:
        return _two_logs(chosen, strangers)
    choice = _choice(chosen, sources)
    if take:
        return choice
    return (
        _unproven(choice, sources) if choice.unproven else replace(choice, given_up=_left_out(told))
    )


def to_compare(told: Sequence[HistorySource]) -> tuple[int, ...]:
    """Return the epochs whose state ids all sources must report before ``choose`` can decide.

    Without them it is unknown whether a source is of the longest history. For a source with later
    epochs, its newest reported epoch before these is included, because that may already be of
    another history. For a source that is older than everything of the longest one, another source
    may have its epochs.
    """
    sources = _as_it_is_known(told)
    chosen = _longest(sources)
    if chosen is None:
        return ()
    choice = _choice(chosen, sources)
    untold = [each for each in sources if each.name in choice.unproven or _is_past(chosen, each)]
    epochs = {_decisive(choice.epoch, each) for each in untold}
    epochs.update(_newest_until(choice.epoch, each) for each in untold)
    return tuple(sorted(epochs - {0}))


def longest(told: Sequence[HistorySource]) -> HistoryChoice | None:
    """Return the longest available history, or None. Other histories may differ from it."""
    sources = _as_it_is_known(told)
    chosen = _longest(sources)
    return None if chosen is None else _choice(chosen, sources)


def _leading_to(taken: HistorySource, sources: Iterable[HistorySource]) -> list[HistorySource]:
    """Return the source itself, or those with an image of its newest epoch or a later one."""
    if taken.last_image:
        return [source for source in sources if source.name == taken.name]
    newest = taken.newest
    found = (source for source in sources if source.last_image >= newest > 0)
    return [source for source in found if source.states.get(newest) == taken.states[newest]]


def _longest(sources: Iterable[HistorySource]) -> HistorySource | None:
    """Return the source with the newest available image; None when there is none."""
    whole = [each for each in sources if each.last_image and each.last_image in each.states]
    return min(whole, key=lambda source: (-source.last_image, source.name), default=None)


def first_difference(sources: Iterable[HistorySource]) -> tuple[int, dict[bytes, list[str]]] | None:
    """Return the first epoch with several state ids and the sources of each, or None."""
    tellers: dict[int, dict[bytes, list[str]]] = {}
    for source in sources:
        for epoch, state_id in source.states.items():
            tellers.setdefault(epoch, {}).setdefault(state_id, []).append(source.name)
    differ = [epoch for epoch, by_state in tellers.items() if len(by_state) > 1]
    return (min(differ), tellers[min(differ)]) if differ else None


def _two_histories(sources: Iterable[HistorySource]) -> Rejection | None:
    found = first_difference(sources)
    if found is None:
        return None
    epoch, by_state = found
    sides = {state_id.hex(): ", ".join(sorted(names)) for state_id, names in by_state.items()}
    told = "; ".join(f"{names}: {state_id}" for state_id, names in sorted(sides.items()))
    return Rejection(
        "two_histories",
        f"Epoch {epoch} differs between processes ({told}): these are different histories.",
        "Find out which of them nodes and callers have relied on, and name a source that has it with --take."
        f" The others' epochs from {epoch} on are then lost.",
        {"epoch": str(epoch), **sides},
    )


def _unrelated(one: HistorySource, other: HistorySource) -> bool:
    """Return True if they share no epoch, and neither log is known to come from the other."""
    logs = [
        {each.log_id, *(before.log_id for before in each.incarnations)} for each in (one, other)
    ]
    shares = one.states.keys() & other.states.keys()
    return bool(one.states and other.states) and not shares and logs[0].isdisjoint(logs[1])


def _two_logs(chosen: HistorySource, strangers: Sequence[HistorySource]) -> Rejection:
    told = "; ".join(f"{each.name}: {each.log_id}" for each in strangers)
    return Rejection(
        "two_logs",
        f"{chosen.name} has the newest epoch, in log {chosen.log_id}, and has nothing in common with other logs"
        f" that were read here ({told}).",
        "One of them may be another cluster's, such as a backup that was restored here. Name a source that"
        " nodes and callers have relied on with --take. What the others hold is lost then.",
        {each.name: each.log_id for each in (chosen, *strangers)},
    )


def _unproven(choice: HistoryChoice, sources: Iterable[HistorySource]) -> Rejection:
    unproven = [each for each in sources if each.name in choice.unproven]
    told = {each.name: str(each.newest) for each in unproven}
    log_id = next(each.log_id for each in sources if each.name == choice.source)
    later = {each.name: f" of log {each.log_id}" for each in unproven if each.log_id > log_id}
    others = ", ".join(
        f"{name} has read epoch {epoch}{later.get(name, '')}"
        for name, epoch in sorted(told.items())
    )
    return Rejection(
        "unproven",
        f"{choice.source} has the newest epoch, {choice.epoch}, and it is not proven that others are"
        f" of the same history ({others}): no source that answers holds the epochs between them.",
        "Start a replica that may hold them. Or find out which history nodes and callers"
        " have relied on, and name a source that has it with --take.",
        told,
    )


def _choice(chosen: HistorySource, told: Iterable[HistorySource]) -> HistoryChoice:
    sources = sorted(told, key=lambda source: source.name)
    epoch, state_id = chosen.last_image, chosen.states[chosen.last_image]
    ahead, apart, unproven, known_epoch = list[str](), list[str](), list[str](), epoch
    known = _known(chosen, sources)
    for source in sources:
        if source.log_id == chosen.log_id:
            known_epoch = max(known_epoch, source.newest)
        common = known.keys() & source.states.keys()
        # One different state id is enough: all later epochs of both differ too.
        if any(known[each] != source.states[each] for each in common):
            apart.append(source.name)
            continue
        if common and source.log_id > chosen.log_id:
            known_epoch = max(known_epoch, source.newest)
        is_known = _decisive(epoch, source) in common or _is_past(chosen, source)
        if source.states and (not is_known or _is_of_a_lost_log(chosen, source)):
            unproven.append(source.name)
        if source.newest > epoch:
            ahead.append(source.name)
    shared = (source.name for source in sources if source.states.get(epoch) == state_id)
    return HistoryChoice(
        source=chosen.name,
        epoch=epoch,
        state_id=state_id,
        known_epoch=known_epoch,
        shared=tuple(shared),
        ahead=tuple(ahead),
        apart=tuple(apart),
        unproven=tuple(unproven),
    )


def _known(chosen: HistorySource, sources: Sequence[HistorySource]) -> dict[int, bytes]:
    """Return the state ids of the chosen history, also from sources that share an epoch with it.

    A source contributes its epochs up to the newest that it shares.
    """
    known, size = {**chosen.states}, 0
    while len(known) > size:  # ids added from one source may be shared by another
        size = len(known)
        for source in sources:
            common = known.keys() & source.states.keys()
            if common and all(known[each] == source.states[each] for each in common):
                last = max(common)
                known |= {each: state for each, state in source.states.items() if each <= last}
    return known


def _decisive(epoch: int, source: HistorySource) -> int:
    """Return the epoch whose state shows that a source is of the history that ends with ``epoch``.

    An older shared epoch shows nothing about the source's later epochs, if it lacks those in
    between.
    """
    return min(epoch, source.newest)


def _is_past(chosen: HistorySource, source: HistorySource) -> bool:
    """Return True if its only reported epoch is older than all epochs of the chosen source.

    An archive deletes old epochs, and a node in a cluster without changes acknowledges nothing new.
    """
    return source.promised and source.newest < chosen.first_image


def _is_of_a_lost_log(chosen: HistorySource, source: HistorySource) -> bool:
    """Return True if it has followed a later log than the chosen one, but reports no later epoch.

    That log had at least one epoch, which is lost.
    """
    return source.log_id > chosen.log_id and source.newest <= chosen.last_image


def _newest_until(epoch: int, source: HistorySource) -> int:
    """Return the newest reported epoch up to ``epoch``; 0 when there is none."""
    return max((each for each in source.states if each <= epoch), default=0)


def _as_it_is_known(told: Sequence[HistorySource]) -> list[HistorySource]:
    """Return the sources without epochs that recoveries left out, with the ends of earlier logs."""
    return [_with_ends(_without_given_up(source, told)) for source in told]


def _with_ends(source: HistorySource) -> HistorySource:
    ends = {each.last_epoch: bytes.fromhex(each.state_id) for each in source.incarnations}
    return replace(source, states={**ends, **source.states}) if ends else source


def _left_out(told: Sequence[HistorySource]) -> tuple[GivenUp, ...]:
    """Return the epochs that recoveries left out.

    Promises are not included: the node reports its own loss.
    """
    found = list[GivenUp]()
    for source in told:
        last = _last_kept(source, told)
        if source.newest > last and not source.promised:
            # A source with images from the cut on has all epochs after it. Any other may report
            # only some.
            has_all = 0 < source.first_image <= last + 1
            first = last + 1 if has_all else min(each for each in source.states if each > last)
            log_id, newest = source.log_id, source.newest
            found.append(GivenUp(source=source.name, log_id=log_id, first=first, last=newest))
    return tuple(found)


def _last_kept(source: HistorySource, told: Iterable[HistorySource]) -> int:
    """Return the last epoch of a source that no known recovery has left out, or 0."""
    ends = [
        before.last_epoch
        for other in told
        for before in other.incarnations
        if before.log_id == source.log_id < other.log_id
    ]
    return min(source.newest, max(ends)) if ends else source.newest


def _without_given_up(source: HistorySource, told: Iterable[HistorySource]) -> HistorySource:
    """Return the source without the epochs that a recovery known to another source has left out."""
    last = _last_kept(source, told)
    if last == source.newest:
        return source
    kept = {epoch: state_id for epoch, state_id in source.states.items() if epoch <= last}
    last_image = min(last, source.last_image)
    if last_image < source.first_image:
        return replace(source, states=kept, first_image=0, last_image=0)
    return replace(source, states=kept, last_image=last_image)


# The losses that a recovery accepts, and the check that its caller has named them.
#
# A recovery cannot be undone, and epochs that it leaves out were acknowledged to callers. The
# caller therefore names all that may be lost: each replica that does not answer, and the epoch
# after which known epochs are lost (docs/decisions/077).


MOST_NAMED = 5


class Absent(msgspec.Struct, frozen=True):
    """A catch-up replica that does not answer, and the reason.

    ``replica_id`` is empty if it is unknown.
    """

    replica_id: str
    url: str
    why: str

    @property
    def name(self) -> str:
        return full_name(self.replica_id, self.url)

    def is_among(self, names: Collection[str]) -> bool:
        return any(is_called(self.name, self.url, each) for each in names)


def full_name(replica_id: str, url: str) -> str:
    """Return the name of a replica that people see."""
    return f"{replica_id} ({url})" if replica_id else url


def id_of(full: str, url: str) -> str:
    """Return the id in a full name."""
    return full.removesuffix(f" ({url})")


def is_called(full: str, url: str, name: str) -> bool:
    """Return True if ``name`` means the replica: its full name, its id alone, or its address."""
    return name in (full, id_of(full, url), url)


def missed(absent: Iterable[Absent], without: Collection[str]) -> tuple[Absent, ...]:
    """Return the absent replicas that the caller has not named as acceptable to miss."""
    return tuple(each for each in absent if not each.is_among(without))


def unagreed(
    choice: HistoryChoice,
    absent: Iterable[Absent],
    without: Collection[str],
    lose_after: int | None,
) -> Rejection | None:
    """Return why the recovery cannot continue from this choice, or None when all losses are named.

    The caller names replicas that do not answer by id or address (``without``). If later epochs are
    known, ``lose_after`` is the epoch that the log continues from.
    """
    found = [_unheard(missing)] if (missing := missed(absent, without)) else []
    # The number must match the choice. A number that was right for an earlier choice does not agree
    # to a greater loss.
    if choice.known_epoch > choice.epoch and lose_after != choice.epoch:
        found.append(_lost(choice))
    if choice.given_up and lose_after != choice.epoch:
        found.append(_given_up(choice))
    says, hints = (" ".join(each) for each in zip(*found, strict=True)) if found else ("", "")
    return Rejection("unagreed", says, hints) if found else None


def unheard(missing: Sequence[Absent]) -> str:
    """Return a sentence on the replicas that do not answer, with the reasons."""
    names = ", ".join(each.name for each in missing)
    why = "; ".join(each.why.rstrip(".") for each in missing)
    tells = "do not report what they hold" if len(missing) > 1 else "does not report what it holds"
    return f"{names} {tells} ({why})"


def _unheard(missing: Sequence[Absent]) -> tuple[str, str]:
    """Return the fact and the advice for replicas that do not answer."""
    # An id that is unknown, or that two replicas share, names none of them. The option then has the
    # address.
    ids = [each.replica_id for each in missing]
    names_one = (bool(each) and ids.count(each) == 1 for each in ids)
    options = " ".join(
        f"--without {each.replica_id if by_id else each.url}"
        for each, by_id in zip(missing, names_one, strict=True)
    )
    has, them = ("they alone have", "them") if len(missing) > 1 else ("it alone has", "it")
    return (
        f"{unheard(missing)}: epochs that {has} would be given up.",
        f"Start {them}, or continue without {them}: {options}.",
    )


def _given_up(choice: HistoryChoice) -> tuple[str, str]:
    told = "; ".join(
        f"{each.source} has epochs {each.first} to {each.last} of log {each.log_id}"
        for each in choice.given_up[:MOST_NAMED]
    )
    return (
        f"{told}: an earlier recovery gave them up.",
        "To go back to them, and give up what came after it, name who has them: --take. To leave them: "
        f"--lose-after {choice.epoch}.",
    )


def _lost(choice: HistoryChoice) -> tuple[str, str]:
    known = [*choice.ahead[:MOST_NAMED], *(["others"] if choice.ahead[MOST_NAMED:] else [])]
    return (
        f"Epochs {choice.epoch + 1} to {choice.known_epoch}, known to"
        f" {', '.join(known) or 'a process'}, would be lost: no responding process has them.",
        "Start what may hold them, such as a replica or a service that is down."
        f" To give them up, say --lose-after {choice.epoch}.",
    )


# The first record of a recovered log.
#
# It continues after the last remaining epoch, under a new log id.


COMMAND: Final = "recover"
"""Name of the command in the record. It cannot be sent, because there is no log to decide it."""


class NewLog(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs that the pure core must not create: ids of 16 bytes, and the time.

    Each id is greater than all earlier ones of its kind. ``log_id`` must be greater than that of
    any log of this cluster that is known anywhere; ``next_state_id`` makes one from the greatest.
    ``topic_id`` is the brokers' id of the topic that receives the record. ``at_ms`` is in
    milliseconds since 1970.
    """

    log_id: bytes
    state_id: bytes
    topic_id: str
    at_ms: int


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """The actor, reason and origin of a recovery, as in every epoch."""

    actor: str
    reason: str
    origin: str = ""


def recovered(image: Image, new: NewLog, why: Why, known_epoch: int = 0) -> Epoch | Rejection:
    """Return the record that continues the log after ``image``, which holds all that remains of it.

    ``known_epoch`` is the newest epoch of the old log that any source reported, or 0.
    """
    if image.log_id == NO_LOG or not image.epoch:
        return Rejection(
            "nothing_to_recover",
            "The remaining data has no epoch of a founded log.",
            "Begin with a snapshot or segments that do, or found a new cluster: `stele found`.",
        )
    for what, given, known in (
        ("log id", new.log_id, image.log_id),
        ("state id", new.state_id, image.state_id),
    ):
        # Ids are ordered by time. Readers recognize only a greater log id as the later log.
        if len(given) != len(known) or given <= known:
            return Rejection(
                "not_later",
                f"The new {what} {given.hex()} is not greater than {known.hex()}.",
                "Make it with the time of now, and from the greatest that is known.",
            )
    known_epoch = max(known_epoch, image.epoch)
    # A log that was recovered before may not have used a version above its floor yet.
    version = max(image.topology.version, image.founding.version_floor)
    lost_epochs = known_epoch - image.epoch  # each made at most one version
    fact = LogRecovered(
        from_log_id=image.log_id.hex(),
        last_epoch=image.epoch,
        state_id=image.state_id.hex(),
        log_id=new.log_id.hex(),
        topic_id=new.topic_id,
        known_epoch=known_epoch,
        version_floor=floor_after(version, new.at_ms, lost_epochs),
    )
    return Epoch(
        prev_state_id=image.state_id,
        state_id=new.state_id,
        log_id=new.log_id,
        witness_state_id=image.state_id,
        epoch=image.epoch + 1,
        witness_epoch=image.epoch,
        request_id="",
        command=COMMAND,
        facts=(fact,),
        actor=why.actor,
        reason=why.reason,
        origin=why.origin,
        at_ms=new.at_ms,
        required_features=features_of((fact,)).required,
    )


def recovery_of(epoch: Epoch) -> LogRecovered | None:
    """Return the recovery that the epoch records, or None.

    A record contains the data of the old log twice: in its fact and in its own fields. If they
    contradict each other, it is no recovery.
    """
    (fact,) = epoch.facts if len(epoch.facts) == 1 else (None,)
    if not isinstance(fact, LogRecovered):
        return None
    said = fact.log_id, fact.state_id, fact.last_epoch + 1
    agrees = said == (epoch.log_id.hex(), epoch.prev_state_id.hex(), epoch.epoch)
    return fact if agrees and fact.log_id > fact.from_log_id else None
