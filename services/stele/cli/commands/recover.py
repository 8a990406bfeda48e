"""``stele recover``, and the surviving history of a lost log that it chooses from."""

from __future__ import annotations

import io
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Annotated

import msgspec
from cyclopts import Parameter

from stele.cli.client import Client, Deadline, decode
from stele.cli.errors import CliError, UsageError
from stele.cli.options import Json, Where, user_name
from stele.cli.output import error_console, print_line, print_value_as_json
from stele.cli.places import address_of
from stele.domain.base import Rejection
from stele.domain.recovery import (
    Absent,
    HistoryChoice,
    HistorySource,
    choose,
    full_name,
    id_of,
    is_called,
    longest,
    missed,
    to_compare,
    unagreed,
    unheard,
)
from stele.log.archive.container import LAST_EPOCH, Archived, DamagedFileError, as_container
from stele.log.chain import LOG_ID, STATE_BYTES
from stele.log.errors import LogError
from stele.log.port import Record
from stele.log.recovery import states_of
from stele.runtime.answers.catch_up import (
    MOST_EPOCHS,
    HistoryAnswer,
    RecoverableAnswer,
    RecoveredAnswer,
)
from stele.runtime.recent import PATH as RECENT
from stele.runtime.recent import Promised, recent_from

LOOK_S = 0.5


def recover(
    *,
    reason: Annotated[str, Parameter(name="--reason")] = "",
    actor: Annotated[str, Parameter(name="--actor", env_var="STELE_ACTOR")] = "",
    take: Annotated[str, Parameter(name="--take")] = "",
    only: Annotated[tuple[str, ...], Parameter(name="--only", negative="")] = (),
    without: Annotated[tuple[str, ...], Parameter(name="--without", negative="")] = (),
    lose_after: Annotated[int | None, Parameter(name="--lose-after")] = None,
    dry_run: Annotated[bool, Parameter(name="--dry-run", negative="")] = False,
    force: Annotated[bool, Parameter(name="--force", negative="")] = False,
    wait: Annotated[bool, Parameter(name="--wait", negative="--no-wait")] = True,
    json: Json = Json(),
    where: Where = Where(),
) -> None:
    """Continue a log whose topic was lost, emptied or rolled back.

    The command asks all catch-up replicas, and all processes that have read the log, for their newest epoch.
    The log continues after the newest of them under another id, so that later writes to the old log have no
    effect.
    You must name what that gives up: replicas that do not answer, and the epoch after which epochs are lost.

    Args:
        reason: The reason for the history.
        actor: The actor for the history; default: the token's name, else the user's name.
        take: The source to continue from if two differ: its name, or the id or address of a replica. For a
            process it is the history that the process has read; a replica that follows the same history
            provides it.
        only: Ask only this address, or only this service, such as catch-up, at all of its addresses. Addresses
            of nodes come from the log; in a backup they are those of the original cluster.
        without: Id or address of a catch-up replica that does not answer. Epochs that only it holds are given
            up.
        lose_after: The last epoch to keep. Later epochs that no source can provide, or that an earlier recovery
            gave up, are lost.
        dry_run: Show the result, the losses, and any refusal, without a change.
        force: Recover even if a replica reads the log without errors. Its later epochs are given up.
        wait: Wait until a metadata-log accepts commands again.
    """
    if not (reason or dry_run):
        raise UsageError(
            "A recovery needs a reason.", 'Give it with --reason "why the log was lost".'
        )
    _note("asking catch-up replicas and processes for the epochs that they have")
    with where.client() as client:
        left, chosen = _choose(client, only, take, without, 0.0 if dry_run else where.timeout_s)
        if not json.as_json:
            _show(left)
        if isinstance(chosen, Rejection):
            missing = () if take else missed(left.absent, without)
            silent = f" {unheard(missing)}: it may settle that." if missing else ""
            raise CliError(f"{chosen.message}{silent}", chosen.hint)
        if not json.as_json:
            _show_choice(chosen, left, asked_all=not only)
        if not take:
            _agree(chosen, left, without, lose_after)
        if dry_run:
            checked = _check(client, left, chosen, force=force)
            if json.as_json:
                print_value_as_json(
                    {
                        "choice": chosen,
                        "silent": left.silent,
                        "not_looked_at": checked.not_looked_at,
                    }
                )
            elif checked.not_looked_at:
                print_line(
                    f"the topic was not checked; its records may be a reason to refuse the recovery:"
                    f" {checked.not_looked_at}"
                )
            return
        who = actor or ("" if client.has_token else user_name())
        _note(f"recovering the log from {chosen.source}")
        answer = _recover(client, left, chosen, reason, who, force=force)
        if json.as_json:
            print_value_as_json(answer)
        else:
            print_line(
                f"log {answer.log_id} continues with epoch {answer.epoch}, at offset {answer.offset}"
                + (" (it was recovered before)" if answer.was_there else "")
            )
        if wait:
            _note(
                f"waiting until a metadata-log accepts commands, for at most {where.timeout_s:g} s"
            )
            took_s = _wait(client, answer, where.timeout_s)
            if not json.as_json:
                print_line(f"a metadata-log accepts commands again after {took_s:.1f} s")


