"""What is left of a log: asked of every catch-up replica and of every process that has read it lately."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from stele.cli.client import Client, decode
from stele.cli.errors import CliError, UsageError
from stele.domain.recovery.consent import Absent, full_name, id_of, is_called
from stele.domain.recovery.histories import Choice, Source, to_compare
from stele.log.archive.container import DamagedFileError
from stele.log.archive.records import Archived
from stele.log.archive.spans import LAST_EPOCH
from stele.log.chain import LOG_ID
from stele.log.errors import LogError
from stele.log.port import Record
from stele.log.recovery import states_of
from stele.log.state_ids import STATE_ID_BYTES
from stele.runtime.answers.catch_up import MOST_EPOCHS, HistoryAnswer
from stele.runtime.recent import PATH as RECENT
from stele.runtime.recent import Promised, recent_from

PROMISED = " promised"
PROCESSES = ("metadata-log", "coordinator", "session-guard", "tablet-balancer")

replace = msgspec.structs.replace


class Left(msgspec.Struct, frozen=True):
    """All that answered. ``urls`` are the replicas by the name of their source; ``recent`` are the newest
    records of processes, by their address; ``silent`` say why others told nothing. ``unnamed`` are replicas
    that the log has, and that nobody gave the address of: they only tell, as they may be those of another
    cluster whose backup this one was made of. ``asked`` are all replicas, by address, with the ids that anybody
    tells of there; ``given`` are the addresses that somebody gave. ``replaced`` are the replicas of the log at
    whose addresses others answer.
    """

    sources: tuple[Source, ...]
    urls: dict[str, str]
    recent: dict[str, list[Archived]]
    silent: dict[str, str]
    unnamed: dict[str, str] = {}
    asked: dict[str, tuple[str, ...]] = {}
    given: tuple[str, ...] = ()
    replaced: tuple[Absent, ...] = ()

    @property
    def absent(self) -> tuple[Absent, ...]:
        """The replicas that told nothing. At an address that somebody gave it may be one that nobody knows,
        where all that are known to be there answer elsewhere.
        """
        there = self._answered()
        silent = [
            Absent(each, url, self.silent[url])
            for url, ids in self.asked.items()
            if url in self.silent
            for each in sorted({*ids} - there) or ([""] if url in self.given else [])
        ]
        named = {each.replica_id for each in silent}
        gone = (each for each in self.replaced if each.replica_id not in there | named)
        return (*silent, *gone)

    def _answered(self) -> set[str]:
        """The ids of the replicas that told something."""
        return {id_of(full, url) for full, url in (self.urls | self.unnamed).items()}

    def replicas(self) -> dict[str, str]:
        """The address of each by its full name, who answered first."""
        return self.urls | self.unnamed | {each.name: each.url for each in self.absent}

    def addresses_called(self, name: str) -> list[str]:
        """Of the replicas that have this id, address, or both."""
        found = (url for full, url in self.replicas().items() if is_called(full, url, name))
        return [*dict.fromkeys(found)]

    def more_than(self, source: Source) -> list[Archived]:
        """The records that follow what a source itself has, from whichever processes have them."""
        found = list[Archived]()
        while more := self._following(_extended(source, found)):
            found += more
        return found

    def _following(self, source: Source) -> list[Archived]:
        """Those of the process that goes on the furthest. Where processes differ there are none: which of them
        are of the history of the source nobody can tell.
        """
        found = [_following(records, source) for records in self.recent.values()]
        most = max(found, key=len, default=[])
        ends = ((each[-1], most[len(each) - 1]) for each in found if each)
        return most if all(one.links == other.links for one, other in ends) else []

    def taking(self, name: str) -> Left:
        """Where a process is named, without what others would add: that may be of another history."""
        return replace(self, recent={name: self.recent[name]}) if name in self.recent else self

    def named(self, name: str) -> str:
        """The source of this name, which a replica's id or address alone will do for. Raises UsageError where
        several replicas have the id; a name that nobody has is left to who chooses.
        """
        found = [full for full, url in self.urls.items() if is_called(full, url, name)]
        if len(found) > 1:
            raise UsageError(
                f"{len(found)} sources are called '{name}'.",
                f"Name one of: {', '.join(sorted(found))}.",
            )
        return found[0] if found else name

    def held_up(self, choice: Choice) -> tuple[str, ...]:
        """The replicas that hold later epochs than the choice, but not all before them: a file of theirs is
        damaged or missing. They ask the others for it, and get it within seconds if one of these has it.
        """
        known = {*self.urls}.difference(choice.unproven)
        return tuple(name for name in choice.ahead if name in known)

    def address_of(self, source: str) -> str:
        """Of a process it is the source's name."""
        return (self.urls | self.unnamed).get(source, source.removesuffix(PROMISED))

    def remembering(self, before: Left) -> Left:
        """With what was told before, by whoever is silent or tells less now: it is not lost by that. Nor are
        those who were asked before since one told of them who is silent now.
        """
        now = {source.name: source for source in self.sources}
        kept = {s.name: s for s in before.sources if _tells_more(s, now.get(s.name))}
        urls = {before.address_of(name) for name in kept} - {*before.silent}
        replaced = {each.replica_id for each in self.replaced}
        return Left(
            sources=tuple((now | kept).values()),
            urls=self.urls | {name: url for name, url in before.urls.items() if name in kept},
            recent=self.recent | {url: has for url, has in before.recent.items() if url in urls},
            silent={
                url: why
                for url, why in (_unasked(before, self) | self.silent).items()
                if url not in urls
            },
            unnamed=self.unnamed | {n: url for n, url in before.unnamed.items() if n in kept},
            asked={
                url: tuple(sorted({*before.asked.get(url, ()), *self.asked.get(url, ())}))
                for url in before.asked | self.asked
            },
            given=self.given,
            replaced=(
                *self.replaced,
                *(r for r in before.replaced if r.replica_id not in replaced),
            ),
        )

    def extended(self) -> tuple[Source, ...]:
        """The sources, each with what a process can add to it."""
        return tuple(_extended(source, self.more_than(source)) for source in self.sources)


