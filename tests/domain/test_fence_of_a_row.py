"""The fence of a row: requests older than its last fenced change are refused."""

import pytest
from immutables import Map
from msgspec.structs import replace

from stele.domain.fencing import newest_fenced, takes_part
from stele.domain.image import Image
from stele.domain.model.membership import MembershipImage, Node
from stele.domain.names import NodeState
from stele.domain.ring.ranges import RangeReplicas
from stele.domain.ring.transition import newest_before


@pytest.mark.parametrize(
    ("row", "before", "fence", "version", "refused"),
    [
        (5, 0, 9, 4, True),
        (5, 0, 9, 5, False),
        (5, 0, 9, 8, False),
        (10, 5, 9, 5, False),
        (10, 5, 9, 4, True),
        (10, 5, 10, 9, True),
    ],
)
def test_request_is_refused_only_if_older_than_the_last_fenced_change(
    row: int, before: int, fence: int, version: int, refused: bool
) -> None:
    assert (version < newest_fenced(row, before, fence)) is refused


def test_row_that_changes_again_keeps_its_earlier_fence() -> None:
    """The row was changed by version 27, which is fenced, and now by 28: version 26 must stay refused."""
    assert newest_fenced(27, 20, 27) == 27
    assert newest_fenced(28, 27, 27) == 27
    assert newest_fenced(28, 27, 28) == 28


def test_merged_rows_keep_the_newest_change_before_the_last() -> None:
    """If the last change itself were kept, earlier requests would be refused before it is fenced."""
    rows = [RangeReplicas(0, 9, (), (), *versions) for versions in ((28, 20), (27, 11), (28, 9))]
    assert newest_before(rows, 28) == 27
    assert newest_before(rows[:1], 28) == 20
    assert newest_before([replace(rows[0], version_before=0)], 28) == 0


@pytest.mark.parametrize("state", [*NodeState])
def test_only_members_may_coordinate(state: NodeState) -> None:
    node = Node(node_id="n1", address="http://n1", dc="dc1", rack="r1", num_tokens=1, state=state)
    image = Image(membership=MembershipImage(Map({"n1": node})))
    member = state not in (NodeState.NONE, NodeState.LEFT, NodeState.REMOVING)
    assert takes_part(image, "n1") is member
    excluded = MembershipImage(Map({"n1": replace(node, excluded_since=1)}))
    assert not takes_part(Image(membership=excluded), "n1")
    assert not takes_part(image, "n2")
