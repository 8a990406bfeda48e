"""Changes of members: ``stele join``, ``decommission``, ``move``, ``rebuild``, ``remove`` and the like."""

from __future__ import annotations

from typing import Annotated

import msgspec
from cyclopts import Parameter

from stele.cli.client import Client
from stele.cli.errors import CliError, Exit, UsageError
from stele.cli.follow import follow, follow_on
from stele.cli.options import Change, Force, Planning, Where
from stele.cli.output import console
from stele.cli.places import address_of
from stele.cli.reading import Reading
from stele.cli.restored import restored
from stele.domain.commands import (
    AnyCommand,
    Cancel,
    Exclude,
    Leave,
    MoveNode,
    Rebuild,
    Remove,
)
from stele.domain.names import RequestStatus
from stele.runtime.answers.node import NodeView
from stele.runtime.answers.position import Position
from stele.words.comers import join_of, replace_of
from stele.words.given import GivenError, tokens_of

Ignore = Annotated[tuple[str, ...], Parameter(name="--ignore", negative="")]


def join(
    address: str | None = None,
    *,
    node_id: Annotated[str, Parameter(name="--node-id")] = "",
    dc: str = "",
    rack: str = "",
    num_tokens: Annotated[int | None, Parameter(name="--num-tokens")] = None,
    cluster: str = "",
    replace: Annotated[str, Parameter(name="--replace")] = "",
    ignore: Ignore = (),
    force: Force = False,
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Ask for a node to become a member: it is asked who it is, then the request is queued.

    Args:
        address: The node's http://host:port.
        node_id: Its name, if not the one that it says; likewise the others.
        dc: Its datacentre.
        rack: Its rack.
        num_tokens: How many tokens it takes, none with 0; 16 unless the node says otherwise.
        cluster: The cluster that it means to join.
        replace: A node that is dead for good, whose place, tokens and data it takes.
        ignore: Another node that is dead for good; may be given several times.
        force: Give up what only dead nodes have.
    """
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


def replace(
    dead: str,
    address: str,
    *,
    ignore: Ignore = (),
    force: Force = False,
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Have a new node take the place, the tokens and the data of one that is dead for good.

    Args:
        dead: The dead node.
        address: The new node's http://host:port.
        ignore: Another node that is dead for good; may be given several times.
        force: Give up what only dead nodes have.
    """
    return join(address, replace=dead, ignore=ignore, force=force, change=change, where=where)


def decommission(
    node_id: str,
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Have a node stream its data to those who take over, then leave for good."""
    with where.client() as client:
        return submit_and_follow(client, change, Leave(node_id))


def move(
    node_id: str,
    *,
    tokens: Annotated[str, Parameter(name="--tokens")] = "",
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Give a node other tokens while it serves: data moves to and from it, nothing else changes.

    Args:
        tokens: The tokens that it is to have, as 1,-2,3 (`--tokens=-5,7`); without them they are chosen anew.
    """
    command = MoveNode(node_id=node_id, tokens=_tokens(tokens))
    with where.client() as client:
        return submit_and_follow(client, change, command)


def rebuild(
    node_id: str,
    *,
    source_dc: Annotated[str, Parameter(name="--source-dc")] = "",
    force: Force = False,
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Have a node stream everything that it replicates again, from the other replicas.

    Args:
        source_dc: Stream from nodes of this datacentre only.
        force: Make do with the replicas that there are, though some of the data may be with others.
    """
    command = Rebuild(node_id=node_id, source_dc=source_dc, force=force)
    with where.client() as client:
        return submit_and_follow(client, change, command)


def remove(
    node_ids: Annotated[tuple[str, ...], Parameter(negative="")],
    /,
    *,
    ignore: Ignore = (),
    force: Force = False,
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Do without nodes that are dead for good: others take their ranges over, from whoever has the data.

    They never come back, whatever becomes of the request. A node that works leaves by `stele decommission`.

    Args:
        node_ids: The dead nodes. Several go as one operation, in which none takes over from another.
        ignore: Another node that is dead for good; may be given several times.
        force: Give up what only dead nodes have.
    """
    if change.request_id and len(node_ids) > 1:
        raise UsageError(
            "--request-id is for one node: each removal has an id of its own.",
            "stele remove NODE --request-id ID",
        )
    commands = [Remove(node_id=n, ignore_nodes=ignore, force=force) for n in node_ids]
    with where.client() as client:
        return submit_and_follow(client, change, *commands)


def exclude(
    node_ids: Annotated[tuple[str, ...], Parameter(negative="")],
    /,
    *,
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Declare nodes dead for good: nothing waits for them any more, and they never serve again.

    Remove or replace them later.

    Args:
        node_ids: The dead nodes.
    """
    with where.client() as client:
        return submit_and_follow(client, change, Exclude(node_ids))


def cancel(
    request: str,
    /,
    *,
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Undo a request that is pending, or running before its point of no return.

    It is followed to its end, and the placements are compared with those of before it began.

    Args:
        request: Its id, or the beginning of it.
    """
    with where.client() as client:
        asked = Reading(client).find(request)
        target = asked.request_id
        outcome = change.submit(client, change.envelope(Cancel(target)))
        console().print(
            f"cancelled at epoch {outcome.epoch}; request {target} is being undone",
            soft_wrap=True,
        )
        if not change.wait:
            return Exit.OK
        ended = follow_on(client, asked, outcome.epoch)
        if ended.status is not RequestStatus.CANCELLED:
            return Exit.OK
        proof = restored(client, ended)
        console().print(proof.text(), soft_wrap=True)
        return Exit.FAILED if proof.differing else Exit.OK


def submit_and_tell(where: Where, change: Change, command: AnyCommand, text: str) -> None:
    """Submit what is done at once, say its id before anything else, and since when ``text`` is true."""
    envelope = change.envelope(command)
    with where.client() as client:
        console().print(f"request {envelope.request_id}", soft_wrap=True)
        outcome = change.submit(client, envelope)
    console().print(f"{text} since epoch {outcome.epoch}", soft_wrap=True)


def submit_and_follow(client: Client, change: Change, *commands: AnyCommand) -> int:
    """Submit topology requests, say the id of each before anything else, and follow them if asked to.

    A change that is only planned is shown instead.
    """
    if isinstance(change, Planning):
        from stele.cli.planning import show_plan  # noqa: PLC0415  (it needs all that plans are made of)

        return show_plan(client, change, *commands)
    out = console()
    request_ids = list[str]()
    for command in commands:
        envelope = change.envelope(command)
        out.print(f"request [bold]{envelope.request_id}[/bold]", soft_wrap=True)
        outcome = change.submit(client, envelope)
        request_ids.append(outcome.request_id)
        out.print(f"accepted at epoch {outcome.epoch}", soft_wrap=True)
    if not change.wait:
        for request_id in request_ids:
            out.print(f"follow it with: stele request follow {request_id}", soft_wrap=True)
        return Exit.OK
    done = [follow(client, request_id) for request_id in request_ids]
    return Exit.OK if all(done) else Exit.FAILED


def _tokens(text: str) -> tuple[int, ...]:
    """Raises UsageError."""
    try:
        return tokens_of(text)
    except GivenError as error:
        raise UsageError(error.message, error.hint) from error


def _ask_node(client: Client, url: str) -> NodeView:
    """Who the node at an address is. Raises CliError, which names what is there instead."""
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
