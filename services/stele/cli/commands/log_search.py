"""``stele log search``: who did what, to whom and when, in the whole history."""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from stele.cli.client import Client
from stele.cli.commands.log_tail import line_of
from stele.cli.errors import CliError
from stele.cli.history_names import HistoryWords
from stele.cli.history_search import Progress, Slice, not_kept, slices
from stele.cli.moments import moment_ms
from stele.cli.options import FROM_ONE, Json, Where
from stele.cli.output import console, counted, duration, print_value_as_json
from stele.cli.reading import NoRequestError, Reading
from stele.words.facts import EpochRow

DEFAULT_LAST = 20


def search(
    *,
    actor: str = "",
    command: str = "",
    request: str = "",
    fact: str = "",
    about: str = "",
    text: str = "",
    since: str = "",
    until: str = "",
    refused: Annotated[bool, Parameter(name="--refused", negative="")] = False,
    last: Annotated[int, Parameter(name="--last", validator=FROM_ONE)] = DEFAULT_LAST,
    before: Annotated[int | None, Parameter(name="--before", validator=FROM_ONE)] = None,
    json: Json = Json(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Epochs of the whole history, the newest first, of which all of this holds.

    The metadata-log looks for them, some thousands of epochs at each call, so a long log takes a while; what is
    found is shown at once. Commands that were refused are in the history too.

    Args:
        actor: Who asked for it.
        command: What was asked for, such as create_keyspace; `stele log stats` shows what there is.
        request: The id of the request, or its beginning if it became part of the state: a join with all of its
            steps.
        fact: What became true: the name of a fact, such as NodeChanged, or several with commas.
        about: A node, a keyspace, a KEYSPACE.TABLE or any id that a fact names.
        text: Words that are all somewhere in it: in a reason, a refusal, an address.
        since: By the clock of who wrote it, such as 2h (ago), 2026-11-22 or '2026-11-22 08:30'.
        until: So too.
        refused: Only commands that were refused.
        last: How many are looked for.
        before: Begin before this epoch instead of at the newest.
    """
    now_ms = time.time_ns() // 1_000_000
    asked = {
        "actor": actor,
        "command": command,
        "request": request,
        "facts": fact,
        "about": about,
        "text": text,
        "refused": "true" if refused else "",
        "since_ms": moment_ms(since, "--since", now_ms) if since else "",
        "until_ms": moment_ms(until, "--until", now_ms) if until else "",
    }
    given = {name: value for name, value in asked.items() if value != ""}
    with where.client() as client:
        if request:
            given["request"] = _whole_id(client, request)
        if json.as_json:
            found = [*slices(client, given, last, before)]
            epochs = [raw for part in found for raw in part.epochs]
            print_value_as_json({**_end(found), "epochs": epochs})
        else:
            _show(client, given, last, before)


def _whole_id(client: Client, begins: str) -> str:
    """Of the only request in the state whose id begins so; others may be in the history under this very id."""
    try:
        return Reading(client).find(begins).request_id
    except NoRequestError:
        return begins


def _show(client: Client, asked: dict[str, Any], last: int, before: int | None) -> None:
    began_s, found, words, progress = time.monotonic(), list[Slice](), None, Progress()
    for part in slices(client, asked, last, before):
        progress.end()
        words = words or HistoryWords(client, part.newest)
        for raw in part.epochs:
            console().print(line_of(msgspec.convert(raw, EpochRow), words), soft_wrap=True)
        found.append(part)
        progress.tell(_looked(found))
    progress.end()
    took = duration(time.monotonic() - began_s)
    end = _end(found)
    more = f": --before {end['next_before']} goes on" if end["next_before"] else ""
    epochs = counted(sum(len(part.epochs) for part in found), "epoch", "epochs")
    console().print(f"found {epochs}; {_looked(found)} in {took}{more}", soft_wrap=True)
    if not any(part.epochs for part in found) and _is_unknown(client, asked.get("about", "")):
        console().print(
            f"No node, keyspace or table has the name {asked['about']} now;"
            " what was dropped is known by its id.",
            soft_wrap=True,
            markup=False,
            highlight=False,
        )
    older = not_kept(found[-1].begins, found[-1].stores) if found and not more else ""
    if older:
        console().print(older, soft_wrap=True)


def _is_unknown(client: Client, name: str) -> bool:
    """Whether the state knows nothing that is called so; not where there is no name, or nobody tells."""
    reading = Reading(client, level="local")
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
