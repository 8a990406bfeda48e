"""SQL over the tables: docs/guides/analyse.md is run, and `stele sql` answers or explains its error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from stele.cli.commands.sql import EXAMPLES
from stele.cli.main import run as stele
from stele.placements.queries import VIEWS, QueryError, run, view
from stele.placements.summaries import SUMMARIES, rows_of
from stele.placements.tables import SCHEMAS
from tests.coordinator.world import nodes_that_left
from tests.docs.pages import Block, blocks
from tests.spark.filled import fill
from tests.spark.histories import images, random_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = "docs/guides/analyse.md"
NOTEBOOK = Path(__file__).resolve().parents[2] / "docs/notebooks/cluster.ipynb"
EMPTY = "nothing ever stopped"
"""The comment of a query whose result is empty in these tables."""


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("delta")
    fill(folder, "one", 1)
    fill(folder, "two", 2)
    return folder


def of_page(language: str) -> list[Block]:
    return [block for block in blocks(PAGE) if block.language == language]


def text_of(block: Block) -> str:
    return "\n".join(block.lines)


@pytest.mark.parametrize("block", of_page("sql"), ids=lambda block: block.place)
def test_each_query_of_the_page_returns_rows(block: Block, tables: Path) -> None:
    found = run(str(tables), text_of(block))
    assert (found.num_rows == 0) == (EMPTY in text_of(block))


@pytest.mark.parametrize("block", of_page("python"), ids=lambda block: block.place)
def test_python_blocks_of_the_page_run(
    block: Block, tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tables.parent / "work").mkdir(exist_ok=True)
    monkeypatch.chdir(tables.parent / "work")
    exec(compile(text_of(block), block.place, "exec"), {"address": str(tables)})


def test_each_cell_of_the_notebook_runs_and_returns_rows(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STELE_DELTA_DIR", str(tables))
    names: dict[str, Any] = {}
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            assert not cell["outputs"], f"cell {number} was saved with what it printed"
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    for name in ("lag", "audit", "shares", "evenness", "live"):
        assert len(names[name]) > 0, name
    assert {*names["live"].cluster} == {"one", "two"}


@pytest.mark.spark
@pytest.mark.parametrize("name", sorted(VIEWS))
def test_each_view_has_the_same_rows_in_spark_and_duckdb(
    name: str, spark: SparkSession, tables: Path
) -> None:
    duck = duckdb.connect()
    for table in SCHEMAS:
        frame = spark.read.format("delta").load(str(tables / table))
        frame.createOrReplaceTempView(table)
        duck.register(table, DeltaTable(str(tables / table)).to_pyarrow_dataset())
    rows = run(str(tables), f"SELECT * FROM {name}")
    in_spark, in_duckdb = spark.sql(view(name, "spark")), duck.sql(view(name, "duckdb"))
    assert in_spark.columns == in_duckdb.columns == rows.column_names
    texts = [
        field.name
        for field in rows.schema
        if str(field.type).startswith(("string", "large_string"))
    ]
    assert texts
    told = sorted((tuple(row.values()) for row in rows.select(texts).to_pylist()), key=str)
    assert sorted((tuple(row) for row in in_spark.select(*texts).collect()), key=str) == told
    assert sorted(in_duckdb.select(*texts).fetchall(), key=str) == told


def test_departures_equal_those_of_the_command_line() -> None:
    image = nodes_that_left().image
    duck = duckdb.connect()
    for name in ("nodes", "requests"):
        rows = rows_of(SUMMARIES[name], "c", image)
        duck.register(name, pa.Table.from_pylist(rows, schema=SUMMARIES[name].schema))
    found = duck.sql(view("departures", "duckdb")).arrow().read_all().to_pylist()
    assert {row["node_id"]: (row["departure"], row["replaced_by"]) for row in found} == {
        "d1": ("left", ""),
        "e1": ("removed", ""),
        "f1": ("replaced", "g1"),
        "h1": ("rejected", ""),
    }
    duck.register("requests", pa.Table.from_pylist([], schema=SUMMARIES["requests"].schema))
    unknown = duck.sql(view("departures", "duckdb")).arrow().read_all().to_pylist()
    assert {row["departure"] for row in unknown} == {"left"}, "no request is known"


def test_each_table_and_view_has_a_query_on_the_page() -> None:
    words = {word for block in of_page("sql") for word in text_of(block).split()}
    assert {*SCHEMAS, *VIEWS} <= words


def test_history_has_the_ranges_of_every_epoch(tables: Path) -> None:
    for image in images(random_log(1))[10::13]:
        epoch = image.epoch
        found = run(
            str(tables),
            "SELECT placement, count(*) AS ranges FROM placements_history WHERE cluster = 'one' "
            f"AND from_epoch <= {epoch} AND (to_epoch IS NULL OR to_epoch > {epoch}) GROUP BY 1",
        )
        expected = {name: len(placement.rows) for name, placement in image.ring.placements.items()}
        assert {row["placement"]: row["ranges"] for row in found.to_pylist()} == expected


def test_audit_has_refused_commands_with_their_codes(tables: Path) -> None:
    found = run(str(tables), "SELECT * FROM audit WHERE outcome = 'refused'").to_pylist()
    assert {"keyspace_exists", "unknown_keyspace"} <= {row["refused_as"] for row in found}
    assert all(row["command"] and row["request_id"] for row in found)


def test_audit_shows_later_cancelled_requests_as_accepted(tables: Path) -> None:
    """The table of requests has the outcome."""
    sql = """
        SELECT a.outcome, r.request_status FROM audit a
        JOIN requests r ON r.cluster = a.cluster AND r.request_id = a.request_id
    """
    found = {(row["outcome"], row["request_status"]) for row in run(str(tables), sql).to_pylist()}
    assert {outcome for outcome, _ in found} == {"accepted"}
    assert len(found) > 1
    outcomes = run(str(tables), "SELECT DISTINCT outcome FROM audit").to_pylist()
    assert {row["outcome"] for row in outcomes} == {"accepted", "refused"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_queries_of_the_command_line_run(name: str, tables: Path) -> None:
    assert run(str(tables), EXAMPLES[name]).num_columns


@pytest.mark.parametrize("sql", ["INSERT INTO nodes VALUES (1)", "DROP TABLE nodes", "", "selec"])
def test_statement_that_is_not_a_query_is_refused(sql: str, tables: Path) -> None:
    with pytest.raises(QueryError, match="begins with SELECT"):
        run(str(tables), sql)


def test_explain_is_refused_for_statements_that_are_not_queries(
    tables: Path, tmp_path: Path
) -> None:
    told = run(str(tables), "explain analyze verbose SELECT count(*) FROM nodes")
    assert told.num_rows
    file = tmp_path / "out.csv"
    for before in ("EXPLAIN ANALYZE", "explain analyze verbose", "EXPLAIN FORMAT INDENT"):
        with pytest.raises(QueryError, match="begins with SELECT"):
            run(str(tables), f"{before} COPY (SELECT 1 AS one) TO '{file}'")
    assert not file.exists()


def test_sql_command_prints_rows_json_and_errors(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = "SELECT node_id, node_state FROM nodes WHERE cluster = 'one' ORDER BY node_id LIMIT 1"
    assert stele(["sql", query, "--tables", str(tables)]) == 0
    assert capsys.readouterr().out.split() == ["node_id", "node_state", "n1", "normal"]
    assert stele(["sql", query, "--tables", str(tables), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"node_id": "n1", "node_state": "normal"}]
    assert stele(["sql", "--json"]) == 0
    assert {row["name"] for row in json.loads(capsys.readouterr().out)} == {*SCHEMAS, *VIEWS}
    assert stele(["sql", "SELECT nothing FROM nodes", "--tables", str(tables)]) == 2
    assert "nothing" in capsys.readouterr().err
    assert stele(["sql", "SELECT * FROM nope", "--tables", str(tables)]) == 2
    assert "nope' not found. `stele sql` alone lists tables" in capsys.readouterr().err
    assert stele(["sql", query, "--tables", str(tmp_path)]) == 1
    assert "`stele stack up` without `--without placements`" in capsys.readouterr().err