def _note(phase: str) -> None:
    """Print the phase that begins on standard error: each may take minutes."""
    print_line(phase, error_console())


def _addresses(client: Client, only: tuple[str, ...]) -> tuple[str, ...]:
    """Return the addresses of --only. Raises UsageError for neither a service nor an address."""
    return tuple(
        url for name in only for url in client.places.urls.get(name) or (address_of(name),)
    )


def _ask(client: Client, only: tuple[str, ...]) -> Left:
    return ask(client, client.places.of("catch-up"), _addresses(client, only))


def _choose(
    client: Client, only: tuple[str, ...], take: str, without: tuple[str, ...], limit_s: float
) -> tuple[Left, HistoryChoice | Rejection]:
    """Return the sources and the choice among them. With a named source, wait for no other."""
    left = compared(client, _ask(client, only))
    if take:
        name = left.named(take)
        left = left.taking(name)
        return left, choose(left.extended(), name)
    return _whole(client, only, without, left, limit_s)


def _whole(
    client: Client, only: tuple[str, ...], without: tuple[str, ...], left: Left, limit_s: float
) -> tuple[Left, HistoryChoice | Rejection]:
    """Return the sources and the choice once all replicas answer and are filled, or time is over.

    Replicas fetch from each other the epochs that their archives lack.
    """
    deadline, said, chosen = Deadline(limit_s), set[str](), choose(left.extended())
    while (waits := _waits(left, chosen, without)) and deadline.left_s() > 0:
        for each in waits:
            if each not in said:
                _note(f"waiting for {each}")
        said.update(waits)
        time.sleep(LOOK_S)
        left = compared(client, _ask(client, only).remembering(left))
        chosen = choose(left.extended())
    return left, chosen


def _waits(left: Left, chosen: HistoryChoice | Rejection, without: tuple[str, ...]) -> list[str]:
    """Return what to wait for. A replica's answer may settle what the user would have to decide."""
    found = [f"{each.name} to answer" for each in missed(left.absent, without)]
    if names := _filling(left, chosen):
        newest = max(source.newest for source in left.sources if source.name in names)
        found.append(f"{', '.join(names)} to fetch the epochs before {newest} that it lacks")
    return found


def _filling(left: Left, chosen: HistoryChoice | Rejection) -> tuple[str, ...]:
    """Return the replicas that may still fetch what is missing before their newest epochs.

    If it is not yet proven that these epochs are of the same history, the missing ones will prove
    it.
    """
    if isinstance(chosen, HistoryChoice):
        return left.held_up(chosen)
    choice = longest(left.extended()) if chosen.code == "unproven" else None
    return () if choice is None else tuple(name for name in choice.ahead if name in left.urls)


def _agree(
    chosen: HistoryChoice, left: Left, without: tuple[str, ...], lose_after: int | None
) -> None:
    """Check the user's consent to losses.

    Raises CliError if the choice gives up something that was not named. Raises UsageError if a
    named replica does not exist.
    """
    for name in without:
        urls = left.addresses_called(name)
        if not urls:
            raise UsageError(
                f"No catch-up replica is called '{name}'.",
                f"Replicas are {', '.join(left.replicas())}.",
            )
        if len(urls) > 1:
            raise UsageError(
                f"{len(urls)} addresses are of '{name}'.",
                f"Name one of them, or each: {', '.join(urls)}.",
            )
    unnamed = [name for name in chosen.ahead if name in left.unnamed]
    if unnamed:
        raise CliError(
            f"{', '.join(unnamed)} holds later epochs, and is a replica that only the log names.",
            "Name it in STELE_CATCH_UP_URLS, with all others. If it belongs to another cluster, from whose"
            " backup this one was made, ask only your own replicas: `--only catch-up`.",
        )
    refused = unagreed(chosen, left.absent, without, lose_after)
    if refused is not None:
        raise CliError(refused.message, refused.hint)


