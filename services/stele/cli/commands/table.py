"""``stele table create|alter|resize|drop|list``."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from cyclopts import App, Parameter

from stele.cli.commands.topology import submit_and_follow, submit_and_tell
from stele.cli.errors import UsageError
from stele.cli.options import Change, Read, Where
from stele.cli.output import console, print_value_as_json
from stele.cli.output import table as table_of
from stele.cli.switch_words import off_text, switch_text
from stele.domain.commands import AlterTable, CreateTable, DropTable, ResizeTable
from stele.domain.schema.facts import TableOptions

app = App(name="table", help="Tables: what has data in a keyspace.")


@Parameter(name="*")
@dataclass(frozen=True)
class Options:
    """How many tablets a table is to have; 0 says nothing."""

    min_tablet_count: int = 0
    """At least so many, rounded up to a power of two."""
    max_tablet_count: int = 0
    """At most so many."""
    min_per_shard_tablet_count: int = 0
    """So many replicas for each shard of a datacentre, on average."""
    expected_data_size_in_gb: int = 0
    """Enough for data of this size."""

    def options(self) -> TableOptions:
        return TableOptions(
            min_tablet_count=self.min_tablet_count,
            max_tablet_count=self.max_tablet_count,
            min_per_shard_tablet_count=self.min_per_shard_tablet_count,
            expected_data_size_in_gb=self.expected_data_size_in_gb,
        )


@app.command
def create(
    name: str,
    *,
    options: Options = Options(),
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """Create a table. In a keyspace with tablets it is split into these from the start.

    Args:
        name: KEYSPACE.TABLE.
    """
    require_table_name(name)
    command = CreateTable(name, options.options())
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
        off = off_text(each.balancing, keyspace.balancing)
        found.add_row(
            f"{keyspace.name}.{each.name}",
            str(tablets.get(each.table_id, "on the ring")),
            _said(each.options),
            "is being dropped" if each.dropped_version else off,
        )
    console().print(found)
    if reading.balancing.off_since:
        console().print(switch_text("", reading.balancing), soft_wrap=True, markup=False)


def require_table_name(name: str) -> None:
    """Raises UsageError for what names no table of a keyspace."""
    keyspace, _, table = name.partition(".")
    if not (keyspace and table):
        raise UsageError(
            f"'{name}' names no table.",
            "Write KEYSPACE.TABLE; `stele table list` shows the tables.",
        )


def _said(options: TableOptions) -> str:
    found = msgspec.structs.asdict(options)
    return ", ".join(f"{name} {value}" for name, value in found.items() if value)
