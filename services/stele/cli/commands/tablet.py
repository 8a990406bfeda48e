"""``stele tablet list|show|sizes|repairs|move|add-replica|delete-replica``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from cyclopts import App, Parameter

from stele.cli.commands.ring import key_text, replicas, shown_rows
from stele.cli.commands.table_snapshot import require_table_name, restore_tablet
from stele.cli.commands.tablet_show import require_tablets, show
from stele.cli.commands.topology import submit_and_follow
from stele.cli.errors import CliError, UsageError
from stele.cli.options import FROM_ZERO, Change, Force, Json, Read, Where
from stele.cli.output import clock, console, print_value_as_json, size
from stele.cli.output import table as table_of
from stele.cli.reading import Reading
from stele.domain.ring.shards import ANY
from stele.domain.tablets.ranges import range_of, tablet_of
from stele.domain.tablets.sizes import TableSizes
from stele.domain.topology.operations.commands import MoveTablets, TabletMove
from stele.runtime.answers.tablet_sizes import SizesAnswer

SERVICE = "tablet-balancer"
app = App(name="tablet", help="Tablets: the parts of a table, each with replicas of its own.")
app.command(restore_tablet, name="restore")
app.command(show)


@app.command(name="list")
def list_tablets(
    table: str,
    *,
    key: Annotated[str | None, Parameter(name="--key")] = None,
    limit: Annotated[int, Parameter(name="--limit", validator=FROM_ZERO)] = 64,
    read: Read = Read(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """The tablets of a table: range and replicas.

    Replicas that are written but not yet read are marked with +, those read but leaving with -.

    Args:
        table: KEYSPACE.TABLE.
        key: Only the tablet that this key is in.
        limit: Most tablets that are shown; 0 shows all.
    """
    require_table_name(table)
    with where.client() as client:
        reading = read.of(client)
        rows, tablets, placement, tables = shown_rows(reading, limit, key, keyspace=table)
        require_tablets(table, placement)
    first = 0 if key is None else tablet_of(tablets, rows[0].end)
    if read.as_json:
        print_value_as_json(
            {
                "epoch": reading.epoch,
                "state_id": reading.state_id,
                "table": table,
                "tables": tables,
                "first": first,
                "tablets": rows,
            }
        )
        return
    numbers = ("tablet", "start (exclusive)", "end (inclusive)", "version")
    if key is not None:
        console().print(f"{key_text(key)} is in tablet {first}", soft_wrap=True, markup=False)
    shown = table_of(
        f"{tablets} tablets of {table} at epoch {reading.epoch}",
        *numbers,
        "replicas",
        right=numbers,
    )
    for number, row in enumerate(rows, first):
        shown.add_row(str(number), str(row.start), str(row.end), str(row.version), replicas(row))
    console().print(shown)
    others = ", ".join(name for name in tables if name != table)
    if others:
        console().print(f"they are those of {others} too", soft_wrap=True, markup=False)
    if len(rows) < tablets and key is None:
        console().print(f"{tablets - len(rows)} more tablets: --limit 0 shows all.")


@app.command
def sizes(
    table: str,
    *,
    limit: Annotated[int, Parameter(name="--limit", validator=FROM_ZERO)] = 16,
    hottest: Annotated[bool, Parameter(name="--hottest", negative="")] = False,
    json: Json = Json(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """The largest tablets of a table, how often they are read and written, and who has them, by what nodes told
    of their loads; and why the table has so many. Reads and writes are those that one replica serves.

    Args:
        table: KEYSPACE.TABLE.
        limit: Most tablets that are shown.
        hottest: Those that are read and written most come first.
    """
    require_table_name(table)
    with where.client() as client:
        order = "rate" if hottest else "size"
        found = client.get(
            SERVICE, "/v1/balance/sizes", SizesAnswer, table=table, limit=limit, order=order
        )
    if json.as_json:
        print_value_as_json(found)
        return
    known, out = found.sizes, console()
    numbers = ("tablet", "bytes", "reads/s", "writes/s")
    title = f"{known.tablets} tablets of {table} at epoch {found.epoch}"
    shown = table_of(title, *numbers, "replicas", right=numbers)
    for each in known.largest:
        rates = ("?" if n is None else f"{n:,}" for n in (each.reads_per_s, each.writes_per_s))
        shown.add_row(str(each.tablet), size(each.size_bytes), *rates, " ".join(each.replicas))
    out.print(shown)
    for line in _in_all(known):
        out.print(line, soft_wrap=True, markup=False)


def _in_all(known: TableSizes) -> Iterator[str]:
    yield (
        f"of {known.known} the size is known: {size(known.size_bytes)} in all;"
        f" {size(known.target_bytes)} each are the target"
    )
    target = f"; {known.target_rate:,} each at most" if known.target_rate else ""
    yield f"of {known.counted} the rate is known: {known.rate:,} operations a second in all{target}"
    if known.why:
        will = (
            "has" if known.wanted in (0, known.tablets) else f"is to have {known.wanted} instead of"
        )
        yield f"it {will} {known.tablets} tablets: {known.why}"


@app.command
def repairs(
    table: str,
    *,
    limit: Annotated[int, Parameter(name="--limit", validator=FROM_ZERO)] = 16,
    read: Read = Read(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> None:
    """When each tablet of a table was repaired last, the oldest first.

    Args:
        table: KEYSPACE.TABLE.
        limit: Most tablets that are shown; 0 shows all.
    """
    require_table_name(table)
    with where.client() as client:
        reading = read.of(client)
        times = reading.repairs(table)
    oldest = sorted(range(len(times)), key=lambda tablet: (times[tablet], tablet))
    first = oldest[: limit or len(times)]
    if read.as_json:
        print_value_as_json(
            {
                "epoch": reading.epoch,
                "state_id": reading.state_id,
                "table": table,
                "tablets": len(times),
                "repairs": [{"tablet": each, "repaired_ms": times[each]} for each in first],
            }
        )
        return
    shown = table_of("", "tablet", "repaired", right=("tablet",))
    for tablet in first:
        shown.add_row(str(tablet), clock(times[tablet]) or "never")
    title = f"{len(times)} tablets of {table} at epoch {reading.epoch}"
    console().print(title, soft_wrap=True)
    console().print(shown)
    if len(first) < len(times):
        console().print(f"{len(times) - len(first)} more tablets: --limit 0 shows all.")


@app.command
def move(
    table: str,
    tablet: int,
    *,
    from_node: Annotated[str, Parameter(name="--from")],
    to_node: Annotated[str, Parameter(name="--to")],
    force: Force = False,
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Move a replica of a tablet to another node, or another shard of its node, while it is read and written.

    The coordinator carries it out; the command follows the request until it is done.

    Args:
        table: KEYSPACE.TABLE.
        tablet: Its number.
        from_node: The node that has a replica; its shard may be said too, as the lists show it.
        to_node: The node that gets it, or NODE:SHARD; without a shard the one of it with the fewest tablets.
        force: Give up what only nodes have that are declared dead.
    """
    node, shard = _place(to_node)
    source, on = _place(from_node)
    asked = TabletMove(
        table=table, tablet=tablet, from_node=source, to_node=node, to_shard=shard, force=force
    )
    return _ask_for(asked, change, where, on)


