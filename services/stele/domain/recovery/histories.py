"""Which history is left: what archives and processes tell of the log's epochs, compared.

A state id stands for all that led to it, so sources that have the same one for an epoch share everything up
to it, and sources that have different ones share nothing from it on: these are two histories, and which of
them is the cluster's is for people to say. So it is where nobody can tell whether they are two: the longer one
may be what was lost.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from stele.domain.base import Rejection
from stele.domain.cluster.facts import Incarnation

replace = msgspec.structs.replace


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What one archive or process tells of the log that it has read last.

    ``states`` are state ids by epoch, as many as it knows. The image can be had from it of each epoch from
    ``first_image`` to ``last_image``, which must be among them; 0: it only tells, as a node does of what it has
    acknowledged. ``incarnations`` are those of its newest image. One that ``promised`` tells the epoch alone
    that it has acknowledged, maybe long ago.
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
    """Epochs that a source has of log ``log_id``, and that a recovery left behind."""

    source: str
    log_id: str
    first: int
    last: int


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The epoch to go on from, and who has its image. Names are in order.

    ``known_epoch`` is the newest epoch of the same log, or of one that came from it, that anybody tells of:
    those after ``epoch`` are lost. ``shared`` have this very state, ``ahead`` tell of later epochs, ``apart``
    of another history, and ``unproven`` of epochs that may be of another one: their newest epoch, or ``epoch``
    itself where they tell of later ones, is not known to be the same in this history; or all of a later log
    that they know of is lost. ``given_up`` is what they have, and an earlier recovery had left behind.
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


def choose(told: Sequence[Source], take: str = "") -> Choice | Rejection:
    """The longest history that can be had, when there is known to be one only; or what ``take`` names, whatever
    others say: a source that only tells is gone on from where another one has an image of its newest epoch.

    Epochs that were given up by a recovery which another source knows of are left out, and named. A source that
    is taken has all of its own.
    """
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
        _unproven(choice, sources) if choice.unproven else replace(choice, given_up=_given_up(told))
    )


def to_compare(told: Sequence[Source]) -> tuple[int, ...]:
    """Epochs whose state ids are to be asked of all: without them nobody can tell whether some source is of the
    longest history. Of one with later epochs also the newest that it tells of before these: that may be another
    one already. What is from before all that the longest one has, another one may have.
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


def longest(told: Sequence[Source]) -> Choice | None:
    """The longest history that can be had, whether or not others are known to be of it. None: there is none."""
    sources = _as_it_is_known(told)
    chosen = _longest(sources)
    return None if chosen is None else _choice(chosen, sources)


def _leading_to(taken: Source, sources: Iterable[Source]) -> list[Source]:
    """The source itself, or where it only tells those that have an image of its newest epoch or a later one."""
    if taken.last_image:
        return [source for source in sources if source.name == taken.name]
    newest = taken.newest
    found = (source for source in sources if source.last_image >= newest > 0)
    return [source for source in found if source.states.get(newest) == taken.states[newest]]


def _longest(sources: Iterable[Source]) -> Source | None:
    """Of those whose newest image can be had; None when there is none."""
    whole = [each for each in sources if each.last_image and each.last_image in each.states]
    return min(whole, key=lambda source: (-source.last_image, source.name), default=None)


def first_difference(sources: Iterable[Source]) -> tuple[int, dict[bytes, list[str]]] | None:
    """The first epoch that has several state ids, and who tells which; None when all can be one history."""
    tellers: dict[int, dict[bytes, list[str]]] = {}
    for source in sources:
        for epoch, state_id in source.states.items():
            tellers.setdefault(epoch, {}).setdefault(state_id, []).append(source.name)
    differ = [epoch for epoch, by_state in tellers.items() if len(by_state) > 1]
    return (min(differ), tellers[min(differ)]) if differ else None


def _two_histories(sources: Iterable[Source]) -> Rejection | None:
    found = first_difference(sources)
    if found is None:
        return None
    epoch, by_state = found
    sides = {state_id.hex(): ", ".join(sorted(names)) for state_id, names in by_state.items()}
    told = "; ".join(f"{names}: {state_id}" for state_id, names in sorted(sides.items()))
    return Rejection(
        "two_histories",
        f"Epoch {epoch} is not the same one everywhere ({told}): these are different histories.",
        "Find out which of them nodes and callers have relied on, and name a source that has it with --take."
        f" What the others hold from epoch {epoch} on at the latest is lost then.",
        {"epoch": str(epoch), **sides},
    )


def _unrelated(one: Source, other: Source) -> bool:
    """Whether they share no epoch, and nothing tells that the log of the one came from that of the other."""
    logs = [
        {each.log_id, *(before.log_id for before in each.incarnations)} for each in (one, other)
    ]
    shares = one.states.keys() & other.states.keys()
    return bool(one.states and other.states) and not shares and logs[0].isdisjoint(logs[1])


def _two_logs(chosen: Source, strangers: Sequence[Source]) -> Rejection:
    told = "; ".join(f"{each.name}: {each.log_id}" for each in strangers)
    return Rejection(
        "two_logs",
        f"{chosen.name} goes on the furthest, in log {chosen.log_id}, and has nothing in common with other logs"
        f" that were read here ({told}).",
        "One of them may be another cluster's, such as a backup that was restored here. Name a source that"
        " nodes and callers have relied on with --take. What the others hold is lost then.",
        {each.name: each.log_id for each in (chosen, *strangers)},
    )