def ask(client: Client, replicas: Collection[str], only: Collection[str] = ()) -> Left:
    """Ask all of them once, and the processes and nodes that are known; with ``only`` nobody but these
    addresses. Raises nothing: who does not answer is told of in ``silent``.
    """
    sources, urls, unnamed = list[Source](), dict[str, str](), dict[str, str]()
    recent, silent = dict[str, list[Archived]](), dict[str, str]()
    members, answered = set[tuple[str, str]](), dict[str, str]()
    others = dict.fromkeys(url for name in PROCESSES for url in client.places.urls.get(name, ()))
    if only:
        others = dict.fromkeys(url for url in only if url not in replicas)
    named = [url for url in replicas if not only or url in only]
    for url, told, source in _histories(client, named, silent):
        urls[source.name] = url
        sources.append(source)
        answered[told.replica_id] = url
        members |= {(each, address) for each, address in told.replicas.items()}
        if not only:
            others |= dict.fromkeys(address for address in told.nodes.values() if address)
    lacking = sorted((each, url) for each, url in members if each not in answered and not only)
    rest = [*dict.fromkeys(url for _, url in lacking if url not in replicas)]
    for url, told, source in _histories(client, rest, silent):
        if told.replica_id not in answered:
            unnamed[source.name] = url
            sources.append(replace(source, last_image=0))
            answered[told.replica_id] = url
    for url in others:
        try:
            records, promised = recent_from(client.get_bytes(f"{url}{RECENT}"))
            if records:
                recent[url] = records
            else:
                silent[url] = f"{url} has read nothing of the log since it was started."
            sources += _tellers(url, records, promised)
        except (CliError, DamagedFileError, LogError) as error:
            silent[url] = error.message if isinstance(error, CliError) else str(error)
    asked = {
        url: tuple(sorted(each for each, address in members if address == url))
        for url in (*named, *rest)
    }
    there = {url: each for each, url in answered.items()}
    replaced = tuple(
        Absent(each, url, f"{there[url]} answers at its address")
        for each, url in lacking
        if each not in answered and url in there
    )
    return Left(
        tuple(sources),
        urls,
        recent,
        silent,
        unnamed,
        asked,
        given=tuple(named),
        replaced=replaced,
    )


def _histories(
    client: Client, urls: Iterable[str], silent: dict[str, str]
) -> Iterator[tuple[str, HistoryAnswer, Source]]:
    """What the replicas there tell; ``silent`` gets why others do not."""
    for url in urls:
        try:
            told = decode(client.get_bytes(f"{url}/v1/history"), HistoryAnswer)
            source = _source(url, told)
        except CliError as error:
            silent[url] = error.message
        except ValueError as error:
            silent[url] = f"What {url} tells cannot be read: {error}."
        else:
            yield url, told, source