@app.command
def add_replica(
    table: str,
    tablet: int,
    *,
    to_node: Annotated[str, Parameter(name="--to")],
    beyond: Annotated[bool, Parameter(negative="")] = False,
    force: Force = False,
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Give a tablet one replica more, while its keyspace's replication rises.

    The balancer does so by itself: `stele keyspace alter`. The command follows the request until it is done.

    Args:
        table: KEYSPACE.TABLE.
        tablet: Its number.
        to_node: The node that gets it, or NODE:SHARD; without a shard the one of it with the fewest tablets.
        beyond: More than the keyspace asks for, too: the balancer deletes one again, unless it is off.
        force: Give up what only nodes have that are declared dead.
    """
    node, shard = _place(to_node)
    asked = TabletMove(
        table=table,
        tablet=tablet,
        from_node="",
        to_node=node,
        to_shard=shard,
        force=force,
        beyond=beyond,
    )
    return _ask_for(asked, change, where)


@app.command
def delete_replica(
    table: str,
    tablet: int,
    *,
    from_node: Annotated[str, Parameter(name="--from")],
    force: Force = False,
    change: Change = Change(),  # noqa: B008
    where: Where = Where(),  # noqa: B008
) -> int:
    """Take one replica of a tablet away, where it has more than its keyspace asks for, or is to ask for.

    The balancer does so by itself: `stele keyspace alter`. The command follows the request until it is done.

    Args:
        table: KEYSPACE.TABLE.
        tablet: Its number.
        from_node: The node that has it; its shard may be said too, as the lists show it.
        force: Give up what only nodes have that are declared dead.
    """
    source, on = _place(from_node)
    asked = TabletMove(table=table, tablet=tablet, from_node=source, to_node="", force=force)
    return _ask_for(asked, change, where, on)


def _place(text: str) -> tuple[str, int]:
    """NODE, or NODE:SHARD. Raises UsageError."""
    node, colon, shard = text.partition(":")
    if not colon:
        return node, ANY
    if node and shard.isdecimal():
        return node, int(shard)
    raise UsageError(f"'{text}' is no place of a replica.", "Write NODE, or NODE:SHARD.")


def _ask_for(move: TabletMove, change: Change, where: Where, on: int = ANY) -> int:
    """``on`` is the shard that the replica is said to be on."""
    require_table_name(move.table)
    with where.client() as client:
        if on != ANY:
            _check_place(Reading(client), move, on)
        return submit_and_follow(client, change, MoveTablets((move,)))


def _check_place(reading: Reading, move: TabletMove, on: int) -> None:
    """Raises UsageError when the replica is on another shard. Who has none is told by the log."""
    count = shown_rows(reading, 1, keyspace=move.table).ranges
    if move.tablet >= count:
        return
    token = str(range_of(count, move.tablet).end)
    (row,) = shown_rows(reading, 1, keyspace=move.table, token=token).rows
    if move.from_node in row.reads and row.shard_of(move.from_node) != on:
        raise CliError(
            f"Tablet {move.tablet} of {move.table} is on shard {row.shard_of(move.from_node)} of"
            f" {move.from_node}, not on {on}.",
            f"--from {move.from_node}",
        )
