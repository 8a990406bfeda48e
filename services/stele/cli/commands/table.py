"""``stele table create|alter|drop|list|resize|repair|snapshot|snapshots|restore``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from cyclopts import App, Parameter

from stele.cli.client import Client, ask, decode
from stele.cli.commands.topology import (
    ask_and_follow,
    await_agreement,
    submit_and_follow,
    submit_and_tell,
)
from stele.cli.errors import CliError, Exit, UsageError
from stele.cli.options import (
    FROM_ZERO,
    AgreedChange,
    FollowedChange,
    Format,
    Planning,
    ReadPoint,
    Where,
    Yes,
    confirm,
    described,
)
from stele.cli.output import clock, joined, off_text, print_line, size, switch_text
from stele.cli.output import table as table_of
from stele.domain.commands import (
    AlterTable,
    CreateTable,
    DeleteTableSnapshot,
    DropTable,
    RepairTable,
    RepairTablets,
    ResizeTable,
    RestoreTable,
    RestoreTablets,
    SnapshotTable,
)
from stele.domain.model.operations import TabletRepair, TabletRestore
from stele.domain.model.requests import Among
from stele.domain.model.schema import Keyspace, Table, TableOptions
from stele.runtime.answers.tablet_balancer import SizesAnswer
from stele.words.given import span_ms
from stele.words.names import option_changes, set_options

BALANCER: Final = "tablet-balancer"

app = App(name="table", help="List, create, alter, drop, repair and snapshot tables.")


OptionName = Literal[
    "min_tablet_count",
    "max_tablet_count",
    "min_per_shard_tablet_count",
    "expected_data_size_in_gb",
    "auto_repair_enabled",
    "auto_repair_threshold",
    "cdc",
]
"""The fields of ``TableOptions``."""


@Parameter(name="*")
@dataclass(frozen=True)
class TabletOptions:
    """Number of tablets of a table, and their repair by schedule."""

    min_tablet_count: int | None = None
    """Least number of tablets, rounded up to a power of two."""
    max_tablet_count: int | None = None
    """Largest number of tablets."""
    min_per_shard_tablet_count: int | None = None
    """Least number of replicas for each shard of a datacentre, on average."""
    expected_data_size_in_gb: int | None = None
    """Size of the data for which there should be enough tablets."""
    auto_repair_enabled: Literal["on", "off"] | None = None
    """Repair tablets by schedule; default: the setting auto_repair_enabled_default."""
    auto_repair_threshold: int | None = None
    """Seconds until a tablet is repaired again; default: the setting auto_repair_threshold_in_seconds."""
    cdc: str | None = None
    """Change data capture of a table without columns: true, false, or a map such as {'enabled': true,
    'preimage': true, 'ttl': 86400}."""

    def options(self) -> TableOptions:
        return TableOptions(**{n: value for n, value in vars(self).items() if value is not None})

    def zeros(self) -> list[str]:
        """Return the options given as 0. In the log, 0 means not set."""
        return [name for name, value in vars(self).items() if value == 0]


@app.command
@described("create-table")
def create(
    name: str,
    /,
    *,
    colocate_with: str = "",
    options: TabletOptions = TabletOptions(),
    change: AgreedChange = AgreedChange(),
    where: Where = Where(),
) -> None:
    require_table_name(name)
    if colocate_with:
        require_table_name(colocate_with)
    command = CreateTable(name, options.options(), colocate_with)
    submit_and_tell(where, change, command, f"table {name} exists")


@app.command
def alter(
    name: str,
    /,
    *,
    options: TabletOptions = TabletOptions(),
    reset: Annotated[tuple[OptionName, ...], Parameter(name="--reset", negative="")] = (),
    change: AgreedChange = AgreedChange(),
    where: Where = Where(),
) -> None:
    """Change options of a table. Options that are not named keep their values.

    The balancer then splits or merges the tablets as the options say.

    Args:
        name: KEYSPACE.TABLE.
        reset: An option to unset, as in --reset min_tablet_count; may be repeated.
    """
    require_table_name(name)
    command = AlterTable(name, options.options(), tuple(sorted({*reset, *options.zeros()})))
    with where.client() as client:
        epoch = change.send(client, command).epoch
        changed = _changed_options(client, epoch)
        print_line(f"table {name} since epoch {epoch}: {changed}")
        await_agreement(client, change, epoch)


def _changed_options(client: Client, epoch: int) -> str:
    """Return the options that this epoch changed, with old and new values."""
    try:
        raw = client.get_raw("metadata-log", "/v1/diff", **{"from": epoch - 1, "to": epoch})
    except CliError:  # it is altered whether or not the state before can still be read
        return "has other options"
    rows = decode(raw, dict[str, Any]).get("tables", {}).get("changed", ())
    options = [row["fields"]["options"] for row in rows if "options" in row["fields"]]
    told = [option_changes(each["before"], each["after"]) for each in options]
    return ", ".join(told) or "its options are as before"


@app.command
@described("resize-table")
def resize(
    name: str,
    tablets: int,
    /,
    *,
    change: FollowedChange = FollowedChange(),
    where: Where = Where(),
) -> int:
    """The answer says what the balancer would do, and which option keeps the number."""
    require_table_name(name)
    with where.client() as client:
        is_json_plan = isinstance(change, Planning) and change.as_json
        undone = "" if is_json_plan else _undone_by_the_balancer(client, name, tablets)
        status = submit_and_follow(client, change, ResizeTable(name, tablets))
    if undone and status == Exit.OK:
        print_line(undone)
    return status


def _undone_by_the_balancer(client: Client, name: str, tablets: int) -> str:
    """Return what the balancer may do after a resize and how to prevent it; empty if unknown."""
    found = ask(client, BALANCER, "/v1/balance/sizes", SizesAnswer, table=name, limit=1)
    if found is None or found.sizes.wanted in (0, tablets):
        return ""
    wanted, why = found.sizes.wanted, found.sizes.why
    option = "--min-tablet-count" if wanted < tablets else "--max-tablet-count"
    return (
        f"While balancing is on, the balancer may change it back to {wanted} tablets: {why}."
        f" `stele table alter {name} {option} {tablets}` keeps {tablets}."
    )


@app.command
@described("repair-table")
def repair(
    name: str,
    /,
    *,
    tablet: Annotated[
        int | None,
        Parameter(name="--tablet", validator=FROM_ZERO, help="Only this tablet, at once."),
    ] = None,
    nodes: Annotated[tuple[str, ...], Parameter(name="--nodes", negative="")] = (),
    dcs: Annotated[tuple[str, ...], Parameter(name="--dcs", negative="")] = (),
    change: FollowedChange = FollowedChange(),
    where: Where = Where(),
) -> int:
    """The tablets that were repaired longest ago come first; `stele tablet repairs` lists the times.
    Replicas are compared first, and equal data is not streamed.
    """
    require_table_name(name)
    among = Among(_each(nodes), _each(dcs))
    one = (
        None
        if tablet is None
        else TabletRepair(table=name, tablet=tablet, nodes=among.nodes, dcs=among.dcs)
    )
    asked = RepairTable(name, *among) if one is None else RepairTablets((one,))
    return ask_and_follow(where, change, asked)


@app.command
@described("drop-table")
def drop(
    name: str,
    /,
    *,
    yes: Yes = False,
    change: FollowedChange = FollowedChange(),
    where: Where = Where(),
) -> int:
    """The command follows the request until it is done."""
    require_table_name(name)
    confirm(change, f"Table {name} and all of its data will be deleted.", name, yes=yes)
    return ask_and_follow(where, change, DropTable(name))


@app.command(name="list")
def list_tables(
    read: ReadPoint = ReadPoint(), form: Format = Format(), where: Where = Where()
) -> None:
    """List all tables with their tablets and options."""
    with where.client() as client:
        reading = read.of(client)
        tables, tablets = reading.tables_and_tablets()
        keyspaces = {k.keyspace_id: k for k in reading.keyspaces()} if tables else {}
    if form.is_document:
        form.print_document(reading.document(tables=tables, tablets=tablets))
        return
    columns = ("table", "tablets", "options", "")
    names = {each.table_id: each.name for each in tables}
    found = table_of(f"tables at epoch {reading.epoch}", *columns, right=("tablets",))
    for each in tables:
        keyspace = keyspaces[each.keyspace_id]
        found.add_row(
            f"{keyspace.name}.{each.name}",
            str(tablets.get(each.table_id, "on the ring")),
            set_options(each.options),
            _state(each, keyspace, names),
        )
    form.print_table(found)
    if reading.balancing.off_since:
        form.note(switch_text("", reading.balancing))


def _state(table: Table, keyspace: Keyspace, names: Mapping[str, str]) -> str:
    """Return the state: being dropped, co-located with another table, or not balanced.

    ``names`` are those of tables by id.
    """
    if table.dropped_version:
        return "is being dropped"
    base = names.get(table.base_table_id)
    found = [] if base is None else [f"co-located with {keyspace.name}.{base}"]
    off = off_text(table.balancing, keyspace.balancing)
    return ", ".join([*found, off] if off else found)


def _each(given: tuple[str, ...]) -> tuple[str, ...]:
    """Return the given names, separated by commas or given repeatedly."""
    return tuple(filter(None, (part.strip() for part in ",".join(given).split(","))))


DELETE = "delete"
SECOND_MS = 1000


@app.command
def snapshot(
    name: str,
    deleted: str = "",
    /,
    *,
    tag: Annotated[str, Parameter(name="--tag")] = "",
    expire: Annotated[str, Parameter(name="--expire")] = "",
    change: FollowedChange = FollowedChange(),
    where: Where = Where(),
) -> int:
    """Write the rows of a table into the nodes' backup folders. Reads and writes continue.

    The snapshot holds all writes that were acknowledged before. `stele table snapshot delete TAG` deletes one.

    Args:
        name: KEYSPACE.TABLE, or delete.
        deleted: The tag of the snapshot to delete.
        tag: Name of the snapshot; default: table and time.
        expire: Delete it after this span, such as 7d or 12h; default: never.
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
    return ask_and_follow(where, change, command)


