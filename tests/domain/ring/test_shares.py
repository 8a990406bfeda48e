"""The most even shares, compared with numbers computed by hand."""

import numpy as np
import pytest

from stele.domain.ring.allocation import fair_shares


@pytest.mark.parametrize(
    ("tokens", "racks", "rf", "expected"),
    [
        ([16, 16, 16], [0, 0, 0], 2, [2 / 3] * 3),
        ([16, 16, 32], [0, 0, 0], 1, [1 / 4, 1 / 4, 1 / 2]),
        # Twice the tokens would be more than a replica of everything.
        ([16, 8, 16, 8], [0, 0, 0, 0], 3, [1, 1 / 2, 1, 1 / 2]),
        ([32, 8, 8], [0, 0, 0], 2, [1, 1 / 2, 1 / 2]),
        # As many racks as replicas: one replica of everything in each.
        ([16] * 4, [0, 0, 1, 2], 3, [1 / 2, 1 / 2, 1, 1]),
        # More racks: at most one replica in each.
        ([16] * 5, [0, 1, 1, 1, 2], 2, [1 / 2, 1 / 3, 1 / 3, 1 / 3, 1 / 2]),
        ([16] * 5, [0, 1, 1, 2, 2], 2, [2 / 5] * 5),
        ([64, 8, 8, 8], [0, 1, 1, 2], 2, [1, 1 / 3, 1 / 3, 1 / 3]),
        # Fewer racks: at least one replica in each.
        ([16] * 5, [0, 1, 1, 1, 1], 3, [1, 1 / 2, 1 / 2, 1 / 2, 1 / 2]),
        ([16] * 4, [0, 0, 1, 1], 3, [3 / 4] * 4),
    ],
)
def test_shares_are_as_even_as_racks_allow(
    tokens: list[int], racks: list[int], rf: int, expected: list[float]
) -> None:
    shares = fair_shares(np.array(tokens), np.array(racks, np.int32), rf)
    assert shares.tolist() == pytest.approx(expected)
