"""Rows as Spark sees them: the state of the operator, what it gives out, and the Delta tables."""

from typing import Final

CHANGES_OUT: Final = """
    kind string, cluster string, epoch long, state_id string, request_id string, command string,
    actor string, reason string, origin string, at_ms long, offset long,
    placement string, start long, end long, reads array<string>, writes array<string>,
    from_epoch long, to_epoch long, gone boolean
"""
"""What the fold gives out, three kinds of rows in one shape:

- ``epoch``: a winner; ``epoch`` ... ``offset`` are set.
- ``history``: a row that came or went; ``epoch`` is that of its last change.
- ``current``: how a key stands at the end of the batch; ``gone`` when there is no such row any more.
"""

PLACE_STATE: Final = "epoch long, state_id binary, next_offset long"
NAME_KEY: Final = "placement string"
ROWS_STATE: Final = "rows binary"

TABLES: Final = {
    "epochs": """
        cluster STRING NOT NULL, epoch BIGINT NOT NULL, state_id STRING NOT NULL,
        request_id STRING, command STRING, actor STRING, reason STRING, origin STRING,
        at TIMESTAMP, `offset` BIGINT NOT NULL
    """,
    "placements_history": """
        cluster STRING NOT NULL, placement STRING NOT NULL, `start` BIGINT NOT NULL,
        `end` BIGINT NOT NULL, reads ARRAY<STRING>, writes ARRAY<STRING>,
        from_epoch BIGINT NOT NULL, to_epoch BIGINT
    """,
    "placements": """
        cluster STRING NOT NULL, placement STRING NOT NULL, `start` BIGINT NOT NULL,
        `end` BIGINT NOT NULL, reads ARRAY<STRING>, writes ARRAY<STRING>, epoch BIGINT NOT NULL
    """,
}
"""Columns of the Delta tables; all are partitioned by cluster."""
