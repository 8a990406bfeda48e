"""``stele table create|alter|resize|repair|drop|list``; snapshots of them are in ``table_snapshot``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from cyclopts import App, Parameter

from stele.cli.commands.table_snapshot import require_table_name, restore, snapshot, snapshots
from stele.cli.commands.topology import submit_and_follow, submit_and_tell
from stele.cli.options import FROM_ZERO, Change, Read, Where
from stele.cli.output import console, print_value_as_json
from stele.cli.output import table as table_of
from stele.cli.switch_words import off_text, switch_text
from stele.domain.commands import (
    AlterTable,
    CreateTable,
    DropTable,
    RepairTable,
    RepairTablets,
    ResizeTable,
)
from stele.domain.repairs.among import Among
from stele.domain.schema.facts import Keyspace, Table, TableOptions
from stele.domain.topology.operations.commands import TabletRepair

app = App(name="table", help="Tables: what has data in a keyspace.")
app.command(snapshot)
app.command(snapshots)
app.command(restore)


@Parameter(name="*")
@dataclass(frozen=True)
class Options:
    """How many tablets a table is to have, and whether they are repaired by schedule; 0 says nothing."""

    min_tablet_count: int = 0
    """At least so many, rounded up to a power of two."""
    max_tablet_count: int = 0
    """At most so many."""
    min_per_shard_tablet_count: int = 0
    """So many replicas for each shard of a datacentre, on average."""
    expected_data_size_in_gb: int = 0
    """Enough for data of this size."""
    auto_repair_enabled: Literal["", "on", "off"] = ""
    """Whether its tablets are repaired by schedule; else the setting auto_repair_enabled_default says."""
    auto_repair_threshold: int = 0
    """Seconds until a tablet is repaired again; 0: the setting auto_repair_threshold_in_seconds says."""

    def options(self) -> TableOptions:
        return TableOptions(
            min_tablet_count=self.min_tablet_count,
            max_tablet_count=self.max_tablet_count,
            min_per_shard_tablet_count=self.min_per_shard_tablet_count,
            expected_data_size_in_gb=self.expected_data_size_in_gb,
            auto_repair_enabled=self.auto_repair_enabled,
            auto_repair_threshold=self.auto_repair_threshold,
        )


@app.command
def create(
    name: str,
    *,
    colocate_with: str = "",
    options: Options = Options(),
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Create a table. In a keyspace with tablets it is split into these from the start.

    Args:
        name: KEYSPACE.TABLE.
        colocate_with: Another table of the keyspace, whose tablets it has: they move, are split, merged and
            repaired together for as long as it stands.
    """
    require_table_name(name)
    if colocate_with:
        require_table_name(colocate_with)
    command = CreateTable(name, options.options(), colocate_with)
    submit_and_tell(where, change, command, f"table {name} exists")


@app.command
def alter(
    name: str,
    *,
    options: Options = Options(),
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Give a table other options; those that are not named say nothing from then on.

    The balancer then splits or merges its tablets as the options say.

    Args:
        name: KEYSPACE.TABLE.
    """
    require_table_name(name)
    command = AlterTable(name, options.options())
    submit_and_tell(where, change, command, f"table {name} has these options")


@app.command
def resize(
    name: str,
    tablets: int,
    *,
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Split or merge the tablets of a table, while it is read and written.

    The balancer does so by itself, and later again: what is to last is an option of the table (table alter).

    Args:
        name: KEYSPACE.TABLE.
        tablets: How many it is to have: twice as many as it has, or half.
    """
    require_table_name(name)
    with where.client() as client:
        return submit_and_follow(client, change, ResizeTable(name, tablets))


@app.command
def repair(
    name: str,
    *,
    tablet: Annotated[int | None, Parameter(name="--tablet", validator=FROM_ZERO)] = None,
    nodes: Annotated[tuple[str, ...], Parameter(name="--nodes", negative="")] = (),
    dcs: Annotated[tuple[str, ...], Parameter(name="--dcs", negative="")] = (),
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Give each replica of a table's tablets what the others have, while it is read and written.

    The balancer sees to it, the tablets that were repaired longest ago first; `stele tablet repairs` says when
    that was. Replicas are compared first: what is equal is not streamed. A repair among some replicas does not
    count as one: the tablets were repaired when they were before.

    Args:
        name: KEYSPACE.TABLE.
        tablet: This one alone, at once.
        nodes: Only replicas on these nodes take part; may be repeated or separated by commas.
        dcs: Only replicas in these datacentres take part.
    """
    require_table_name(name)
    among = Among(_each(nodes), _each(dcs))
    one = (
        None
        if tablet is None
        else TabletRepair(table=name, tablet=tablet, nodes=among.nodes, dcs=among.dcs)
    )
    asked = RepairTable(name, *among) if one is None else RepairTablets((one,))
    with where.client() as client:
        return submit_and_follow(client, change, asked)


@app.command
def drop(
    name: str,
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Drop a table: nobody serves it any more, then its name is free again.

    The coordinator carries it out; the command follows the request until it is done.

    Args:
        name: KEYSPACE.TABLE.
    """
    require_table_name(name)
    with where.client() as client:
        return submit_and_follow(client, change, DropTable(name))


@app.command(name="list")
def list_tables(read: Read = Read(), where: Where = Where()) -> None:  # noqa: B008
    """All tables, with their tablets and options."""
    with where.client() as client:
        reading = read.of(client)
        tables = reading.tables()
        keyspaces = {k.keyspace_id: k for k in reading.keyspaces()} if tables else {}
        tablets = {t.table_id: reading.ranges(t.placement) for t in tables if t.placement}
    if read.as_json:
        print_value_as_json(
            {
                "epoch": reading.epoch,
                "state_id": reading.state_id,
                "tables": tables,
                "tablets": tablets,
            }
        )
        return
    columns = ("table", "tablets", "options", "")
    found = table_of(f"tables at epoch {reading.epoch}", *columns, right=("tablets",))
    for each in tables:
        keyspace = keyspaces[each.keyspace_id]
        found.add_row(
            f"{keyspace.name}.{each.name}",
            str(tablets.get(each.table_id, "on the ring")),
            _said(each.options),
            _state(each, keyspace, tables),
        )
    console().print(found)
    if reading.balancing.off_since:
        console().print(switch_text("", reading.balancing), soft_wrap=True, markup=False)


def _state(table: Table, keyspace: Keyspace, tables: list[Table]) -> str:
    """Whether it is being dropped, whose tablets it has, and whether they are balanced."""
    if table.dropped_version:
        return "is being dropped"
    bases = (t.name for t in tables if t.table_id == table.base_table_id)
    found = [f"co-located with {keyspace.name}.{name}" for name in bases]
    off = off_text(table.balancing, keyspace.balancing)
    return ", ".join([*found, off] if off else found)


def _each(given: tuple[str, ...]) -> tuple[str, ...]:
    """What is named, by commas or again."""
    return tuple(filter(None, (part.strip() for part in ",".join(given).split(","))))


def _said(options: TableOptions) -> str:
    found = msgspec.structs.asdict(options)
    return ", ".join(f"{name} {value}" for name, value in found.items() if value)
