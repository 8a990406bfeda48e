"""Requests that are about the whole cluster: ``stele cleanup``, ``truncate``, ``quiesce``, ``noop``."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from stele.cli.commands.topology import submit_and_follow
from stele.cli.options import Change, Where
from stele.domain.commands import Cleanup, NoopRequest, Quiesce, Truncate


def cleanup(
    *,
    node: Annotated[str, Parameter(name="--node")] = "",
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Have every normal node delete the data that is not its own, whether or not it is marked for it.

    It is done when each of them has reported. `stele cancel` ends the wait for a node that is down.

    Args:
        node: Only this one.
    """
    with where.client() as client:
        return submit_and_follow(client, change, Cleanup(node_id=node))


def truncate(
    name: str,
    /,
    *,
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Delete all data of a keyspace or of one table, on every replica; the keyspace and its tables stay.

    It begins while all members are up, and is done when each of them has deleted the data, or is excluded.
    There is no way back once it has begun.

    Args:
        name: KEYSPACE, or KEYSPACE.TABLE for that table alone.
    """
    with where.client() as client:
        return submit_and_follow(client, change, Truncate(name))


def quiesce(
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Wait until all that was asked for before has come to rest: done, fenced, and cleaned up."""
    with where.client() as client:
        return submit_and_follow(client, change, Quiesce())


def noop(
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Wait until the coordinator has met this request, and the version in use before it is fenced."""
    with where.client() as client:
        return submit_and_follow(client, change, NoopRequest())
