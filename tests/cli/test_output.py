"""Sizes, durations and options as people read and write them."""

from __future__ import annotations

import pytest

from stele.cli.output import duration, percent, size
from stele.domain.model.schema import Replication
from stele.words import GivenError
from stele.words.given import replication_of


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (56_700_000, "56.7 MB"), (2e12, "2.0 TB")],
)
def test_size_has_a_decimal_unit(size_bytes: float, shown: str) -> None:
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
def test_duration_has_two_units_at_most(seconds: float | None, shown: str) -> None:
    assert duration(seconds) == shown


def test_percent_of_zero_is_empty() -> None:
    assert percent(1, 0) == ""
    assert percent(1, 4) == "25.0 %"


def test_replication_takes_commas_or_repeated_options() -> None:
    assert replication_of(("dc1=3,dc2=2",)) == ({"dc1": 3, "dc2": 2}, {})
    assert replication_of(("dc1=3", "dc2=2")) == ({"dc1": 3, "dc2": 2}, {})
    for wrong in ("dc1:3", "dc1=", "r1,dc1=2", "=3"):
        with pytest.raises(GivenError, match="DC=COPIES"):
            replication_of((wrong,))
    with pytest.raises(GivenError, match="twice"):
        replication_of(("dc1=3", "dc1=r1,r2"))


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
def test_replication_takes_racks_instead_of_a_number(
    given: str, copies: dict[str, int], racks: dict[str, tuple[str, ...]]
) -> None:
    assert replication_of((given,)) == (copies, racks)


def test_shown_replication_can_be_parsed_again() -> None:
    for wanted in (
        Replication({"dc1": 2, "dc2": 3}, {"dc1": ("r1", "r2")}),
        Replication({"dc1": 1}, {"dc1": ("1",)}),
        Replication({"a": 2, "b": 1}, {"a": ("1", "2"), "b": ("7",)}),
    ):
        copies, racks = replication_of((wanted.words(),))
        assert racks == wanted.racks
        assert copies == {dc: rf for dc, rf in wanted.copies.items() if dc not in racks}
