"""Samples of large sets of cases: `make test` runs some of them, `make test-all` all."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from _pytest.mark.structures import ParameterSet


def sampled(cases: Iterable[object], one_in: int) -> list[ParameterSet]:
    """Mark all but each ``one_in``-th case as slow. The id of a path is its stem."""
    return [
        pytest.param(
            case,
            marks=() if index % one_in == 0 else (pytest.mark.slow,),
            id=str(getattr(case, "stem", case)),
        )
        for index, case in enumerate(cases)
    ]