@app.command
def snapshots(
    read: ReadPoint = ReadPoint(), form: Format = Format(), where: Where = Where()
) -> None:
    """List snapshots of tables: table, time, size, expiry, and the nodes with the files."""
    with where.client() as client:
        reading = read.of(client)
        found = reading.table_snapshots()
    if form.is_document:
        form.print_document(reading.document(snapshots=found))
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
    form.print_table(shown)


@app.command
def restore(
    name: str,
    /,
    *,
    tag: Annotated[str, Parameter(name="--tag")],
    change: FollowedChange = FollowedChange(),
    where: Where = Where(),
) -> int:
    """Restore the rows of a snapshot into its table or another one. Reads and writes continue.

    Later writes and deletes win, by their timestamps. To get exactly the rows of the snapshot, truncate the
    table first, or restore into a new one.

    Args:
        name: KEYSPACE.TABLE.
        tag: Name of the snapshot, from `stele table snapshots`.
    """
    require_table_name(name)
    return ask_and_follow(where, change, RestoreTable(name=name, snapshot=tag))


def restore_tablet(
    table: str,
    tablet: int,
    /,
    *,
    change: FollowedChange = FollowedChange(),
    where: Where = Where(),
) -> int:
    """Restore one tablet of a table that is being restored, before its turn.

    Args:
        table: KEYSPACE.TABLE.
        tablet: Number of the tablet.
    """
    require_table_name(table)
    asked = RestoreTablets((TabletRestore(table=table, tablet=tablet),))
    return ask_and_follow(where, change, asked)


def require_table_name(name: str) -> None:
    """Raise UsageError unless the name is KEYSPACE.TABLE."""
    keyspace, _, table = name.partition(".")
    if not (keyspace and table):
        raise UsageError(
            f"'{name}' names no table.",
            "Write KEYSPACE.TABLE; `stele table list` shows the tables.",
        )
