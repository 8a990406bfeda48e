"""SQL over the Delta tables, by the engine of delta-rs (DataFusion), and views for common queries.

A query changes no data. Tables are registered at their present version, and views exist only during
the call.
"""

import re
from collections.abc import Collection
from typing import Final

import pyarrow as pa
from deltalake import QueryBuilder

from stele.placements.store import TableMissing, TableStore
from stele.placements.tables import CURRENT, SCHEMAS

VIEWS: Final = {
    "audit": """
        SELECT cluster, epoch, decided_at, actor, command, 'accepted' AS outcome, '' AS refused_as, reason,
            origin, request_id, fact_number
        FROM events WHERE row_kind = 'epoch' AND command <> 'noop'
        UNION ALL
        SELECT cluster, epoch, decided_at, {actor}, {command}, 'refused', {code}, {reason}, {origin},
            {request_id}, fact_number
        FROM events WHERE row_kind = 'fact' AND fact_kind = 'CommandRefused'
    """,
    "placements_live": """
        SELECT {columns} FROM (
            SELECT {columns}, is_gone, row_number() OVER (
                PARTITION BY cluster, placement, range_start ORDER BY changed_epoch DESC
            ) AS nth
            FROM (
                SELECT {columns}, from_epoch AS changed_epoch, false AS is_gone FROM placements
                UNION ALL
                SELECT {columns}, changed_epoch, is_gone FROM placements_changes
            ) AS known
        ) AS newest WHERE nth = 1 AND NOT is_gone
    """,
    "placements_history": """
        SELECT {columns}, CAST(NULL AS BIGINT) AS to_epoch FROM placements
        UNION ALL
        SELECT {columns}, to_epoch FROM placements_past
    """,
    "lag": """
        SELECT cluster, max(epoch) AS newest_epoch, max(decided_at) AS newest_decided_at,
            max(log_offset) AS newest_offset
        FROM events WHERE row_kind IN ('epoch', 'head') GROUP BY cluster
    """,
    "departures": """
        SELECT nodes.cluster, nodes.node_id, nodes.address, nodes.dc, nodes.rack,
            CASE
                WHEN ended.request_kind = 'replace' AND ended.node_id <> nodes.node_id THEN 'replaced'
                WHEN ended.request_kind = 'remove' THEN 'removed'
                WHEN ended.request_kind IN ('join', 'replace') AND ended.request_status <> 'done'
                    THEN 'rejected'
                ELSE 'left'
            END AS departure,
            CASE WHEN ended.request_kind = 'replace' AND ended.node_id <> nodes.node_id
                THEN ended.node_id ELSE '' END AS replaced_by,
            nodes.request_id, ended.actor, ended.reason, ended.finished_at
        FROM nodes LEFT JOIN requests AS ended
            ON ended.cluster = nodes.cluster AND ended.request_id = nodes.request_id
        WHERE nodes.node_state = 'left'
    """,
    "stopped": """
        SELECT cluster, epoch, log_offset, fact_kind AS error_kind, reason AS error_text
        FROM events WHERE row_kind IN ('stopped', 'summaries_stopped', 'topic_stopped')
    """,
}

DATAFUSION: Final = "datafusion"
TEXT_OF_JSON: Final = {
    DATAFUSION: """(regexp_match(fact_json, '"{field}":"((?:[^"\\\\]|\\\\.)*)"'))[1]""",
    "duckdb": "json_extract_string(fact_json, '$.{field}')",
    "spark": "get_json_object(fact_json, '$.{field}')",
}
"""How each engine extracts a text from the JSON of a fact. DataFusion has no function for it."""
_IN_JSON: Final = ("actor", "command", "code", "reason", "origin", "request_id")

READS: Final = ("SELECT", "WITH", "VALUES", "DESCRIBE")
_QUERY: Final = re.compile(
    rf"\s*(EXPLAIN\s+((ANALYZE|VERBOSE|FORMAT\s+\w+)\s+)*)?({'|'.join(READS)})\b", re.IGNORECASE
)
"""``EXPLAIN ANALYZE`` runs its statement, so that must be a query too: ``COPY`` writes files."""


class QueryError(Exception):
    """The engine refused the SQL. The text is the reason."""


def run(address: str, sql: str) -> pa.Table:
    """Return the rows of a query. Raises QueryError, TableMissing."""
    if not _QUERY.match(sql):
        first = " ".join(sql.split()[:2])
        raise QueryError(
            f"'{first}': write a query that begins with {', '.join(READS)}, or EXPLAIN before it."
        )
    store = TableStore(address)
    builder, known = QueryBuilder(), set[str]()
    for name in SCHEMAS:
        try:
            table = store.table(name)
        except TableMissing:
            continue
        builder.register(name, table)
        known.add(name)
    if not known:
        raise TableMissing(f"There are no tables at {store}.")
    for name in VIEWS:
        if not missing(name, known):
            _execute(builder, f"CREATE VIEW {name} AS {view(name)}")
    return _execute(builder, sql)


def view(name: str, engine: str = DATAFUSION) -> str:
    """Return the query of a view in an engine of ``TEXT_OF_JSON``. Only ``audit`` differs."""
    texts = {field: TEXT_OF_JSON[engine].format(field=field) for field in _IN_JSON}
    return VIEWS[name].format(columns=", ".join(SCHEMAS[CURRENT].names), **texts)


def missing(name: str, known: Collection[str]) -> bool:
    """Return whether a view needs a table that does not exist."""
    read = {*re.findall(r"(?:FROM|JOIN) (\w+)", VIEWS[name])}
    return any(table in read for table in SCHEMAS if table not in known)


def _execute(builder: QueryBuilder, sql: str) -> pa.Table:
    try:
        return pa.table(builder.execute(sql).read_all())
    except Exception as error:  # the engine has one type for errors of plan, file and store
        raise QueryError(" ".join(str(error).split())) from error
