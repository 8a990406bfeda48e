"""Which history is left: what archives and processes tell of the log's epochs, compared.

A state id stands for all that led to it, so sources that have the same one for an epoch share everything up
to it, and sources that have different ones share nothing from it on: these are two histories, and which of
them is the cluster's is for people to say.
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
    acknowledged. ``incarnations`` are those of its newest image.
    """

    name: str
    log_id: str
    states: Mapping[int, bytes]
    first_image: int = 0
    last_image: int = 0
    incarnations: tuple[Incarnation, ...] = ()

    @property
    def newest(self) -> int:
        return max(self.states, default=0)


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The epoch to go on from, and who has its image. Names are in order.

    ``known_epoch`` is the newest epoch of the same log, or of one that came from it, that anybody tells of:
    those after ``epoch`` are lost. ``shared`` have this very state, ``ahead`` tell of later epochs, ``apart``
    of another history, and ``unproven`` share no epoch with the source, so that nobody can say.
    """

    source: str
    epoch: int
    state_id: bytes
    known_epoch: int
    shared: tuple[str, ...]
    ahead: tuple[str, ...]
    apart: tuple[str, ...]
    unproven: tuple[str, ...]


def choose(told: Sequence[Source], take: str = "") -> Choice | Rejection:
    """The longest history that can be had, when there is one only; or what ``take`` names, whatever others say.

    Epochs that were given up by a recovery which another source knows of are left out: that choice was made.
    """
    sources = [_without_given_up(source, told) for source in told]
    named = [source for source in sources if source.name == take]
    if take and not named:
        return Rejection(
            "unknown_source",
            f"No source is called '{take[:80]}'.",
            f"Name one of: {', '.join(sorted(each.name for each in sources)) or '(there is none)'}.",
        )
    whole = [
        each for each in named or sources if each.last_image and each.last_image in each.states
    ]
    if not whole:
        return Rejection(
            "nothing_left",
            "No image of the log can be had from "
            + (f"'{take}'." if take else "any of the sources."),
            "Name a folder with snapshots and segments, or a process that has read the log.",
        )
    two = None if take else _two_histories(sources)
    if two is not None:
        return two
    chosen = min(whole, key=lambda source: (-source.last_image, source.name))
    strangers = [each for each in sources if not take and _unrelated(chosen, each)]
    if strangers:
        return _two_logs(chosen, strangers)
    return _choice(chosen, sorted(sources, key=lambda source: source.name))


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
        f" What the others hold from epoch {epoch} on is lost then.",
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


def _choice(chosen: Source, sources: Sequence[Source]) -> Choice:
    epoch, state_id = chosen.last_image, chosen.states[chosen.last_image]
    ahead, apart, unproven, known_epoch = list[str](), list[str](), list[str](), epoch
    for source in sources:
        if source.log_id == chosen.log_id:
            known_epoch = max(known_epoch, source.newest)
        common = chosen.states.keys() & source.states.keys()
        if any(chosen.states[each] != source.states[each] for each in common):
            apart.append(source.name)
            continue
        if common and source.log_id > chosen.log_id:
            known_epoch = max(known_epoch, source.newest)
        if source.states and not common:
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


def _without_given_up(source: Source, told: Iterable[Source]) -> Source:
    """Without the epochs that a recovery, of which others know, has left behind."""
    ends = [
        before.last_epoch
        for other in told
        for before in other.incarnations
        if before.log_id == source.log_id
    ]
    if not ends or source.newest <= max(ends):
        return source
    last = max(ends)
    kept = {epoch: state_id for epoch, state_id in source.states.items() if epoch <= last}
    last_image = min(last, source.last_image)
    if last_image < source.first_image:
        return replace(source, states=kept, first_image=0, last_image=0)
    return replace(source, states=kept, last_image=last_image)
