"""Known bugs of placements as columns: what a change may remove, whose numbers rows have, what they come to."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from stele.domain.column import Ints
from stele.domain.ring import changes, columns, packed
from stele.domain.ring.columns import Keys, Rows
from stele.domain.ring.image import RingImage
from stele.domain.ring.numbers import NodeNumbers, Numbers, lengths
from stele.domain.ring.placement import Placement, check_removed
from stele.domain.ring.replicas import LISTED, replica_columns
from stele.domain.ring.spans import Ranges, Span, spans_of
from stele.sim.patching import Patch


def ranges_that_are_no_rows_are_removed(patch: Patch) -> None:
    """What a change removes is not looked for among the rows that are there."""

    def unseen(placement: Placement, removed: Ranges) -> list[Span]:
        return spans_of(removed)

    patch.function(check_removed, unseen)


def rows_keep_the_numbers_of_who_made_them(patch: Patch) -> None:
    """A new placement names nodes by other numbers than the facts gave them."""

    def untranslated(self: RingImage, placement: Placement) -> tuple[Rows, NodeNumbers]:
        return placement.table.all(), self.nodes.with_nodes(placement.nodes.names)

    patch.attribute(RingImage, "_numbered", untranslated)


def reads_are_listed_as_the_fact_has_them(patch: Patch) -> None:
    """Equal rows have two forms, and two hashes."""

    def listed(
        versions: tuple[Keys, Keys], counts: Keys, lists: Sequence[Numbers], places: Any
    ) -> tuple[Ints, ...]:
        writes, reads, others = lists
        counts = np.where(lengths(reads) > 0, LISTED, counts)
        return replica_columns(*versions, writes, reads, counts, others, *places)

    patch.attribute(packed, "_as_kept", listed)


def rest_of_a_row_has_the_first_rows_replicas(patch: Patch) -> None:
    """Where a piece of a change ends within a row, what stays of it until the next piece is another's."""
    plain = changes._rest  # noqa: SLF001 - bugs are planted in private places too

    def first(placement: Placement, token: int, start: int) -> Rows:
        return plain(placement, placement.table.firsts[0], start)

    patch.attribute(changes, "_rest", first)


def number_of_the_first_row_stands_for_all(patch: Patch) -> None:
    """Rows of a chunk have the versions of its first one."""

    def of_first(column: Ints) -> int | None:
        if column.ndim > 1:
            return None if column.shape[1] else 0
        return column.item(0) if len(column) else None

    patch.attribute(columns, "_same_of_all", of_first)


COLUMN_TEST_MUTANTS: Final = (
    ranges_that_are_no_rows_are_removed,
    rows_keep_the_numbers_of_who_made_them,
    reads_are_listed_as_the_fact_has_them,
    rest_of_a_row_has_the_first_rows_replicas,
    number_of_the_first_row_stands_for_all,
)