def _show(left: Left) -> None:
    for source in left.sources:
        has = (
            f"holds images of epochs {source.first_image} to {source.last_image}"
            if source.last_image
            else ""
        )
        read = f"has read epoch {source.newest}" if source.states else "has read no epoch"
        of_log = f" of log {source.log_id}" if source.states else ""
        print_line(f"{source.name}: {has or read}{of_log}")
    for url, why in left.silent.items():
        print_line(f"{url}: {why}")


def _show_choice(chosen: HistoryChoice, left: Left, *, asked_all: bool) -> None:
    silent, held_up = len(left.silent), left.held_up(chosen)
    print_line(f"the log continues after epoch {chosen.epoch}, from {chosen.source}")
    if chosen.known_epoch > chosen.epoch:
        lost = f"{chosen.epoch + 1} to {chosen.known_epoch}"
        why = ": a process has read them, and no source holds them"
        if held_up:
            why = (
                f", unless {', '.join(held_up)} fetches the epochs before them from another replica"
            )
            most = max(source.newest for source in left.sources if source.name in held_up)
            if most < chosen.known_epoch:
                why += f"; no source holds epochs after {most}"
        print_line(f"LOST: epochs {lost}{why}")
    for each in chosen.given_up:
        print_line(
            f"GIVEN UP by an earlier recovery: epochs {each.first} to {each.last} of log"
            f" {each.log_id}, which {each.source} holds"
        )
    is_whole = chosen.known_epoch == chosen.epoch and not chosen.given_up
    if is_whole and not asked_all:
        print_line(
            "no epoch is lost that an asked process has read; others may have read later ones (--only)"
        )
    elif is_whole and silent:
        who = "one process" if silent == 1 else f"{silent} processes"
        print_line(
            f"no epoch is lost that an answering process has read; {who} did not answer and may have read"
            " later ones"
        )
    elif is_whole:
        print_line("no epoch is lost that any process has read")
    for name in chosen.apart:
        print_line(f"another history: {name}")
    for name in chosen.unproven:
        print_line(f"not proven to be of this history: {name}")


def _check(client: Client, left: Left, chosen: HistoryChoice, *, force: bool) -> RecoverableAnswer:
    """Ask a replica to check the recovery. Raises CliError if it would be refused."""
    url, body, params = question(left, chosen, "", "", force=force)
    return decode(client.post_bytes(f"{url}/v1/recover/check", body, **params), RecoverableAnswer)


def _recover(
    client: Client, left: Left, chosen: HistoryChoice, reason: str, actor: str, *, force: bool
) -> RecoveredAnswer:
    url, body, params = question(left, chosen, reason, actor, force=force)
    return decode(client.post_bytes(f"{url}/v1/recover", body, **params), RecoveredAnswer)


def question(
    left: Left, chosen: HistoryChoice, reason: str, actor: str, *, force: bool
) -> tuple[str, bytes, dict[str, object]]:
    """Return the address of the replica that recovers the log, with the body and parameters."""
    source = next(source for source in left.sources if source.name == chosen.source)
    body = io.BytesIO()
    more = left.more_than(source)
    if more:
        as_container(body, more)
    params: dict[str, object] = {
        "epoch": chosen.epoch,
        "state_id": chosen.state_id.hex(),
        "known_epoch": chosen.known_epoch,
        "known_log_id": max(each.log_id for each in left.sources),
        "actor": actor,
        "reason": reason,
        "force": int(force),
        "told_epoch": source.last_image,
    }
    return left.urls[chosen.source], body.getvalue(), params


def _wait(client: Client, answer: RecoveredAnswer, limit_s: float) -> float:
    """Wait until a metadata-log is healthy in the new log. Return the seconds. Raises CliError."""
    deadline, began_s = Deadline(limit_s), time.monotonic()
    while deadline.left_s() > 0:
        for url in client.places.of("metadata-log"):
            try:
                found = decode(client.get_bytes(f"{url}/healthz"), dict[str, object])
            except CliError:
                continue
            if found["ok"] and isinstance(epoch := found["epoch"], int) and epoch >= answer.epoch:
                return time.monotonic() - began_s
        time.sleep(LOOK_S)
    raise CliError(
        "The log is recovered, but no metadata-log accepts commands yet.",
        "Check `stele stack status`, and restart processes that still follow the old log.",
    )