def compared(client: Client, left: Left) -> Left:
    """With the states of those epochs by which sources are told apart, as far as replicas hold them: these tell
    only the newest by themselves. Raises nothing: who does not answer tells nothing.
    """
    sources, epochs = {each.name: each for each in left.sources}, to_compare(left.extended())
    for begin in range(0, len(epochs), MOST_EPOCHS):
        asked = epochs[begin : begin + MOST_EPOCHS]
        for name, url in (left.urls | left.unnamed).items():
            source = sources[name]
            more = _states_of(client, url, source.log_id, asked)
            sources[name] = replace(source, states={**more, **source.states})
    return replace(left, sources=tuple(sources[each.name] for each in left.sources))


def _states_of(client: Client, url: str, log_id: str, epochs: Sequence[int]) -> dict[int, bytes]:
    """What the replica holds of these epochs, while it is at that log."""
    named = ",".join(map(str, epochs))
    try:
        told = decode(client.get_bytes(f"{url}/v1/history?epochs={named}"), HistoryAnswer)
    except CliError:
        return {}
    if told.log_id != log_id:
        return {}
    return {each: bytes.fromhex(told.states[each]) for each in epochs if each in told.states}


def _source(url: str, told: HistoryAnswer) -> Source:
    """Raises ValueError for what no log has."""
    states = {epoch: _state_id(state_id) for epoch, state_id in told.states.items()}
    epochs = (*states, told.first_image, told.last_image)
    if not 0 <= min(epochs) <= max(epochs) <= LAST_EPOCH:
        raise ValueError(f"epochs {min(epochs)} to {max(epochs)} are none of a log")
    for before in told.incarnations:
        _state_id(before.state_id)
    return Source(
        name=full_name(told.replica_id, url),
        log_id=told.log_id,
        states=states,
        first_image=told.first_image,
        last_image=told.last_image,
        incarnations=told.incarnations,
    )


def _state_id(text: str) -> bytes:
    """Raises ValueError."""
    found = bytes.fromhex(text)
    if len(found) != STATE_ID_BYTES:
        raise ValueError(f"'{text}' is no state id")
    return found


def _tells_more(before: Source, now: Source | None) -> bool:
    """Whether who tells that now has lost some of what it told before. Who only tells may have the same newest
    epoch, and lack those that lead to it.
    """
    if now is None:
        return True
    told, tells = (before.newest, before.last_image), (now.newest, now.last_image)
    is_short = not now.last_image and not before.states.keys() <= now.states.keys()
    return told > tells or (told == tells and is_short)


def _unasked(before: Left, now: Left) -> dict[str, str]:
    """The silent replicas that are not asked now, as who told of them is silent too; and why they were."""
    return {
        url: why
        for url, why in before.silent.items()
        if url in before.asked and url not in now.asked
    }


def _tellers(url: str, records: list[Archived], promised: Promised | None) -> Iterator[Source]:
    """One, or two where what it has read is of another log than what it has promised."""
    states, log_id = _states(records), _log_id(records) if records else ""
    if promised is not None:
        epoch, state_id = promised.epoch, bytes.fromhex(promised.state_id)
        if promised.log_id != log_id or states.get(epoch) != state_id:
            name, known = f"{url}{PROMISED}" if records else url, {epoch: state_id}
            yield Source(name=name, log_id=promised.log_id, states=known, promised=True)
    if records:
        yield Source(name=url, log_id=log_id, states=states)


def _extended(source: Source, more: list[Archived]) -> Source:
    if not source.last_image or not more:
        return source
    states = {**source.states, **_states(more)}
    return replace(source, log_id=_log_id(more), states=states, last_image=more[-1].epoch)


def _following(records: list[Archived], source: Source) -> list[Archived]:
    """Those after the source's last image, when they follow from it."""
    last = source.last_image
    after = [record for record in records if record.epoch > last]
    if not last or not after or after[0].epoch != last + 1:
        return []
    return after if after[0].links[0] == source.states.get(last) else []


def _states(records: list[Archived]) -> dict[int, bytes]:
    return states_of(Record(record.offset, record.value) for record in records)


def _log_id(records: list[Archived]) -> str:
    return records[-1].value[LOG_ID].hex()
