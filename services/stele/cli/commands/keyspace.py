"""``stele keyspace create|alter|drop|list``."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from stele.cli.commands.topology import ask_and_follow, submit_and_tell
from stele.cli.options import (
    AgreedChange,
    FollowedChange,
    Force,
    Format,
    ReadPoint,
    Where,
    Yes,
    confirm,
    described,
)
from stele.cli.output import off_text, switch_text, table
from stele.domain.commands import CreateKeyspace, DropKeyspace, KeyspaceRfChange
from stele.domain.model.schema import Keyspace, placement_name
from stele.words.given import replication_of

app = App(name="keyspace", help="List, create, alter and drop keyspaces.")


@app.command
@described("create-keyspace")
def create(
    name: str,
    /,
    *,
    replication: Annotated[tuple[str, ...], Parameter(name="--replication", negative="")],
    tablets: Annotated[bool, Parameter(negative="")] = False,
    initial_tablets: int = 0,
    change: AgreedChange = AgreedChange(),
    where: Where = Where(),
) -> None:
    """Give --replication dc1=3 for each datacentre. With tablets, racks can be named instead, each with one
    copy of each tablet: --replication dc1=r1,r2,r3.
    """
    copies, racks = replication_of(replication)
    command = CreateKeyspace(
        name, {**copies}, tablets=tablets, initial_tablets=initial_tablets, racks={**racks}
    )
    submit_and_tell(where, change, command, f"keyspace {name} exists")


@app.command
@described("alter-keyspace")
def alter(
    name: str,
    /,
    *,
    replication: Annotated[tuple[str, ...], Parameter(name="--replication", negative="")],
    force: Force = False,
    change: FollowedChange = FollowedChange(),
    where: Where = Where(),
) -> int:
    """Give --replication dc1=3, or the racks: dc1=r1,r2,r3. The command follows the request until it is
    done.
    """
    copies, racks = replication_of(replication)
    command = KeyspaceRfChange(name, {**copies}, force, {**racks})
    return ask_and_follow(where, change, command)


@app.command
@described("drop-keyspace")
def drop(
    name: str,
    /,
    *,
    yes: Yes = False,
    change: FollowedChange = FollowedChange(),
    where: Where = Where(),
) -> int:
    """The command follows the request until it is done."""
    confirm(change, f"Keyspace {name} and all of its data will be deleted.", name, yes=yes)
    return ask_and_follow(where, change, DropKeyspace(name))


@app.command(name="list")
def list_keyspaces(
    read: ReadPoint = ReadPoint(), form: Format = Format(), where: Where = Where()
) -> None:
    """List all keyspaces with their replication."""
    with where.client() as client:
        reading = read.of(client)
        keyspaces = reading.keyspaces()
        ranges = {
            name: reading.ranges(name)
            for name in sorted({k.placement for k in keyspaces if not k.tablets})
        }
    if form.is_document:
        form.print_document(
            reading.document(
                keyspaces=keyspaces,
                ranges={k.name: ranges[k.placement] for k in keyspaces if not k.tablets},
                balancing=reading.balancing,
            )
        )
        return
    columns = ("keyspace", "replication", "ranges", "")
    found = table(f"keyspaces at epoch {reading.epoch}", *columns, right=("ranges",))
    for keyspace in keyspaces:
        shown = "in tablets" if keyspace.tablets else str(ranges[keyspace.placement])
        state = _state(keyspace) or off_text(keyspace.balancing)
        found.add_row(keyspace.name, keyspace.wanted.words(), shown, state)
    form.print_table(found)
    if reading.balancing.off_since:
        form.note(switch_text("", reading.balancing))


def _state(keyspace: Keyspace) -> str:
    if keyspace.dropped_version:
        return "is being dropped"
    shared = "" if keyspace.tablets else placement_name(keyspace.replication)
    own = keyspace.placement != shared
    return "its replication changes" if own else ""
