"""Changes of members, and requests about a whole table or cluster.

``stele join``, ``decommission``, ``move``, ``rebuild``, ``remove``, ``truncate``, ``cleanup`` and others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import msgspec
from cyclopts import Parameter

from stele.cli.client import Client, Deadline, ask
from stele.cli.errors import CliError, Exit, UsageError
from stele.cli.follow import follow, follow_on
from stele.cli.options import (
    AgreedChange,
    Change,
    FollowedChange,
    Force,
    Planning,
    Where,
    Yes,
    confirm,
    described,
)
from stele.cli.output import counted, error_console, joined, print_line
from stele.cli.places import address_of
from stele.cli.reading import StateReading
from stele.domain.commands import (
    AnyCommand,
    Cancel,
    Cleanup,
    Exclude,
    Leave,
    MoveNode,
    NoopRequest,
    Quiesce,
    Rebuild,
    Remove,
    Truncate,
)
from stele.domain.model.requests import Request
from stele.domain.names import RequestStatus
from stele.domain.ring.ranges import RangeReplicas, upper_bound
from stele.runtime.answers.common import Position
from stele.runtime.answers.metadata_log import PlannedRow, TransitionPage
from stele.runtime.answers.node import NodeView
from stele.runtime.answers.session_guard import AGREEMENT_PATH, SchemaAgreement
from stele.words.given import join_of, replace_of, tokens_of

GUARD: Final = "session-guard"
PART_S: Final = 1
"""Seconds for which one request waits: less than the limit of a request that adds details."""

Ignore = Annotated[tuple[str, ...], Parameter(name="--ignore", negative="")]


@described("join", "replace")
def join(
    address: str | None = None,
    /,
    *,
    node_id: Annotated[str, Parameter(name="--node-id", help="Name of the node.")] = "",
    dc: Annotated[str, Parameter(help="Datacentre of the node.")] = "",
    rack: Annotated[str, Parameter(help="Rack of the node.")] = "",
    num_tokens: Annotated[
        int | None,
        Parameter(name="--num-tokens", help="Number of tokens; 0: the node holds no data."),
    ] = None,
    cluster: Annotated[str, Parameter(help="The cluster that the node joins.")] = "",
    replace: Annotated[
        str,
        Parameter(
            name="--replace",
            help="A permanently dead node, whose place, tokens and data the node takes.",
        ),
    ] = "",
    ignore: Ignore = (),
    force: Force = False,
    change: FollowedChange = FollowedChange(),
    where: Where = Where(),
) -> int:
    """The node itself answers for options that are left out."""
    if (ignore or force) and not replace:
        raise UsageError(
            "--ignore and --force are for a node that replaces another.",
            "stele join http://HOST:PORT --replace NODE",
        )
    if not address:
        raise UsageError("join needs the node's address.", "stele join http://HOST:PORT")
    url = address_of(address)
    with where.client() as client:
        known = _ask_node(client, url)
        known = msgspec.structs.replace(
            known,
            node_id=node_id or known.node_id,
            cluster=cluster or known.cluster,
            dc=dc or known.dc,
            rack=rack or known.rack,
        )
        if replace:
            return submit_and_follow(
                client, change, replace_of(known, replace, ignore, force=force)
            )
        if num_tokens is not None:
            known = msgspec.structs.replace(known, num_tokens=num_tokens)
        return submit_and_follow(client, change, join_of(known))


@described("replace")
def replace(
    dead: str,
    address: str,
    /,
    *,
    ignore: Ignore = (),
    force: Force = False,
    change: FollowedChange = FollowedChange(),
    where: Where = Where(),
) -> int:
    return join(address, replace=dead, ignore=ignore, force=force, change=change, where=where)


@described("decommission")
def decommission(
    node: str,
    /,
    change: FollowedChange = FollowedChange(),
    where: Where = Where(),
) -> int:
    return ask_and_follow(where, change, Leave(node))


@described("move")
def move(
    node: str,
    /,
    *,
    tokens: Annotated[str, Parameter(name="--tokens")] = "",
    change: FollowedChange = FollowedChange(),
    where: Where = Where(),
) -> int:
    command = MoveNode(node_id=node, tokens=tokens_of(tokens))
    return ask_and_follow(where, change, command)


@described("rebuild")
def rebuild(
    node: str,
    /,
    *,
    source_dc: Annotated[str, Parameter(name="--source-dc")] = "",
    force: Force = False,
    change: FollowedChange = FollowedChange(),
    where: Where = Where(),
) -> int:
    command = Rebuild(node_id=node, source_dc=source_dc, force=force)
    return ask_and_follow(where, change, command)


@described("remove", nodes="node")
def remove(
    nodes: Annotated[tuple[str, ...], Parameter(negative="")],
    /,
    *,
    ignore: Ignore = (),
    force: Force = False,
    change: FollowedChange = FollowedChange(),
    where: Where = Where(),
) -> int:
    """Several nodes go as one operation, in which none takes over from another. A node that is alive
    leaves by `stele decommission`.
    """
    if change.request_id and len(nodes) > 1:
        raise UsageError(
            "--request-id is for one node: each removal has an id of its own.",
            "stele remove NODE --request-id ID",
        )
    commands = [Remove(node_id=n, ignore_nodes=ignore, force=force) for n in nodes]
    return ask_and_follow(where, change, *commands)


@described("exclude")
def exclude(
    nodes: Annotated[tuple[str, ...], Parameter(negative="")],
    /,
    *,
    force: Force = False,
    change: FollowedChange = FollowedChange(),
    where: Where = Where(),
) -> int:
    return ask_and_follow(where, change, Exclude(nodes, force=force))


@described("cancel")
def cancel(
    request: str,
    /,
    *,
    change: FollowedChange = FollowedChange(),
    where: Where = Where(),
) -> int:
    """The beginning of the id suffices. The command follows the request to its end, and compares the
    placements with those of before it began.
    """
    with where.client() as client:
        asked = StateReading(client).find(request)
        target = asked.request_id
        outcome = change.submit(client, change.envelope(Cancel(target)))
        print_line(f"cancelled at epoch {outcome.epoch}; request {target} is being undone")
        if not change.wait:
            return Exit.OK
        ended = follow_on(client, asked, outcome.epoch)
        if ended.status is not RequestStatus.CANCELLED:
            return Exit.FAILED
        proof = restored(client, ended)
        print_line(proof.text())
        return Exit.FAILED if proof.differing else Exit.OK


def await_agreement(client: Client, change: AgreedChange, epoch: int) -> None:
    """Wait until the live members have applied ``epoch``, and print a warning if they have not.

    The change is in the log already, so a member that is behind is no error.
    """
    if not change.wait:
        return
    deadline, found = Deadline(change.wait_s), None
    while found is None or not (found.agreed or deadline.left_s() <= 0):
        part_s = PART_S if deadline.left_s() > 0 else 0
        found = ask(client, GUARD, AGREEMENT_PATH, SchemaAgreement, epoch=epoch, timeout_s=part_s)
        if found is None:
            why = client.silent.get(GUARD, f"no address of a {GUARD} is known.")
            print_line(
                f"The change is done. Whether all members have applied it is unknown: {why}",
                error_console(),
            )
            return
    if not found.agreed:
        behind = joined(found.behind) or f"the {GUARD}"
        print_line(
            f"The change is done, but after {change.wait_s} s {behind} had not applied it."
            " `stele schema agreement` shows the members.",
            error_console(),
        )


def submit_and_tell(where: Where, change: Change, command: AnyCommand, text: str) -> None:
    """Submit a command that takes effect at once, and print since which epoch ``text`` is true.

    The request id is printed first, so that it is known if the outcome is not. After a change of
    the schema, wait until the members have applied it.
    """
    with where.client() as client:
        outcome = change.send(client, command)
        print_line(f"{text} since epoch {outcome.epoch}")
        if isinstance(change, AgreedChange):
            await_agreement(client, change, outcome.epoch)


def ask_and_follow(where: Where, change: FollowedChange, *commands: AnyCommand) -> int:
    """Submit topology requests as ``submit_and_follow``, with a client of their own."""
    with where.client() as client:
        return submit_and_follow(client, change, *commands)


def submit_and_follow(client: Client, change: FollowedChange, *commands: AnyCommand) -> int:
    """Submit topology requests and follow them if requested.

    The id of each request is printed before anything else. A change that is only planned is shown
    instead.
    """
    if isinstance(change, Planning):
        from stele.cli.commands.plan import show_plan  # noqa: PLC0415  (it needs all that plans are made of)

        return show_plan(client, change, *commands)
    request_ids = list[str]()
    for command in commands:
        outcome = change.send(client, command)
        request_ids.append(outcome.request_id)
        print_line(f"accepted at epoch {outcome.epoch}")
    if not change.wait:
        for request_id in request_ids:
            print_line(f"follow it with: stele request follow {request_id}")
        return Exit.OK
    done = [follow(client, request_id) for request_id in request_ids]
    return Exit.OK if all(done) else Exit.FAILED


def _ask_node(client: Client, url: str) -> NodeView:
    """Return the view of the node at an address.

    Raises CliError, which names what answers instead.
    """
    try:
        return client.get_one(f"{url}/v1/node", NodeView)
    except CliError as error:
        if error.code != "not_found":
            raise
        service = client.get_one(f"{url}/v1/position", Position).service
        raise UsageError(
            f"{url} is a {service}, not a data node.",
            "Give the node's own address: it prints it when it starts, and `stele stack status` "
            "shows those of a local stack.",
        ) from error


@described("cleanup")
def cleanup(
    *,
    node: Annotated[str, Parameter(name="--node")] = "",
    change: FollowedChange = FollowedChange(),
    where: Where = Where(),
) -> int:
    """`stele cancel` ends the wait for a node that is down."""
    return ask_and_follow(where, change, Cleanup(node_id=node))


@described("truncate")
def truncate(
    name: str,
    /,
    *,
    yes: Yes = False,
    change: FollowedChange = FollowedChange(),
    where: Where = Where(),
) -> int:
    confirm(change, f"All data of {name} is deleted.", name, yes=yes)
    return ask_and_follow(where, change, Truncate(name))


def quiesce(
    change: FollowedChange = FollowedChange(),
    where: Where = Where(),
) -> int:
    """Wait until all earlier requests have ended, are fenced, and are cleaned up."""
    return ask_and_follow(where, change, Quiesce())


def noop(
    change: FollowedChange = FollowedChange(),
    where: Where = Where(),
) -> int:
    """Wait until the coordinator has read this request, and all older versions are fenced."""
    return ask_and_follow(where, change, NoopRequest())


PAGE = 10_000


class RestoreCheck(msgspec.Struct, frozen=True):
    """The result of a check: the number of compared ranges and those that differ."""

    epoch: int
    ranges: int
    differing: tuple[PlannedRow, ...]
    by_many: bool = False
    """True if the request had no own transition, but led to other requests."""

    def text(self) -> str:
        if self.by_many:
            return "each tablet has as many replicas as before, which need not be the same ones"
        if not self.ranges:
            return "no range has other replicas than before"
        if self.differing:
            of = counted(self.ranges, "range is", "ranges are")
            return f"{len(self.differing)} of {of} not as before it began"
        return (
            f"the placements are as before: {counted(self.ranges, 'range', 'ranges')} that it had to"
            f" change compared at epoch {self.epoch}"
        )


def restored(client: Client, request: Request) -> RestoreCheck:
    """Compare the plan of an undone request with the state at its end. Raises CliError."""
    if not request.started_epoch:
        return RestoreCheck(request.finished_epoch, 0, ())
    planned = _planned(client, request)
    if request.replication and not planned:
        return RestoreCheck(request.finished_epoch, 0, (), by_many=True)
    reading = StateReading(client, request.finished_epoch)
    ranges, differing = 0, list[PlannedRow]()
    for name, rows in planned.items():
        at_end = _rows_at_end(reading, request, name)
        if at_end:
            ranges += len(rows)
            differing += differing_rows(rows, at_end)
    return RestoreCheck(request.finished_epoch, ranges, tuple(differing))


def _rows_at_end(reading: StateReading, request: Request, name: str) -> list[RangeReplicas]:
    """Return the rows of a planned placement at the end of its request.

    Return none if its keyspaces or table were dropped meanwhile.
    """
    # A change of replication plans in a separate placement, which its keyspace then leaves.
    if name == request.request_id:
        own = (k for k in reading.keyspaces() if k.keyspace_id == request.keyspace_id)
        name = next(own).placement
    try:
        return [row for page in reading.placement(name, PAGE) for row in page.rows]
    except CliError as error:
        if error.code != "unknown_placement":
            raise
        return []


def differing_rows(
    planned: Iterable[PlannedRow], rows: Sequence[RangeReplicas]
) -> Iterable[PlannedRow]:
    """Yield planned ranges that are not read and written by exactly their earlier replicas."""
    starts = [row.start for row in rows]
    for wanted in planned:
        row = rows[bisect_right(starts, wanted.start) - 1]
        inside = upper_bound(wanted.end) <= upper_bound(row.end)
        same = row.reads == row.writes == wanted.old and row.shards == wanted.old_shards
        if not inside or not same or row.other_shards:
            yield wanted


def _planned(client: Client, request: Request) -> dict[str, list[PlannedRow]]:
    """Return the planned ranges of a request's transition when it opened, by placement."""
    reading = StateReading(client, request.started_epoch)
    transition = reading.request(request.request_id).transition
    found = defaultdict[str, list[PlannedRow]](list)
    if transition is not None:
        for page in reading.pages(f"/v1/transitions/{transition.transition_id}", TransitionPage):
            for row in page.rows:
                found[row.placement].append(row)
    return found
