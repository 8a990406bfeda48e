"""``stele sql``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from stele.cli.errors import CliError, UsageError
from stele.cli.options import Json, TypedDirectory
from stele.cli.output import console, print_value_as_json, table
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
        """Where the tables are."""
        told = self.address or told_by_shell(self.typed).get("STELE_DELTA_DIR", "")
        return told or str(stack_directory(self.typed) / OF_A_STACK)


def sql(
    query: str = "",
    /,
    *,
    json: Json = Json(),  # noqa: B008
    tables: Tables = Tables(),
) -> None:
    """Ask the tables of the service placements in SQL; without a query, what tables and views there are.

    Args:
        query: The SQL, as DataFusion knows it; `DESCRIBE nodes` shows the columns of a table.
    """
    from stele.placements.queries import VIEWS, QueryError, run  # noqa: PLC0415  (it takes 0.3 s)
    from stele.placements.store import TableMissing  # noqa: PLC0415
    from stele.placements.tables import SCHEMAS  # noqa: PLC0415

    if not query:
        found = [{"name": n, "what": "table", "columns": s.names} for n, s in SCHEMAS.items()]
        found += [{"name": n, "what": "view", "columns": []} for n in VIEWS]
        _print(found, json)
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
    _print(found, json)


def _print(found: list[dict[str, Any]], json: Json) -> None:
    if json.as_json:
        print_value_as_json(found)
    else:
        _show(found)


def _show(found: list[dict[str, Any]]) -> None:
    if not found:
        console().print("No rows.")
        return
    columns = list(found[0])
    numbers = [c for c in columns if all(isinstance(row[c], int | float) for row in found)]
    shown = table("", *columns, right=numbers)
    for row in found:
        shown.add_row(*(_text(row[column]) for column in columns))
    console().print(shown)


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)
