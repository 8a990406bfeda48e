"""``stele table snapshot|snapshots|restore`` and ``stele tablet restore``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from cyclopts import Parameter

from stele.cli.commands.topology import submit_and_follow, submit_and_tell
from stele.cli.errors import UsageError
from stele.cli.options import Change, Read, Where
from stele.cli.output import clock, console, joined, print_value_as_json, size
from stele.cli.output import table as table_of
from stele.cli.spans import span_ms
from stele.domain.commands import (
    DeleteTableSnapshot,
    RestoreTable,
    RestoreTablets,
    SnapshotTable,
)
from stele.domain.topology.operations.commands import TabletRestore

DELETE = "delete"
SECOND_MS = 1000


def snapshot(
    name: str,
    deleted: str = "",
    /,
    *,
    tag: Annotated[str, Parameter(name="--tag")] = "",
    expire: Annotated[str, Parameter(name="--expire")] = "",
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Write a table's rows into the nodes' backup folders, while it is read and written.

    What was acknowledged before this is in it. `stele table snapshot delete TAG` deletes a snapshot.

    Args:
        name: KEYSPACE.TABLE, or delete.
        deleted: The tag of the snapshot to delete.
        tag: What to call it; else by the table and the time.
        expire: It is deleted after so long, such as 7d or 12h; else when you delete it.
    """
    if name == DELETE and deleted:
        if tag or expire:
            raise UsageError(
                "--tag and --expire are of a snapshot that is taken, not of one that is deleted.",
                f"stele table snapshot delete {deleted}",
            )
        submit_and_tell(where, change, DeleteTableSnapshot(deleted), f"snapshot {deleted} is gone")
        return 0
    if deleted:
        raise UsageError(
            f"'{name} {deleted}' is not understood.",
            "Write KEYSPACE.TABLE, or delete TAG.",
        )
    require_table_name(name)
    at = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    command = SnapshotTable(
        name=name,
        snapshot=tag or f"{name.partition('.')[2]}-{at}",
        expire_s=span_ms(expire, "--expire") // SECOND_MS if expire else 0,
    )
    with where.client() as client:
        return submit_and_follow(client, change, command)


def snapshots(read: Read = Read(), where: Where = Where()) -> None:  # noqa: B008
    """Snapshots of tables: of what, when, how large, until when, and who has the files."""
    with where.client() as client:
        reading = read.of(client)
        found = reading.table_snapshots()
    if read.as_json:
        print_value_as_json(
            {"epoch": reading.epoch, "state_id": reading.state_id, "snapshots": found}
        )
        return
    columns = ("tag", "table", "tablets", "taken", "expires", "size", "nodes")
    shown = table_of(f"snapshots at epoch {reading.epoch}", *columns, right=("tablets", "size"))
    for each in found:
        shown.add_row(
            each.name,
            each.table,
            str(each.tablets),
            clock(each.taken_ms),
            clock(each.expires_ms) or "never",
            size(each.size_bytes),
            joined(part.node_id for part in each.parts),
        )
    console().print(shown)


def restore(
    name: str,
    *,
    tag: Annotated[str, Parameter(name="--tag")],
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Give a table the rows of a snapshot, of this table or of another, while it is read and written.

    By timestamps: what was written or deleted since the snapshot stays so. To have what the snapshot has and
    nothing else, truncate the table first, or restore into a new one.

    Args:
        name: KEYSPACE.TABLE.
        tag: The snapshot; `stele table snapshots` shows them.
    """
    require_table_name(name)
    with where.client() as client:
        return submit_and_follow(client, change, RestoreTable(name=name, snapshot=tag))


def restore_tablet(
    table: str,
    tablet: int,
    *,
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Restore one tablet of a table that is being restored at once, before the balancer asks for it.

    Args:
        table: KEYSPACE.TABLE.
        tablet: Its number.
    """
    require_table_name(table)
    asked = RestoreTablets((TabletRestore(table=table, tablet=tablet),))
    with where.client() as client:
        return submit_and_follow(client, change, asked)


def require_table_name(name: str) -> None:
    """Raises UsageError for what names no table of a keyspace."""
    keyspace, _, table = name.partition(".")
    if not (keyspace and table):
        raise UsageError(
            f"'{name}' names no table.",
            "Write KEYSPACE.TABLE; `stele table list` shows the tables.",
        )