PROMISED = " promised"
PROCESSES = ("metadata-log", "coordinator", "session-guard", "tablet-balancer")

replace = msgspec.structs.replace


class Left(msgspec.Struct, frozen=True):
    """The answers of all replicas and processes.

    ``urls`` are the replicas' addresses by the name of their source. ``recent`` are the newest
    records of processes, by address. ``silent`` gives the reason, by address, why no history was
    received. ``unnamed`` are replicas that are in the log but were not given by address. They only
    report: they may belong to another cluster, if this one was made from its backup. ``asked`` are
    all replicas by address, with the ids reported for that address. ``given`` are the addresses
    given by the user. ``replaced`` are replicas in the log whose addresses other replicas now
    answer.
    """

    sources: tuple[HistorySource, ...]
    urls: dict[str, str]
    recent: dict[str, list[Archived]]
    silent: dict[str, str]
    unnamed: dict[str, str] = {}
    asked: dict[str, tuple[str, ...]] = {}
    given: tuple[str, ...] = ()
    replaced: tuple[Absent, ...] = ()

    @property
    def absent(self) -> tuple[Absent, ...]:
        """The replicas that did not answer.

        At an address given by the user, this may be an unknown replica, if all replicas known to be
        there answer elsewhere.
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
        """Return the ids of the replicas that answered."""
        return {id_of(full, url) for full, url in (self.urls | self.unnamed).items()}

    def replicas(self) -> dict[str, str]:
        """Return the address of each replica by its full name, answered ones first."""
        return self.urls | self.unnamed | {each.name: each.url for each in self.absent}

    def addresses_called(self, name: str) -> list[str]:
        """Return the addresses of the replicas with this id, address, or both."""
        found = (url for full, url in self.replicas().items() if is_called(full, url, name))
        return [*dict.fromkeys(found)]

    def more_than(self, source: HistorySource) -> list[Archived]:
        """Return the records after a source's newest epoch, from any processes that have them."""
        found = list[Archived]()
        while more := self._following(_extended(source, found)):
            found += more
        return found

    def _following(self, source: HistorySource) -> list[Archived]:
        """Return the records of the process with the most of them.

        Where processes differ there are none, because their history cannot be compared with the
        source's.
        """
        found = [_following(records, source) for records in self.recent.values()]
        most = max(found, key=len, default=[])
        ends = ((each[-1], most[len(each) - 1]) for each in found if each)
        return most if all(one.links == other.links for one, other in ends) else []

    def taking(self, name: str) -> Left:
        """Drop the records of other processes if ``name`` is a process.

        They may be of another history.
        """
        return replace(self, recent={name: self.recent[name]}) if name in self.recent else self

    def named(self, name: str) -> str:
        """Return the name of the source that has this name, replica id or address.

        Raises UsageError if several replicas have the id. An unknown name is returned as it is, and
        the caller rejects it.
        """
        found = [full for full, url in self.urls.items() if is_called(full, url, name)]
        if len(found) > 1:
            raise UsageError(
                f"{len(found)} sources are called '{name}'.",
                f"Name one of: {', '.join(sorted(found))}.",
            )
        return found[0] if found else name

    def held_up(self, choice: HistoryChoice) -> tuple[str, ...]:
        """Return the replicas that hold later epochs than the choice, but not all before them.

        One of their files is damaged or missing. They fetch it from the others within seconds, if
        any of these has it.
        """
        known = {*self.urls}.difference(choice.unproven)
        return tuple(name for name in choice.ahead if name in known)

    def address_of(self, source: str) -> str:
        """Return the address of a source. For a process this is the name of the source."""
        return (self.urls | self.unnamed).get(source, source.removesuffix(PROMISED))

    def remembering(self, before: Left) -> Left:
        """Add what ``before`` reported and these answers lack.

        A source that is silent or reports less now has not lost its epochs by that. Replicas that
        were asked before are kept too, even if the replica that reported them is silent now.
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

    def extended(self) -> tuple[HistorySource, ...]:
        """Return the sources, each extended by the records of processes."""
        return tuple(_extended(source, self.more_than(source)) for source in self.sources)


def ask(client: Client, replicas: Collection[str], only: Collection[str] = ()) -> Left:
    """Ask all replicas, and the known processes and nodes, once each.

    With ``only``, ask these addresses alone. It raises nothing: failures are in ``silent``.
    """
    sources, urls, unnamed = list[HistorySource](), dict[str, str](), dict[str, str]()
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
) -> Iterator[tuple[str, HistoryAnswer, HistorySource]]:
    """Yield the histories of the replicas. Failures are added to ``silent``."""
    for url in urls:
        try:
            told = decode(client.get_bytes(f"{url}/v1/history"), HistoryAnswer)
            source = _source(url, told)
        except CliError as error:
            silent[url] = error.message
        except ValueError as error:
            silent[url] = f"The answer of {url} cannot be read: {error}."
        else:
            yield url, told, source


def compared(client: Client, left: Left) -> Left:
    """Add the states of the epochs that distinguish the sources, as far as replicas hold them.

    By themselves replicas report only the newest states. It raises nothing: a failure adds no
    state.
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
    """Return the replica's states of these epochs, if it still has this log."""
    named = ",".join(map(str, epochs))
    try:
        told = decode(client.get_bytes(f"{url}/v1/history?epochs={named}"), HistoryAnswer)
    except CliError:
        return {}
    if told.log_id != log_id:
        return {}
    return {each: bytes.fromhex(told.states[each]) for each in epochs if each in told.states}


