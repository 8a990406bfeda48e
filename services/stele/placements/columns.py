"""Types of the columns of tables, and short definitions of many columns."""

from typing import Final

import pyarrow as pa

TEXT: Final = pa.string()
TEXTS: Final = pa.list_(TEXT)
NUMBER: Final = pa.int64()
SMALL_NUMBERS: Final = pa.list_(pa.int32())
FLOAT: Final = pa.float64()
TRUTH: Final = pa.bool_()
TIME: Final = pa.timestamp("us", tz="UTC")


def columns(*groups: tuple[pa.DataType, str]) -> dict[str, pa.DataType]:
    """Return columns by name, in order: of each group, the type and names with blanks between."""
    return {name: kind for kind, names in groups for name in names.split()}
