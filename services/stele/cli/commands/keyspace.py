"""``stele keyspace create|alter|drop|list``."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from stele.cli.commands.topology import submit_and_follow, submit_and_tell
from stele.cli.errors import UsageError
from stele.cli.options import Change, Force, Read, Where
from stele.cli.output import console, print_value_as_json, table
from stele.cli.switch_words import off_text, switch_text
from stele.domain.commands import CreateKeyspace, DropKeyspace, KeyspaceRfChange
from stele.domain.schema.facts import Keyspace, Replication, placement_name
from stele.words.given import GivenError, replication_of

app = App(name="keyspace", help="Keyspaces and how they are replicated.")


@app.command
def create(
    name: str,
    *,
    replication: Annotated[tuple[str, ...], Parameter(name="--replication", negative="")],
    tablets: Annotated[bool, Parameter(negative="")] = False,
    initial_tablets: int = 0,
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Create a keyspace: --replication dc1=3, once for each datacentre. With tablets the racks can be named
    that have one copy of each tablet each: --replication dc1=r1,r2,r3.

    Args:
        name: The keyspace's name.
        replication: DC=COPIES or DC=RACK,RACK; may be repeated or separated by commas.
        tablets: Its data is in tables, split into tablets that move one by one.
        initial_tablets: How many tablets a new table has at least, rounded up to a power of two; 0: as many as
            its copies ask for.
    """
    copies, racks = parse_replication(replication)
    command = CreateKeyspace(
        name, {**copies}, tablets=tablets, initial_tablets=initial_tablets, racks={**racks}
    )
    submit_and_tell(where, change, command, f"keyspace {name} exists")


@app.command
def alter(
    name: str,
    *,
    replication: Annotated[tuple[str, ...], Parameter(name="--replication", negative="")],
    force: Force = False,
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Change how a keyspace is replicated: --replication dc1=3, or the racks: dc1=r1,r2,r3.

    The coordinator carries it out while the keyspace is read and written; the command follows the request until
    it is done. A datacentre that is not named, or named with 0, keeps no copies. Racks are named for keyspaces
    with tablets: each of them has one copy of each tablet then, and no other rack has any.

    Args:
        name: The keyspace's name.
        replication: DC=COPIES or DC=RACK,RACK; may be repeated or separated by commas.
        force: Give up what only nodes have that are declared dead.
    """
    copies, racks = parse_replication(replication)
    command = KeyspaceRfChange(name, {**copies}, force, {**racks})
    with where.client() as client:
        return submit_and_follow(client, change, command)


@app.command
def drop(
    name: str,
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Drop a keyspace: nobody serves it any more, then its name is free again.

    The coordinator carries it out; the command follows the request until it is done.
    """
    with where.client() as client:
        return submit_and_follow(client, change, DropKeyspace(name))


@app.command(name="list")
def list_keyspaces(read: Read = Read(), where: Where = Where()) -> None:  # noqa: B008
    """All keyspaces with their replication."""
    with where.client() as client:
        reading = read.of(client)
        keyspaces = reading.keyspaces()
        ranges = {
            name: reading.ranges(name)
            for name in sorted({k.placement for k in keyspaces if not k.tablets})
        }
    if read.as_json:
        print_value_as_json(
            {
                "epoch": reading.epoch,
                "state_id": reading.state_id,
                "keyspaces": keyspaces,
                "ranges": {k.name: ranges[k.placement] for k in keyspaces if not k.tablets},
                "balancing": reading.balancing,
            }
        )
        return
    columns = ("keyspace", "replication", "ranges", "")
    found = table(f"keyspaces at epoch {reading.epoch}", *columns, right=("ranges",))
    for keyspace in keyspaces:
        shown = "in tablets" if keyspace.tablets else str(ranges[keyspace.placement])
        state = _state(keyspace) or off_text(keyspace.balancing)
        found.add_row(keyspace.name, keyspace.wanted.words(), shown, state)
    console().print(found)
    if reading.balancing.off_since:
        console().print(switch_text("", reading.balancing), soft_wrap=True, markup=False)


def _state(keyspace: Keyspace) -> str:
    if keyspace.dropped_version:
        return "is being dropped"
    shared = "" if keyspace.tablets else placement_name(keyspace.replication)
    own = keyspace.placement != shared
    return "its replication changes" if own else ""


def parse_replication(texts: tuple[str, ...]) -> Replication:
    """``given.replication_of``. Raises UsageError."""
    try:
        return replication_of(texts)
    except GivenError as error:
        raise UsageError(error.message, error.hint) from error