def _unproven(choice: Choice, sources: Iterable[Source]) -> Rejection:
    unproven = [each for each in sources if each.name in choice.unproven]
    told = {each.name: str(each.newest) for each in unproven}
    log_id = next(each.log_id for each in sources if each.name == choice.source)
    later = {each.name: f" of log {each.log_id}" for each in unproven if each.log_id > log_id}
    others = ", ".join(
        f"{name} knows epoch {epoch}{later.get(name, '')}" for name, epoch in sorted(told.items())
    )
    return Rejection(
        "unproven",
        f"{choice.source} goes on the furthest, to epoch {choice.epoch}, and nobody can tell whether others are"
        f" of the same history ({others}): nobody who answers holds what is between them.",
        "Start what may hold it, such as a replica that is down. Or find out which history nodes and callers"
        " have relied on, and name a source that has it with --take.",
        told,
    )


def _choice(chosen: Source, told: Iterable[Source]) -> Choice:
    sources = sorted(told, key=lambda source: source.name)
    epoch, state_id = chosen.last_image, chosen.states[chosen.last_image]
    ahead, apart, unproven, known_epoch = list[str](), list[str](), list[str](), epoch
    known = _known(chosen, sources)
    for source in sources:
        if source.log_id == chosen.log_id:
            known_epoch = max(known_epoch, source.newest)
        common = known.keys() & source.states.keys()
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
    return Choice(
        source=chosen.name,
        epoch=epoch,
        state_id=state_id,
        known_epoch=known_epoch,
        shared=tuple(shared),
        ahead=tuple(ahead),
        apart=tuple(apart),
        unproven=tuple(unproven),
    )


def _known(chosen: Source, sources: Sequence[Source]) -> dict[int, bytes]:
    """State ids of the chosen history: its own, and of others up to the newest that they share with it."""
    known, size = {**chosen.states}, 0
    while len(known) > size:  # what one adds may be what another one shares
        size = len(known)
        for source in sources:
            common = known.keys() & source.states.keys()
            if common and all(known[each] == source.states[each] for each in common):
                last = max(common)
                known |= {each: state for each, state in source.states.items() if each <= last}
    return known


def _decisive(epoch: int, source: Source) -> int:
    """Whose state tells whether a source is of the history that ends with ``epoch``: an older one says nothing
    of what the source has later, behind epochs that it lacks.
    """
    return min(epoch, source.newest)


def _is_past(chosen: Source, source: Source) -> bool:
    """Whether all that it tells is from before what the chosen one has: an archive forgets what is old, and a
    node in a cluster that does not change acknowledges nothing new.
    """
    return source.promised and source.newest < chosen.first_image


def _is_of_a_lost_log(chosen: Source, source: Source) -> bool:
    """Whether it has followed a later log than the chosen one, and tells of no later epoch: that log had one at
    least.
    """
    return source.log_id > chosen.log_id and source.newest <= chosen.last_image


def _newest_until(epoch: int, source: Source) -> int:
    """The newest epoch up to this one that it tells of; 0 when there is none."""
    return max((each for each in source.states if each <= epoch), default=0)


def _as_it_is_known(told: Sequence[Source]) -> list[Source]:
    """Without what recoveries gave up, and with the states that they went on from."""
    return [_with_ends(_without_given_up(source, told)) for source in told]


def _with_ends(source: Source) -> Source:
    ends = {each.last_epoch: bytes.fromhex(each.state_id) for each in source.incarnations}
    return replace(source, states={**ends, **source.states}) if ends else source


def _given_up(told: Sequence[Source]) -> tuple[GivenUp, ...]:
    """What nodes have promised is not among it: who lost that was told so by its own node."""
    found = list[GivenUp]()
    for source in told:
        last = _last_kept(source, told)
        if source.newest > last and not source.promised:
            has_all = 0 < source.first_image <= last + 1
            first = last + 1 if has_all else min(each for each in source.states if each > last)
            log_id, newest = source.log_id, source.newest
            found.append(GivenUp(source=source.name, log_id=log_id, first=first, last=newest))
    return tuple(found)


def _last_kept(source: Source, told: Iterable[Source]) -> int:
    """The last of its epochs that no recovery of which others know has left behind; 0: it left all of them."""
    ends = [
        before.last_epoch
        for other in told
        for before in other.incarnations
        if before.log_id == source.log_id < other.log_id
    ]
    return min(source.newest, max(ends)) if ends else source.newest


def _without_given_up(source: Source, told: Iterable[Source]) -> Source:
    """Without the epochs that a recovery, of which others know, has left behind."""
    last = _last_kept(source, told)
    if last == source.newest:
        return source
    kept = {epoch: state_id for epoch, state_id in source.states.items() if epoch <= last}
    last_image = min(last, source.last_image)
    if last_image < source.first_image:
        return replace(source, states=kept, first_image=0, last_image=0)
    return replace(source, states=kept, last_image=last_image)
