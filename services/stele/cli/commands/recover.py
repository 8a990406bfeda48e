"""``stele recover``: a log that is gone, or lost its end, goes on from what archives and processes have."""

from __future__ import annotations

import io
import time
from typing import Annotated

from cyclopts import Parameter

from stele.cli.client import Client, Deadline, decode
from stele.cli.errors import CliError, UsageError
from stele.cli.left import Left, ask, compared
from stele.cli.options import Json, Where, user_name
from stele.cli.output import error_console, print_line, print_value_as_json
from stele.cli.places import address_of
from stele.domain.base import Rejection
from stele.domain.recovery.consent import missed, unagreed, unheard
from stele.domain.recovery.histories import Choice, choose, longest
from stele.log.archive.records import as_container
from stele.runtime.answers.catch_up import RecoverableAnswer, RecoveredAnswer

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
    json: Json = Json(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Go on from what is left of a log whose topic was lost, emptied, or rolled back to the past.

    All catch-up replicas, and all processes that have read the log, are asked what they hold. The log goes on
    after the newest epoch of all under another id, so that whoever still writes the old one is not heard. What
    that gives up has to be named: replicas that do not answer, and the epoch after which epochs are lost.

    Args:
        reason: Why; becomes part of the history.
        actor: Who; default: whose token it is, else the user's name.
        take: The source whose history counts, where two of them differ, or may: its name, or a replica's id or
            address. Of a process it is what it has read, from a replica which that follows.
        only: Ask nobody else: an address, or a service such as catch-up, which stands for all of its addresses.
            Nodes are asked at the addresses that the log has of them: a backup has those of where it was made.
        without: A catch-up replica that does not answer, by id or address: what it alone holds is given up.
        lose_after: The epoch that the log goes on after: later ones that somebody has read and nobody can give,
            or that an earlier recovery gave up, are left.
        dry_run: Say what would be done, what would be lost, and whether it would be refused.
        force: Also where a replica reads the log without trouble: its later epochs are given up.
        wait: Until a metadata-log takes commands again.
    """
    if not (reason or dry_run):
        raise UsageError("A recovery needs a reason.", 'Say --reason "why the log was lost".')
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
                    f"the topic was not looked at, which may hold what a recovery is refused for:"
                    f" {checked.not_looked_at}"
                )
            return
        who = actor or ("" if client.has_token else user_name())
        answer = _recover(client, left, chosen, reason, who, force=force)
        if json.as_json:
            print_value_as_json(answer)
        else:
            print_line(
                f"log {answer.log_id} goes on with epoch {answer.epoch}, at offset {answer.offset}"
                + (" (it was recovered before)" if answer.was_there else "")
            )
        if wait:
            took_s = _wait(client, answer, where.timeout_s)
            if not json.as_json:
                print_line(f"commands are taken again after {took_s:.1f} s")


def _addresses(client: Client, only: tuple[str, ...]) -> tuple[str, ...]:
    """Raises UsageError for what is neither a service here nor an address."""
    return tuple(
        url for name in only for url in client.places.urls.get(name) or (address_of(name),)
    )


def _ask(client: Client, only: tuple[str, ...]) -> Left:
    return ask(client, client.places.of("catch-up"), _addresses(client, only))


def _choose(
    client: Client, only: tuple[str, ...], take: str, without: tuple[str, ...], limit_s: float
) -> tuple[Left, Choice | Rejection]:
    """Where a source is named nobody is waited for."""
    left = compared(client, _ask(client, only))
    if take:
        name = left.named(take)
        left = left.taking(name)
        return left, choose(left.extended(), name)
    return _whole(client, only, without, left, limit_s)


def _whole(
    client: Client, only: tuple[str, ...], without: tuple[str, ...], left: Left, limit_s: float
) -> tuple[Left, Choice | Rejection]:
    """What is left once all replicas answer, and have given each other what their archives lack, or when the
    time is over.
    """
    deadline, said, chosen = Deadline(limit_s), set[str](), choose(left.extended())
    while (waits := _waits(left, chosen, without)) and deadline.left_s() > 0:
        for each in waits:
            if each not in said:
                print_line(f"waits for {each}", error_console())
        said.update(waits)
        time.sleep(LOOK_S)
        left = compared(client, _ask(client, only).remembering(left))
        chosen = choose(left.extended())
    return left, chosen


def _waits(left: Left, chosen: Choice | Rejection, without: tuple[str, ...]) -> list[str]:
    """What is waited for: what a replica tells may settle what people would have to decide."""
    found = [f"{each.name} to answer" for each in missed(left.absent, without)]
    if names := _filling(left, chosen):
        newest = max(source.newest for source in left.sources if source.name in names)
        found.append(f"{', '.join(names)} to get what is missing before epoch {newest}")
    return found


def _filling(left: Left, chosen: Choice | Rejection) -> tuple[str, ...]:
    """The replicas that may get what is missing before their newest epochs. Where nobody can tell yet whether
    these are of the same history, that will tell it.
    """
    if isinstance(chosen, Choice):
        return left.held_up(chosen)
    choice = longest(left.extended()) if chosen.code == "unproven" else None
    return () if choice is None else tuple(name for name in choice.ahead if name in left.urls)


def _agree(chosen: Choice, left: Left, without: tuple[str, ...], lose_after: int | None) -> None:
    """Raises CliError where it gives up what nobody has named, UsageError where what is named is nobody."""
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
            "Name it in STELE_CATCH_UP_URLS, with all others. Where it is another cluster's, whose backup"
            " this one was made of, ask your own alone: `--only catch-up`.",
        )
    refused = unagreed(chosen, left.absent, without, lose_after)
    if refused is not None:
        raise CliError(refused.message, refused.hint)


def _show(left: Left) -> None:
    for source in left.sources:
        has = (
            f"images of epochs {source.first_image} to {source.last_image}"
            if source.last_image
            else ""
        )
        knows = f"knows epoch {source.newest}" if source.states else "knows nothing"
        of_log = f" of log {source.log_id}" if source.states else ""
        print_line(f"{source.name}: {has or knows}{of_log}")
    for url, why in left.silent.items():
        print_line(f"{url}: {why}")


def _show_choice(chosen: Choice, left: Left, *, asked_all: bool) -> None:
    silent, held_up = len(left.silent), left.held_up(chosen)
    print_line(f"goes on after epoch {chosen.epoch}, from {chosen.source}")
    if chosen.known_epoch > chosen.epoch:
        lost = f"{chosen.epoch + 1} to {chosen.known_epoch}"
        who = "which somebody has read and nobody holds"
        if held_up:
            who = (
                f"unless {', '.join(held_up)} gets from another replica what is missing before them"
            )
            most = max(source.newest for source in left.sources if source.name in held_up)
            if most < chosen.known_epoch:
                who += f"; nobody holds those after epoch {most}"
        print_line(f"LOST: epochs {lost}, {who}")
    for each in chosen.given_up:
        print_line(
            f"GIVEN UP before: epochs {each.first} to {each.last} of log {each.log_id}, which"
            f" {each.source} has"
        )
    is_whole = chosen.known_epoch == chosen.epoch and not chosen.given_up
    if is_whole and not asked_all:
        print_line(
            "no epoch is lost that anybody who was asked has read; what others have read is not known (--only)"
        )
    elif is_whole and silent:
        who = "one process" if silent == 1 else f"{silent} processes"
        print_line(
            f"no epoch is lost that anybody who answered has read; what {who} did not tell may be more"
        )
    elif is_whole:
        print_line("no epoch is lost that anybody has read")
    for name in chosen.apart:
        print_line(f"another history: {name}")
    for name in chosen.unproven:
        print_line(f"nobody can tell whether it is of this history: {name}")


def _check(client: Client, left: Left, chosen: Choice, *, force: bool) -> RecoverableAnswer:
    """Raises CliError where the recovery would be refused."""
    url, body, params = question(left, chosen, "", "", force=force)
    return decode(client.post_bytes(f"{url}/v1/recover/check", body, **params), RecoverableAnswer)


def _recover(
    client: Client, left: Left, chosen: Choice, reason: str, actor: str, *, force: bool
) -> RecoveredAnswer:
    url, body, params = question(left, chosen, reason, actor, force=force)
    return decode(client.post_bytes(f"{url}/v1/recover", body, **params), RecoveredAnswer)


def question(
    left: Left, chosen: Choice, reason: str, actor: str, *, force: bool
) -> tuple[str, bytes, dict[str, object]]:
    """Which replica is asked to recover the log, with what body and parameters."""
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
    """Until a metadata-log is well in the new log. Raises CliError."""
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
        "The log is recovered, but no metadata-log takes commands yet.",
        "Look at `stele stack status`; processes that do not end by themselves are to be restarted.",
    )