def _source(url: str, told: HistoryAnswer) -> HistorySource:
    """Return the source of a replica's answer. Raises ValueError for values that no log has."""
    states = {epoch: _state_id(state_id) for epoch, state_id in told.states.items()}
    epochs = (*states, told.first_image, told.last_image)
    if not 0 <= min(epochs) <= max(epochs) <= LAST_EPOCH:
        raise ValueError(f"epochs {min(epochs)} to {max(epochs)} are none of a log")
    for before in told.incarnations:
        _state_id(before.state_id)
    return HistorySource(
        name=full_name(told.replica_id, url),
        log_id=told.log_id,
        states=states,
        first_image=told.first_image,
        last_image=told.last_image,
        incarnations=told.incarnations,
    )


def _state_id(text: str) -> bytes:
    """Parse a state id. Raises ValueError."""
    found = bytes.fromhex(text)
    if len(found) != STATE_BYTES:
        raise ValueError(f"'{text}' is not a state id")
    return found


def _tells_more(before: HistorySource, now: HistorySource | None) -> bool:
    """Return True if a source reports less now than before.

    A source without files may have the same newest epoch, and lack those that lead to it.
    """
    if now is None:
        return True
    told, tells = (before.newest, before.last_image), (now.newest, now.last_image)
    is_short = not now.last_image and not before.states.keys() <= now.states.keys()
    return told > tells or (told == tells and is_short)


def _unasked(before: Left, now: Left) -> dict[str, str]:
    """Return the silent replicas that are not asked now, with the reason of their silence.

    They are not asked because the replica that reported them is silent too.
    """
    return {
        url: why
        for url, why in before.silent.items()
        if url in before.asked and url not in now.asked
    }


def _tellers(
    url: str, records: list[Archived], promised: Promised | None
) -> Iterator[HistorySource]:
    """Yield the sources of a process.

    There are two if its records are of another log than its promise.
    """
    states, log_id = _states(records), _log_id(records) if records else ""
    if promised is not None:
        epoch, state_id = promised.epoch, bytes.fromhex(promised.state_id)
        if promised.log_id != log_id or states.get(epoch) != state_id:
            name, known = f"{url}{PROMISED}" if records else url, {epoch: state_id}
            yield HistorySource(name=name, log_id=promised.log_id, states=known, promised=True)
    if records:
        yield HistorySource(name=url, log_id=log_id, states=states)


def _extended(source: HistorySource, more: list[Archived]) -> HistorySource:
    if not source.last_image or not more:
        return source
    states = {**source.states, **_states(more)}
    return replace(source, log_id=_log_id(more), states=states, last_image=more[-1].epoch)


def _following(records: list[Archived], source: HistorySource) -> list[Archived]:
    """Return the records after the source's last image, if they follow from it."""
    last = source.last_image
    after = [record for record in records if record.epoch > last]
    if not last or not after or after[0].epoch != last + 1:
        return []
    return after if after[0].links[0] == source.states.get(last) else []


def _states(records: list[Archived]) -> dict[int, bytes]:
    return states_of(Record(record.offset, record.value) for record in records)


def _log_id(records: list[Archived]) -> str:
    return records[-1].value[LOG_ID].hex()
