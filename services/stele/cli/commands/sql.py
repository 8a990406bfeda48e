"""``stele sql``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Parameter
from rich.text import Text

from stele.cli.errors import CliError, UsageError
from stele.cli.history import ShortIds
from stele.cli.options import Format, TypedDirectory
from stele.cli.output import console, counted, print_line, table
from stele.cli.places import stack_directory, told_by_shell

OF_A_STACK = Path("services") / "placements" / "delta"


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Which tables."""

    address: Annotated[str, Parameter(name="--tables")] = ""
    """A path or s3://BUCKET/PREFIX. Else those of --dir, STELE_DELTA_DIR, STELE_DIR or .stele."""

    typed: TypedDirectory = None
    """Directory of a local stack; else STELE_DIR, else .stele."""

    def found(self) -> str:
        """Return the location of the tables."""
        told = self.address or told_by_shell(self.typed).get("STELE_DELTA_DIR", "")
        return told or str(stack_directory(self.typed) / OF_A_STACK)


EXAMPLES: Final = {
    "longest-operations": "SELECT request_kind, node_id, request_status, ran_s, waited_s FROM requests"
    " WHERE ran_s IS NOT NULL ORDER BY ran_s DESC LIMIT 10",
    "who-did-what": "SELECT epoch, decided_at, actor, command, outcome, reason FROM audit"
    " ORDER BY epoch DESC LIMIT 20",
    "refusals": "SELECT refused_as, command, count(*) AS times FROM audit WHERE outcome = 'refused'"
    " GROUP BY refused_as, command ORDER BY times DESC",
    "bytes-received": "SELECT to_node, sum(bytes_moved) AS bytes, count(*) AS streams FROM movements"
    " GROUP BY to_node ORDER BY bytes DESC",
    "ownership": "SELECT placement, node_id, replica_role, range_count, ring_share FROM ownership"
    " ORDER BY placement, node_id, replica_role",
    "schema-changes": "SELECT changed_epoch, decided_at, object_kind, object_name, change_kind, actor, reason"
    " FROM schema_history ORDER BY changed_epoch DESC LIMIT 20",
    "columns": "SELECT keyspace_name, table_name, column_name, column_type, column_kind FROM columns"
    " ORDER BY keyspace_name, table_name, column_position",
    "tables-behind": "SELECT cluster, records_behind, published_behind, tables_behind FROM progress",
}
"""Queries by name, for ``--example``."""
FEW_ROWS: Final = 5
"""Rows up to which a result that is too wide is shown with one line per column."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Short forms of -o, and the vertical form."""

    wide: Annotated[bool, Parameter(name="--wide", negative="")] = False
    """Short for -o wide: all columns, whole ids, unbroken lines."""

    csv: Annotated[bool, Parameter(name="--csv", negative="")] = False
    """Short for -o csv."""

    vertical: Annotated[bool, Parameter(name="--vertical", negative="")] = False
    """One line per column, as for a few rows that are too wide."""


def sql(
    query: str = "",
    /,
    *,
    example: Annotated[str, Parameter(name="--example")] = "",
    list_examples: Annotated[bool, Parameter(name="--examples", negative="")] = False,
    shape: Shape = Shape(),
    form: Format = Format(),
    tables: Tables = Tables(),
) -> None:
    """Query the tables of the service placements. Without a query, list tables and views.

    A terminal shows the columns that fit, and names the others.

    Args:
        query: The SQL of DataFusion; `DESCRIBE nodes` shows the columns of a table.
        example: Run the example query of this name.
        list_examples: List the example queries.
    """
    if shape.wide or shape.csv:
        form = replace(form, output="csv" if shape.csv else "wide")
    if list_examples:
        _print([{"name": n, "query": text} for n, text in EXAMPLES.items()], form, vertical=True)
        return
    if example:
        if query or example not in EXAMPLES:
            raise UsageError(
                "Give a query or the name of an example, not both."
                if query
                else f"There is no example '{example}'.",
                f"Examples: {', '.join(EXAMPLES)}.",
            )
        query = EXAMPLES[example]
    from stele.placements.queries import VIEWS, QueryError, run  # noqa: PLC0415  (it takes 0.3 s)
    from stele.placements.store import TableMissing  # noqa: PLC0415
    from stele.placements.tables import SCHEMAS  # noqa: PLC0415

    if not query:
        found = [{"name": n, "what": "table", "columns": s.names} for n, s in SCHEMAS.items()]
        found += [{"name": n, "what": "view", "columns": []} for n in VIEWS]
        if form.is_document:
            form.print_document(found)
        else:
            shown = table("", "name", "what", "columns")
            for each in found:
                shown.add_row(str(each["name"]), str(each["what"]), _text(each["columns"]))
            form.print_table(shown)
        return
    try:
        found = run(tables.found(), query).to_pylist()
    except TableMissing as error:
        hint = (
            "The service placements writes them. In a local stack that was started without it:"
            " `stele stack down`, which keeps the data, then `stele stack up` without"
            " `--without placements`. Tables elsewhere: --tables, or STELE_DELTA_DIR."
        )
        raise CliError(str(error), hint) from error
    except QueryError as error:
        said = str(error) if str(error).endswith((".", "?")) else f"{error}."
        raise UsageError(said, "`stele sql` alone lists tables and views.") from error
    except ValueError as error:
        raise UsageError(str(error)) from error
    _print(found, form, vertical=shape.vertical)


def _print(found: list[dict[str, Any]], form: Format, *, vertical: bool) -> None:
    if form.is_document:
        form.print_document(found)
        return
    if not found:
        if form.output != "csv":
            console().print("No rows.")
        return
    cells = {name: [_text(row[name]) for row in found] for name in found[0]}
    if form.shortens:
        ids = ShortIds()
        cells = {name: ids.shortened(column) for name, column in cells.items()}
    fitting = _fitting(cells, console().width) if form.shortens else [*cells]
    if form.output != "csv" and (
        vertical or (len(fitting) < len(cells) and len(found) <= FEW_ROWS)
    ):
        _print_vertical(cells, len(found))
        return
    numbers = [c for c in fitting if all(isinstance(row[c], int | float) for row in found)]
    shown = table("", *fitting, right=numbers)
    for row in zip(*(cells[name] for name in fitting), strict=True):
        shown.add_row(*map(Text, row))
    others = [name for name in cells if name not in fitting]
    more = f"{counted(len(others), 'column', 'columns')} more: {', '.join(others)}"
    form.print_table(shown)
    if others:
        form.note(f"{more}. --wide shows all.")


def _fitting(cells: dict[str, list[str]], width: int) -> list[str]:
    """Return the columns that fit side by side into a width, in their order."""
    found = list[str]()
    for name, column in cells.items():
        needed = max(map(len, (name, *column))) + 2
        if needed <= width + 2:
            found.append(name)
            width -= needed
    return found


def _print_vertical(cells: dict[str, list[str]], count: int) -> None:
    longest = max(map(len, cells))
    for number in range(count):
        if count > 1:
            console().print(Text(f"row {number + 1}", style="bold"))
        for name, column in cells.items():
            line = Text.assemble((f"  {name:<{longest}}  ", "dim"), column[number])
            print_line(line)


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, datetime):
        return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)
