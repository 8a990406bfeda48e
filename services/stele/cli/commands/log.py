"""``stele log``: the history of the log, and its archive, readers and modes.

The commands that read Kafka or the archive themselves are in ``log_offline``. It is imported when
one of them is called, because its imports take long.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter
from rich.table import Table

from stele.cli.client import Client
from stele.cli.commands.epochs import Only, last_epochs, line_of, newest_epoch
from stele.cli.commands.topology import submit_and_tell
from stele.cli.errors import CliError, UsageError
from stele.cli.history import HistoryWords, Slice, epochs_from, not_kept, slices
from stele.cli.notice import ProgressLine
from stele.cli.options import (
    FROM_ONE,
    FROM_ZERO,
    Change,
    FollowedChange,
    Format,
    Json,
    ReadPoint,
    Where,
)
from stele.cli.output import (
    clock,
    console,
    counted,
    duration,
    joined,
    percent,
    print_fields,
    print_line,
    print_value_as_json,
    size,
    table,
)
from stele.cli.reading import SERVICE, NoRequestError, StateReading
from stele.domain.commands import AskSnapshot, ForgetReader, RestrictCommits, TruncateLog
from stele.domain.epoch_stats import MINUTE_MS, EpochCount, EpochStats, merged
from stele.domain.names import CommitMode
from stele.domain.not_taken import restricted_text
from stele.runtime.answers.metadata_log import StatsAnswer
from stele.words.facts import EpochRow
from stele.words.units import visible

TAIL_LAST = 10
Raw = dict[str, Any]
"""An epoch as decoded JSON."""
SEARCH_LAST = 20
STATS_PATH = "/v1/epochs/stats"
STATS_LAST = 10_000
MOST_ROWS = 10
"""Rows of each table of `stats`; JSON has all."""

app = App(name="log", help="Search, check, freeze and truncate the log.")
app.command("stele.cli.commands.log_offline:replay", help="Replay the topic in this process.")
app.command(
    "stele.cli.commands.log_offline:verify_log",
    name="verify",
    help="Read and check all archives, and compare them with the topic.",
)


@app.command
def tail(
    *,
    last: Annotated[int, Parameter(name=("--limit", "--last"), validator=FROM_ZERO)] = TAIL_LAST,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative="")] = False,
    facts: Annotated[str, Parameter(name="--facts")] = "",
    barriers: Annotated[bool, Parameter(name="--barriers", negative="")] = False,
    json: Json = Json(),
    where: Where = Where(),
) -> None:
    """Print the newest epochs in their order, and with --follow those that are appended later.

    Each epoch is printed once, also when the connection is lost: the stream resumes after the last epoch
    printed. With --json each epoch is a line.

    Args:
        last: The number of existing epochs to print.
        follow: Continue with later epochs until Ctrl-C.
        facts: Print only facts with these names, separated by commas, and only epochs that have one.
        barriers: Also print epochs that changed nothing: the barriers of reads.
    """
    only = frozenset(filter(None, facts.split(",")))
    with where.client() as client:
        newest = StateReading(client).topology()
        end = newest.epoch
        shown = _newest(client, end, last, only, barriers)
        words = None if json.as_json else HistoryWords(client, end)
        _print_tail(shown, words)
        if follow:
            live = epochs_from(client, end + 1, where.timeout_s, newest.state_id)
            _print_tail(_chosen(map(msgspec.json.decode, live), only, barriers), words)


def _newest(
    client: Client, end: int, count: int, only: frozenset[str], barriers: bool
) -> Iterable[Raw]:
    if not only:
        return last_epochs(client, end, count, barriers)[0] if count else ()
    asked = {"facts": ",".join(sorted(only))}
    found = [raw for part in slices(client, asked, count, end + 1) for raw in part.epochs]
    return _chosen(reversed(found), only, barriers)


def _chosen(epochs: Iterable[Raw], only: frozenset[str], barriers: bool) -> Iterator[Raw]:
    for raw in epochs:
        facts = [*_of_names(raw["facts"], only)] if only else raw["facts"]
        if facts or (barriers and not only):
            yield {**raw, "facts": facts}


def _of_names(facts: Iterable[Raw], only: frozenset[str]) -> Iterator[Raw]:
    """Yield the facts with a name of ``only``.

    A fact that contains such facts is kept with these alone.
    """
    for fact in facts:
        inside = [*_of_names(fact.get("facts", ()), only)]
        if inside:
            yield {**fact, "facts": inside}
        elif fact["type"] in only:
            yield fact


def _print_tail(epochs: Iterable[Raw], words: HistoryWords | None) -> None:
    """Print a line for each epoch as it arrives, as JSON without ``words``."""
    for raw in epochs:
        if words is None:
            sys.stdout.write(visible(msgspec.json.encode(raw).decode()) + "\n")
            sys.stdout.flush()
        else:
            print_line(line_of(msgspec.convert(raw, EpochRow), words))


@app.command
def search(
    *,
    only: Only = Only(),
    request: str = "",
    fact: str = "",
    text: str = "",
    last: Annotated[int, Parameter(name=("--limit", "--last"), validator=FROM_ONE)] = SEARCH_LAST,
    before: Annotated[int | None, Parameter(name="--before", validator=FROM_ONE)] = None,
    json: Json = Json(),
    where: Where = Where(),
) -> None:
    """Search the whole history for the newest epochs that match all given options.

    The metadata-log reads some thousands of epochs at each call, so a long log takes a while. The history
    includes refused commands. The newest epoch is the last.

    Args:
        request: The id of a request, or its beginning if the request is part of the state. It matches all steps
            of an operation.
        fact: The name of a fact, such as NodeChanged, or several separated by commas.
        text: Words that all occur in the epoch: in a reason, a refusal or an address.
        last: The number of epochs to find.
        before: Begin before this epoch instead of at the newest.
    """
    more = {"request": request, "facts": fact, "text": text}
    given = only.asked() | {name: value for name, value in more.items() if value}
    with where.client() as client:
        if request:
            given["request"] = _whole_id(client, request)
        if json.as_json:
            found = [*slices(client, given, last, before)]
            epochs = [raw for part in found for raw in part.epochs]
            print_value_as_json({**_end(found), "epochs": epochs})
        else:
            _show_found(client, given, last, before)


def _whole_id(client: Client, begins: str) -> str:
    """Return the id of the only request of the state with this prefix, else the prefix as it is."""
    try:
        return StateReading(client).find(begins).request_id
    except NoRequestError:
        return begins


def _show_found(client: Client, asked: dict[str, Any], last: int, before: int | None) -> None:
    began_s, found, progress = time.monotonic(), list[Slice](), ProgressLine()
    for part in slices(client, asked, last, before):
        found.append(part)
        progress.tell(_looked(found))
    progress.end()
    rows = [raw for part in found for raw in part.epochs]
    if rows:
        words = HistoryWords(client, found[0].newest)
        for raw in reversed(rows):
            print_line(line_of(msgspec.convert(raw, EpochRow), words))
    took = duration(time.monotonic() - began_s)
    end = _end(found)
    more = f": --before {end['next_before']} continues the search" if end["next_before"] else ""
    epochs = counted(sum(len(part.epochs) for part in found), "epoch", "epochs")
    print_line(f"found {epochs}; {_looked(found)} in {took}{more}")
    if not any(part.epochs for part in found) and _is_unknown(client, asked.get("about", "")):
        print_line(
            f"No node, keyspace or table has the name {asked['about']} now;"
            " what was dropped is known by its id."
        )
    older = not_kept(found[-1].begins, found[-1].stores) if found and not more else ""
    if older:
        print_line(older)


def _is_unknown(client: Client, name: str) -> bool:
    """Return True if the state has no object with this name. Return False if that is unknown."""
    reading = StateReading(client, level="local")
    try:
        if not name or any(node.node_id == name for node in reading.nodes()):
            return False
        names = reading.all_names()
    except CliError:
        return False
    return name not in {*names, *names.values()}


def _looked(found: list[Slice]) -> str:
    return f"looked at {sum(part.looked_at for part in found)} epochs"


def _end(found: list[Slice]) -> dict[str, int]:
    looked_at = sum(part.looked_at for part in found)
    return {"looked_at": looked_at, "next_before": found[-1].next_before if found else 0}


@app.command
def stats(
    *,
    last: Annotated[int, Parameter(name=("--limit", "--last"), validator=FROM_ONE)] = STATS_LAST,
    everything: Annotated[bool, Parameter(name="--all", negative="")] = False,
    json: Json = Json(),
    where: Where = Where(),
) -> None:
    """Count epochs and bytes by command, actor, minute and size, and show the largest records and offsets.

    The metadata-log counts some thousands of epochs at each call. Ten million epochs take more than a minute.

    Args:
        last: The number of newest epochs to count.
        everything: Count all epochs that the log keeps.
    """
    with where.client() as client:
        newest = newest_epoch(client)
        first = 1 if everything else max(1, newest - last + 1)
        found, answer = _counted(client, first, newest)
    if json.as_json:
        skipped = {"losers": answer.losers, "strays": answer.strays}
        print_value_as_json({"newest": newest, **skipped, "stats": found})
        return
    _show_stats(found, answer)


def _counted(client: Client, first: int, newest: int) -> tuple[EpochStats, StatsAnswer]:
    """Return the merged counts of all slices, and the answer of the last one."""
    found, progress, begin = EpochStats(), ProgressLine(), first
    while True:
        params = {"from": first, "to": newest}
        answer = client.get(SERVICE, STATS_PATH, StatsAnswer, **params)
        found = merged(found, answer.stats)
        if not answer.next_from:
            progress.end()
            return found, answer
        first = answer.next_from
        share = (found.last - begin + 1) / (newest - begin + 1)
        progress.tell(f"counted epochs up to {found.last} of {newest}", share)


def _show_stats(found: EpochStats, answer: StatsAnswer) -> None:
    total, out = found.total, console()
    losers = counted(answer.losers, "loser", "losers")
    strays = counted(answer.strays, "stray", "strays")
    span_s = (found.last_at_ms - found.first_at_ms) / 1000
    per_s = f", {total.epochs / span_s:,.1f}/s" if span_s > 0 else ""
    print_fields(
        [
            ("epochs", f"{found.first} to {found.last}: {total.epochs}{per_s}"),
            ("time", f"{clock(found.first_at_ms)} to {clock(found.last_at_ms)}"),
            ("offsets", f"{found.first_offset} to {found.last_offset}"),
            ("bytes", f"{size(total.size_bytes)}, {_mean(total)} a record"),
            ("beside", f"{counted(found.beside, 'record', 'records')} among them won nothing"),
            ("skipped", f"{losers} and {strays}, of all that this instance has read"),
        ]
    )
    older = not_kept(answer.begins, answer.stores)
    if older:
        print_line(older, out)
    out.print(_by("command", found.commands, total))
    out.print(_by("actor", found.actors, total))
    minutes = table("", "minute", "epochs", "per s", right=("epochs", "per s"))
    for minute in sorted(found.minutes)[-MOST_ROWS:]:
        epochs = found.minutes[minute]
        minutes.add_row(clock(minute * MINUTE_MS), str(epochs), f"{epochs / 60:,.1f}")
    out.print(minutes)
    sizes = table("", "record size", "records", "", right=("record size", "records"))
    for bits, records in sorted(found.sizes.items()):
        sizes.add_row(f"< {size(1 << bits)}", str(records), percent(records, total.epochs))
    out.print(sizes)
    largest = table(
        "", "largest", "epoch", "offset", "command", "actor", right=("largest", "epoch", "offset")
    )
    for each in found.largest:
        place = str(each.epoch), str(each.offset)
        largest.add_row(size(each.size_bytes), *place, each.command, each.actor)
    out.print(largest)


def _by(what: str, counts: dict[str, EpochCount], total: EpochCount) -> Table:
    shown = table("", what, "epochs", "", "bytes", "", right=("epochs", "bytes"))
    ranked = sorted(counts.items(), key=lambda item: (-item[1].epochs, item[0]))
    rest = _sum(count for _, count in ranked[MOST_ROWS:])
    for name, count in (*ranked[:MOST_ROWS], ("(others)", rest)):
        if count.epochs:
            shown.add_row(
                name or "-",
                str(count.epochs),
                percent(count.epochs, total.epochs),
                size(count.size_bytes),
                percent(count.size_bytes, total.size_bytes),
            )
    return shown


def _sum(counts: Iterable[EpochCount]) -> EpochCount:
    return sum(counts, EpochCount())


def _mean(total: EpochCount) -> str:
    return size(total.size_bytes / total.epochs) if total.epochs else "nothing"


@app.command
def freeze(
    change: Change = Change(),
    where: Where = Where(),
) -> None:
    """Reject all commands until the log is thawed. Give the reason with --reason.

    Earlier decisions stay. A rejected command is not remembered, so it may be sent again with its request id.
    Reads and writes of data continue, and running streams finish.
    """
    _restrict(RestrictCommits(mode=CommitMode.FROZEN), change, where)


@app.command
def single_user(
    actor: str,
    /,
    change: Change = Change(),
    where: Where = Where(),
) -> None:
    """Reject the commands of all actors but one until the log is thawed. Give the reason with --reason.

    With access tokens the actor is the token's owner. Without them any caller can use the actor's name, so this
    protects against mistakes only.

    Args:
        actor: The actor as `stele epochs` shows it.
    """
    _restrict(RestrictCommits(mode=CommitMode.SINGLE_USER, actor=actor), change, where)


@app.command
def thaw(
    change: Change = Change(),
    where: Where = Where(),
) -> None:
    """Accept the commands of all actors again."""
    _restrict(RestrictCommits(mode=CommitMode.OPEN), change, where)


def _restrict(command: RestrictCommits, change: Change, where: Where) -> None:
    opens = command.mode is CommitMode.OPEN
    if not opens and not change.reason:
        raise UsageError(
            "A reason is missing. Callers whose commands are refused receive it.",
            'Add --reason "...".',
        )
    out = console()
    with where.client() as client:
        before = restricted_text(StateReading(client).topology().commits)
        epoch = change.send(client, command).epoch
        now = StateReading(client).topology()
    if before:
        print_line(f"before: {before}", out)
    if opens:
        print_line(f"open to all since epoch {epoch}", out)
    elif now.commits.since_epoch == epoch:
        print_line(f"{restricted_text(now.commits)}; `stele log thaw` opens it", out)
    else:
        shown = restricted_text(now.commits) or "the log is open to all"
        print_line(f"done at epoch {epoch}; since then: {shown}", out)


POLL_S = 0.3

readers = App(name="readers", help="Readers that block truncation: list, forget.")
app.command(readers)


@app.command
def snapshot(
    change: FollowedChange = FollowedChange(),
    where: Where = Where(),
) -> int:
    """Take a snapshot of the metadata on every catch-up replica, and wait until a majority has it.

    It holds metadata; `stele table snapshot` takes one of rows. Exit status 1 when no majority has it within
    --timeout.
    """
    with where.client() as client:
        epoch = change.send(client, AskSnapshot()).epoch
        print_line(f"snapshot of epoch {epoch} requested")
        return 0 if not change.wait or _has_majority(client, epoch, where.timeout_s) else 1


def _has_majority(client: Client, epoch: int, limit_s: float) -> bool:
    """Wait until a majority has the snapshot. Print who has it, or what is missing."""
    end_s = time.monotonic() + limit_s
    while True:
        found = StateReading(client).catch_up()
        agreed = next((each for each in found.agreed if each.epoch >= epoch), None)
        if agreed is not None:
            print_line(f"snapshot of epoch {agreed.epoch} is on {joined(agreed.members)}")
            return True
        if time.monotonic() > end_s:
            print_line(
                f"no majority of the members has it after {limit_s:g} s: `stele catch-up show`"
            )
            return False
        time.sleep(POLL_S)


@app.command
def truncate(
    *,
    dry_run: Annotated[bool, Parameter(name="--dry-run", negative="")] = False,
    json: Json = Json(),
    change: Change = Change(),
    where: Where = Where(),
) -> None:
    """Delete the records of the log before a snapshot that a majority of catch-up members has.

    The newest two of these snapshots stay readable from the log, or as many as the setting truncate_behind
    says. Readers that are still behind are waited for. Catch-up replicas keep the deleted epochs.

    Args:
        dry_run: Show where the log could be truncated, and why not further. Delete nothing.
    """
    with where.client() as client:
        found = StateReading(client, level="linearizable").catch_up()
        can = found.truncation
        if json.as_json:
            print_value_as_json(found)
        if dry_run:
            if not json.as_json:
                _tell(found.archive.truncated.epoch if found.archive.truncated else 1, can.epoch)
                print_line(f"why not further: {can.why_not_more}")
                _tell_lost(can.lost_readers)
            return
    if not can.epoch:
        raise CliError("Nothing of the log can be deleted now.", f"{can.why_not_more}.")
    _tell_lost(can.lost_readers)
    text = f"the log begins at epoch {can.epoch}, offset {can.offset},"
    submit_and_tell(where, change, TruncateLog(can.epoch, can.offset), text)


def _tell(begins: int, epoch: int) -> None:
    if not epoch:
        print_line(f"nothing can be deleted: the log begins at epoch {begins}")
        return
    print_line(f"epochs {begins} to {epoch - 1} can be deleted")


def _tell_lost(lost: tuple[str, ...]) -> None:
    if lost:
        print_line(f"lost readers, for which truncation does not wait: {joined(lost)}")


@readers.default
def list_readers(
    read: ReadPoint = ReadPoint(), form: Format = Format(), where: Where = Where()
) -> None:
    """List the readers that have announced their position, and since when."""
    with where.client() as client:
        found = read.of(client).catch_up()
    if form.is_document:
        at = {"epoch": found.epoch, "state_id": found.state_id}
        form.print_document({**at, "readers": found.readers})
        return
    shown = table(f"readers at epoch {found.epoch}", "reader", "epoch", "since", right=("epoch",))
    for each in found.readers:
        shown.add_row(each.reader_id, str(each.epoch), clock(each.moved_ms))
    form.print_table(shown)


@readers.command
def forget(
    reader_id: str,
    /,
    *,
    change: Change = Change(),
    where: Where = Where(),
) -> None:
    """Forget a reader that never comes back. A reader that still runs announces itself again.

    Args:
        reader_id: Id from `stele log readers`.
    """
    submit_and_tell(where, change, ForgetReader(reader_id), f"{reader_id} is forgotten")
