"""Options of tables."""

from typing import Final

import msgspec

from stele.domain.base import Rejection
from stele.domain.schema.model import AlterTable, Keyspace, TableOptions
from stele.domain.schema.parameters import cdc_option
from stele.domain.tablets.limits import (
    AUTO_REPAIR,
    AUTO_REPAIR_THRESHOLD_S,
    MOST_THRESHOLD_S,
    OFF,
    ON,
)
from stele.domain.tablets.ranges import MAX_TABLETS

NOT_SET: Final = msgspec.structs.asdict(TableOptions())
"""Each option with its value while it is not set."""


def changed_options(before: TableOptions, command: AlterTable) -> TableOptions | Rejection:
    """Return the options of a table after ``command``, or the rejection of an ambiguous command."""
    given = msgspec.structs.asdict(command.options)
    named = {name: value for name, value in given.items() if value != NOT_SET[name]}
    every = ", ".join(NOT_SET)
    unknown = [name for name in command.reset if name not in NOT_SET]
    if unknown:
        return Rejection(
            "bad_table_options",
            f"Cannot reset '{unknown[0][:40]}': tables have no such option.",
            f"Options are {every}.",
        )
    twice = [name for name in command.reset if name in named]
    if twice:
        return Rejection(
            "bad_table_options",
            f"Cannot both set and reset {twice[0]}.",
            "Name it once.",
        )
    if not named and not command.reset:
        return Rejection(
            "no_option_named",
            f"Cannot alter table {command.name}: the command names no option.",
            f"Name an option to set or to reset: {every}.",
        )
    # Options that are not named keep their values, so two commands on different options do not
    # conflict.
    return msgspec.structs.replace(before, **{n: NOT_SET[n] for n in command.reset}, **named)


def check_take_effect(keyspace: Keyspace, name: str, options: TableOptions) -> Rejection | None:
    """Refuse options for a table without tablets. All except ``cdc`` concern tablets."""
    if keyspace.tablets or msgspec.structs.replace(options, cdc="") == TableOptions():
        return None
    return Rejection(
        "no_tablets",
        f"Options of table {name} would have no effect: keyspace {keyspace.name} has no tablets.",
        "Leave the options out, or create the table in a keyspace with tablets.",
    )


def with_canonical_cdc(options: TableOptions) -> TableOptions:
    """Return the options, which ``bad_options`` accepts, with ``cdc`` as the log keeps it."""
    cdc = cdc_option(options.cdc)
    assert isinstance(cdc, str)
    return msgspec.structs.replace(options, cdc=cdc)


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
    cdc = cdc_option(options.cdc)
    if isinstance(cdc, Rejection):
        return cdc
    if most and least > most:
        return Rejection(
            "bad_table_options",
            f"min_tablet_count {least} is above max_tablet_count {most}.",
            "Raise the one, or lower the other.",
        )
    return None
