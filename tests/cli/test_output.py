"""Sizes, durations and options as people read and write them."""

from __future__ import annotations

import pytest

from stele.cli.commands.keyspace import parse_replication
from stele.cli.errors import UsageError
from stele.cli.output import duration, percent, size


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (56_700_000, "56.7 MB"), (2e12, "2.0 TB")],
)
def test_size(size_bytes: float, shown: str) -> None:
    assert size(size_bytes) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.25, "0.2 s"),
        (119.9, "119.9 s"),
        (125, "2 min 5 s"),
        (7260, "2 h 1 min"),
        (None, "never"),
        (float("inf"), "never"),
    ],
)
def test_duration(seconds: float | None, shown: str) -> None:
    assert duration(seconds) == shown


def test_percent_of_nothing_is_empty() -> None:
    assert percent(1, 0) == ""
    assert percent(1, 4) == "25.0 %"


def test_replication_is_given_by_commas_or_again() -> None:
    assert parse_replication(("dc1=3,dc2=2",)) == ({"dc1": 3, "dc2": 2}, {})
    assert parse_replication(("dc1=3", "dc2=2")) == ({"dc1": 3, "dc2": 2}, {})
    with pytest.raises(UsageError, match="DC=COPIES"):
        parse_replication(("dc1:3",))
