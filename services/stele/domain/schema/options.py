"""Options that a table can have."""

from stele.domain.base import Rejection
from stele.domain.schema.facts import TableOptions
from stele.domain.tablets.limits import (
    AUTO_REPAIR,
    AUTO_REPAIR_THRESHOLD_S,
    MOST_THRESHOLD_S,
    OFF,
    ON,
)
from stele.domain.tablets.ranges import MAX_TABLETS


def bad_options(options: TableOptions) -> Rejection | None:
    least, most = options.min_tablet_count, options.max_tablet_count
    numbers = (
        least,
        most,
        options.min_per_shard_tablet_count,
        options.expected_data_size_in_gb,
    )
    if min(numbers) < 0 or max(numbers) > MAX_TABLETS:
        return Rejection(
            "bad_table_options",
            f"Options of a table are from 0 to {MAX_TABLETS}; more tablets it cannot have.",
            "0 says nothing.",
        )
    if options.auto_repair_enabled not in ("", ON, OFF):
        return Rejection(
            "bad_table_options",
            f"auto_repair_enabled is '{options.auto_repair_enabled[:40]}'.",
            f"Say {ON} or {OFF}; or nothing, and it is as {AUTO_REPAIR.name} says.",
        )
    if not 0 <= options.auto_repair_threshold <= MOST_THRESHOLD_S:
        return Rejection(
            "bad_table_options",
            f"auto_repair_threshold is from 0 to {MOST_THRESHOLD_S} seconds.",
            f"0 says nothing: then it is as {AUTO_REPAIR_THRESHOLD_S.name} says.",
        )
    if most and least > most:
        return Rejection(
            "bad_table_options",
            f"min_tablet_count {least} is above max_tablet_count {most}.",
            "Raise the one, or lower the other.",
        )
    return None
