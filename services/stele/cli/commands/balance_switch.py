"""``stele balance off|on``: whether the balancer touches the tablets of a table, a keyspace or the cluster."""

from __future__ import annotations

from typing import Annotated

import msgspec
from cyclopts import Parameter

from stele.cli.client import Client
from stele.cli.errors import UsageError
from stele.cli.options import Change, Where
from stele.cli.output import clock, console, counted, duration
from stele.cli.reading import Reading
from stele.cli.spans import span_ms
from stele.cli.switch_words import switch_text
from stele.domain.commands import SwitchBalancingOff, SwitchBalancingOn
from stele.domain.names import BALANCER
from stele.domain.requests.facts import Request
from stele.domain.requests.ids import is_id, time_ms
from stele.domain.schema.facts import Balancing, Off
from stele.runtime.request_ids import new_request_id


def off(
    name: str = "",
    /,
    *,
    lasting: Annotated[str, Parameter(name="--for")] = "",
    abort_after: Annotated[str, Parameter(name="--abort-after")] = "",
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Have the balancer leave tablets where they are, and as many as they are.

    Nothing of it begins any more once this returns: what it had asked for has ended, what it asks for is
    refused. Nodes that leave still give their tablets away, and you may move, split and merge some yourself.

    Args:
        name: KEYSPACE or KEYSPACE.TABLE; without it the whole cluster.
        lasting: After this time it is on again, such as 90s, 30m or 2h; else it is off until you switch it on.
        abort_after: What has begun and is not done by then is cancelled where it still can be; else it goes on.
    """
    request_id = _request_id(change)
    asked_ms = time_ms(request_id)  # so that it is the same command when it is sent again
    command = SwitchBalancingOff(
        name=name,
        until_ms=asked_ms + span_ms(lasting, "--for") if lasting else 0,
        abort_at_ms=asked_ms + span_ms(abort_after, "--abort-after") if abort_after else 0,
    )
    envelope = msgspec.structs.replace(change.envelope(command), request_id=request_id)
    out = console()
    with where.client() as client:
        out.print(f"request {request_id}", soft_wrap=True)
        epoch = change.submit(client, envelope).epoch
        until = f", until {clock(command.until_ms)}" if command.until_ms else ""
        out.print(f"{_words(name)} off since epoch {epoch}{until}", soft_wrap=True)
        going = _under_way(client, name)
    if not going:
        return
    end = f"nothing cancels {'it' if len(going) == 1 else 'them'}"
    if command.abort_at_ms:
        patience_s = (command.abort_at_ms - asked_ms) / 1000
        end = f"what is not done after {duration(patience_s)} is cancelled"
    one = "move or resize of the balancer's goes on"
    many = "moves and resizes of the balancer's go on"
    out.print(
        f"{counted(len(going), one, many)}; {end}",
        soft_wrap=True,
    )


def on(
    name: str = "",
    /,
    *,
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Have the balancer move, split and merge tablets again.

    What was switched off by another name stays off: a table of a keyspace that is on may be off by itself.

    Args:
        name: KEYSPACE or KEYSPACE.TABLE; without it the whole cluster.
    """
    envelope = change.envelope(SwitchBalancingOn(name))
    out = console()
    with where.client() as client:
        out.print(f"request {envelope.request_id}", soft_wrap=True)
        epoch = change.submit(client, envelope).epoch
        out.print(f"{_words(name)} on since epoch {epoch}", soft_wrap=True)
        for line in _still_off(client, name):
            out.print(f"still: {line}", soft_wrap=True, markup=False)


def _request_id(change: Change) -> str:
    """Raises UsageError."""
    if change.request_id and not is_id(change.request_id):
        raise UsageError(f"'{change.request_id}' is no request id.", "`stele id` makes one.")
    return change.request_id or new_request_id()


def _words(name: str) -> str:
    return Off(name, Balancing()).words().removesuffix(" off")


def _under_way(client: Client, name: str) -> list[Request]:
    """What the balancer had begun there."""
    reading = Reading(client)
    own = [r for r in reading.requests(unfinished="true") if r.actor == BALANCER and r.table_id]
    names, of = reading.names(own), reading.map_owner(name) if own else name
    return [r for r in own if _is_in(names.get(r.table_id, ""), of)]


def _still_off(client: Client, name: str) -> list[str]:
    """Around and inside of what was switched on."""
    reading = Reading(client)
    keyspaces = {keyspace.keyspace_id: keyspace for keyspace in reading.keyspaces()}
    switches = {"": reading.balancing}
    switches |= {keyspace.name: keyspace.balancing for keyspace in keyspaces.values()}
    for table in reading.tables():
        switches[f"{keyspaces[table.keyspace_id].name}.{table.name}"] = table.balancing
    return [
        switch_text(other, balancing)
        for other, balancing in sorted(switches.items())
        if balancing.off_since and (_is_in(other, name) or _is_in(name, other))
    ]


def _is_in(name: str, scope: str) -> bool:
    return not scope or name == scope or name.startswith(f"{scope}.")
