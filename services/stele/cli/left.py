"""What is left of a log: asked of every catch-up replica and of every process that has read it lately."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from stele.cli.client import Client, decode
from stele.cli.errors import CliError, UsageError
from stele.domain.recovery.histories import Choice, Source, to_compare
from stele.log.archive.container import DamagedFileError
from stele.log.archive.records import Archived, from_container
from stele.log.chain import LOG_ID
from stele.log.errors import LogError
from stele.log.port import Record
from stele.log.recovery import states_of
from stele.runtime.answers.catch_up import MOST_EPOCHS, HistoryAnswer
from stele.runtime.recent import PATH as RECENT

PROCESSES = ("metadata-log", "coordinator", "session-guard", "tablet-balancer")

replace = msgspec.structs.replace


class Left(msgspec.Struct, frozen=True):
    """All that answered. ``urls`` are the replicas by the name of their source; ``recent`` are the newest
    records of processes, by their address; ``silent`` say why others told nothing. ``unnamed`` are replicas
    that the log has, and that nobody gave the address of: they only tell, as they may be those of another
    cluster whose backup this one was made of.
    """

    sources: tuple[Source, ...]
    urls: dict[str, str]
    recent: dict[str, list[Archived]]
    silent: dict[str, str]
    unnamed: dict[str, str] = {}

    def more_than(self, source: Source) -> list[Archived]:
        """The records that follow what a source itself has, of whichever process goes on the furthest. Where
        processes differ there are none: which of them are of the history of the source nobody can tell.
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
        found = [
            full for full, url in self.urls.items() if name in (full.removesuffix(f" ({url})"), url)
        ]
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
        return (self.urls | self.unnamed).get(source, source)

    def remembering(self, before: Left) -> Left:
        """With what those told before who do not answer now: it is not lost by that."""
        gone = {
            source.name: url
            for source in before.sources
            if (url := before.address_of(source.name)) in self.silent
        }
        urls = {*gone.values()}
        return Left(
            sources=(*self.sources, *(each for each in before.sources if each.name in gone)),
            urls=self.urls | {name: url for name, url in before.urls.items() if name in gone},
            recent=self.recent | {url: has for url, has in before.recent.items() if url in urls},
            silent={url: why for url, why in self.silent.items() if url not in urls},
            unnamed=self.unnamed | {n: url for n, url in before.unnamed.items() if n in gone},
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
    members, answered = dict[str, str](), set[str]()
    others = dict.fromkeys(url for name in PROCESSES for url in client.places.urls.get(name, ()))
    if only:
        others = dict.fromkeys(url for url in only if url not in replicas)
    named = [url for url in replicas if not only or url in only]
    for url, told in _histories(client, named, silent):
        source = _source(url, told)
        urls[source.name] = url
        sources.append(source)
        answered.add(told.replica_id)
        if not only:
            others |= dict.fromkeys(address for address in told.nodes.values() if address)
            members |= told.replicas
    rest = [url for each, url in members.items() if each not in answered and url not in replicas]
    for url, told in _histories(client, rest, silent):
        if told.replica_id not in answered:
            source = replace(_source(url, told), last_image=0)
            unnamed[source.name] = url
            sources.append(source)
    for url in others:
        try:
            records = from_container(client.get_bytes(f"{url}{RECENT}"))
            if records:
                recent[url] = records
                sources.append(_teller(url, records))
        except (CliError, DamagedFileError, LogError) as error:
            silent[url] = error.message if isinstance(error, CliError) else str(error)
    return Left(tuple(sources), urls, recent, silent, unnamed)


def _histories(
    client: Client, urls: Iterable[str], silent: dict[str, str]
) -> Iterator[tuple[str, HistoryAnswer]]:
    """What the replicas there tell; ``silent`` gets why others do not."""
    for url in urls:
        try:
            told = decode(client.get_bytes(f"{url}/v1/history"), HistoryAnswer)
        except CliError as error:
            silent[url] = error.message
        else:
            yield url, told


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
    states = {epoch: bytes.fromhex(state_id) for epoch, state_id in told.states.items()}
    return Source(
        name=f"{told.replica_id} ({url})",
        log_id=told.log_id,
        states=states,
        first_image=told.first_image,
        last_image=told.last_image,
        incarnations=told.incarnations,
    )


def _teller(url: str, records: list[Archived]) -> Source:
    return Source(name=url, log_id=_log_id(records), states=_states(records))


def _extended(source: Source, more: list[Archived]) -> Source:
    if not source.last_image or not more:
        return source
    return replace(source, states={**source.states, **_states(more)}, last_image=more[-1].epoch)


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
