"""Changes of who is a member: ``stele join``, ``decommission``, ``remove``, ``exclude``, ``cancel``."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from stele.cli.client import Client
from stele.cli.errors import CliError, Exit, UsageError
from stele.cli.follow import follow
from stele.cli.options import Change, Where
from stele.cli.output import console
from stele.cli.reading import Reading
from stele.domain.commands import AnyCommand, Cancel, Exclude, Join, Leave, Remove, Replace
from stele.runtime.answers.node import NodeView
from stele.runtime.answers.position import Position

Ignore = Annotated[tuple[str, ...], Parameter(name="--ignore", negative="")]
Force = Annotated[bool, Parameter(name="--force", negative="")]


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
        num_tokens: How many tokens it takes; 16 unless the node says otherwise.
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
    url = (address if "://" in address else f"http://{address}").rstrip("/")
    with where.client() as client:
        known = _ask_node(client, url)
        if replace:
            return submit_and_follow(
                client,
                change,
                Replace(
                    node_id=node_id or known.node_id,
                    replaced_id=replace,
                    cluster=cluster or known.cluster,
                    address=known.address,
                    dc=dc or known.dc,
                    rack=rack or known.rack,
                    ignore_nodes=ignore,
                    force=force,
                    supported_features=known.supported_features,
                    release_version=known.release_version,
                    host_id=known.host_id,
                ),
            )
        command = Join(
            node_id=node_id or known.node_id,
            cluster=cluster or known.cluster,
            address=known.address,
            dc=dc or known.dc,
            rack=rack or known.rack,
            num_tokens=num_tokens or known.num_tokens,
            supported_features=known.supported_features,
            release_version=known.release_version,
            host_id=known.host_id,
        )
        return submit_and_follow(client, change, command)


def decommission(
    node_id: str,
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Have a node stream its data to those who take over, then leave for good."""
    with where.client() as client:
        return submit_and_follow(client, change, Leave(node_id))


def remove(
    node_id: str,
    *,
    ignore: Ignore = (),
    force: Force = False,
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Do without a node that is dead for good: others take its ranges over, from whoever has the data.

    It never comes back, whatever becomes of the request. A node that works leaves by `stele decommission`.

    Args:
        node_id: The dead node.
        ignore: Another node that is dead for good; may be given several times.
        force: Give up what only dead nodes have.
    """
    command = Remove(node_id=node_id, ignore_nodes=ignore, force=force)
    with where.client() as client:
        return submit_and_follow(client, change, command)


def exclude(
    node_ids: Annotated[tuple[str, ...], Parameter(negative="")],
    /,
    *,
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Declare nodes dead for good: nothing waits for them any more, and they never serve again.

    Remove or replace them later, one by one.

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

    Args:
        request: Its id, or the beginning of it.
    """
    with where.client() as client:
        target = Reading(client).find(request).request_id
        outcome = client.submit(change.envelope(Cancel(target)))
        console().print(
            f"cancelled at epoch {outcome.epoch}; request {target} is being undone",
            soft_wrap=True,
        )
        if change.wait:
            follow(client, target)
        return Exit.OK


def submit_and_follow(client: Client, change: Change, command: AnyCommand) -> int:
    """Submit a topology request, say its id before anything else, and follow it if asked to."""
    envelope = change.envelope(command)
    out = console()
    out.print(f"request [bold]{envelope.request_id}[/bold]", soft_wrap=True)
    outcome = client.submit(envelope)
    out.print(f"accepted at epoch {outcome.epoch}", soft_wrap=True)
    if not change.wait:
        out.print(f"follow it with: stele request follow {envelope.request_id}", soft_wrap=True)
        return Exit.OK
    return Exit.OK if follow(client, envelope.request_id) else Exit.FAILED


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
