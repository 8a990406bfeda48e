"""Sizes, durations and options as people read and write them."""

from __future__ import annotations

import pytest

from stele.cli.commands.keyspace import parse_replication
from stele.cli.errors import UsageError
from stele.cli.output import duration, percent, size
from stele.domain.schema.facts import Replication


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
    for wrong in ("dc1:3", "dc1=", "r1,dc1=2", "=3"):
        with pytest.raises(UsageError, match="DC=COPIES"):
            parse_replication((wrong,))
    with pytest.raises(UsageError, match="twice"):
        parse_replication(("dc1=3", "dc1=r1,r2"))


@pytest.mark.parametrize(
    ("given", "copies", "racks"),
    [
        ("dc1=r1,r2,dc2=2", {"dc2": 2}, {"dc1": ("r1", "r2")}),
        ("dc1=r1", {}, {"dc1": ("r1",)}),
        ("dc1=1,2", {}, {"dc1": ("1", "2")}),
        ("dc1=1,", {}, {"dc1": ("1",)}),
        ("dc1=0, dc2=r1, r2", {"dc1": 0}, {"dc2": ("r1", "r2")}),
    ],
)
def test_racks_are_named_in_the_place_of_a_number(
    given: str, copies: dict[str, int], racks: dict[str, tuple[str, ...]]
) -> None:
    assert parse_replication((given,)) == (copies, racks)


def test_replication_is_shown_as_it_is_given() -> None:
    for wanted in (
        Replication({"dc1": 2, "dc2": 3}, {"dc1": ("r1", "r2")}),
        Replication({"dc1": 1}, {"dc1": ("1",)}),
        Replication({"a": 2, "b": 1}, {"a": ("1", "2"), "b": ("7",)}),
    ):
        copies, racks = parse_replication((wanted.words(),))
        assert racks == wanted.racks
        assert copies == {dc: rf for dc, rf in wanted.copies.items() if dc not in racks}
