"""Joins and replacements are checked in the order of ScyllaDB's "Join procedure" (topology-over-raft.md)."""

from collections.abc import Mapping, Sequence

import msgspec
import pytest

from stele.domain.commands import (
    AnnounceNode,
    AnyCommand,
    Cancel,
    Exclude,
    ExcludeDead,
    Join,
    Replace,
)
from stele.domain.model.features import FeaturesEnabled
from stele.domain.names import NodeState, RequestStatus
from tests.domain.epochs import code_of
from tests.domain.history import History, join, three_nodes

change = msgspec.structs.replace

NEWCOMER = (
    ("wrong_cluster", {"cluster": "demo"}),
    ("wrong_partitioner", {"partitioner": "Murmur3Partitioner"}),
    ("bad_name", {"node_id": "n1"}),
    ("bad_name", {"dc": "dc2"}),
    ("bad_name", {"rack": "r2"}),
    ("bad_address", {"address": "http://n2"}),
    ("host_id_missing", {"host_id": "host-n1"}),
    ("already_known", {"node_id": "left", "host_id": "new"}),
    ("node_left", {"node_id": "n9", "host_id": "host-left"}),
    ("host_id_used", {"host_id": "host-n2"}),
    ("host_id_used", {"host_id": "host-n9"}),
)
"""Rejections, and the fix of each. All later fields stay wrong meanwhile."""


@pytest.fixture
def history() -> History:
    """Return n1, n2, n3, and ``left``, whose join was cancelled. The cluster has enabled a feature."""
    history, _ = three_nodes()
    gone = change(join(7, "r7"), node_id="left", address="http://left", host_id="host-left")
    assert history.apply(gone, "join-left") is None
    assert history.apply(Cancel("join-left")) is None
    image = history.images[-1]
    enabled = change(image.features, enabled=FeaturesEnabled(("tablets",)).features)
    history.images[-1] = change(image, features=enabled)
    return history


def refusals(
    history: History, command: AnyCommand, mended: Sequence[tuple[str, Mapping[str, object]]]
) -> list[str]:
    """Return the codes of the rejections, with one fault fixed after each."""
    codes = list[str]()
    for code, changes in mended:
        refused = history.apply(command)
        assert refused is not None, f"{code} was expected"
        assert refused.hint
        codes.append(refused.code)
        command = change(command, **changes)
    assert history.apply(command) is None
    return codes


def test_join_is_checked_in_the_order_of_the_reference(history: History) -> None:
    wrong = Join(
        node_id="",
        cluster="other",
        address="",
        dc="",
        rack="",
        num_tokens=-1,
        partitioner="RandomPartitioner",
    )
    mended = (
        *NEWCOMER,
        ("bad_num_tokens", {"num_tokens": 4}),
        ("address_in_use", {"address": "http://n9"}),
        ("missing_features", {"supported_features": ("tablets",)}),
    )
    assert refusals(history, wrong, mended) == [code for code, _ in mended]


def test_replacement_is_checked_in_the_order_of_the_reference(history: History) -> None:
    assert history.apply(
        change(join(8, "r8"), supported_features=("tablets",)), "join-n8"
    ) is None  # fmt: skip
    wrong = Replace(
        node_id="",
        replaced_id="nobody",
        cluster="other",
        address="",
        dc="",
        rack="",
        ignore_nodes=("who",),
        partitioner="RandomPartitioner",
    )
    mended = (
        *NEWCOMER,
        ("unknown_node", {"replaced_id": "left"}),
        ("node_left", {"replaced_id": "n8"}),
        ("wrong_state", {"replaced_id": "n3"}),
        ("wrong_place", {"dc": "dc1", "rack": "r3"}),
        ("unknown_node", {"ignore_nodes": ("left",)}),
        ("node_left", {"ignore_nodes": ()}),
        ("address_in_use", {"address": "http://n9"}),
        ("missing_features", {"supported_features": ("tablets",)}),
    )
    assert refusals(history, wrong, mended) == [code for code, _ in mended]


def test_rejected_node_id_and_data_directory_are_never_reused() -> None:
    """This holds for its name and its data directory, and for a replacement as well."""
    history, _ = three_nodes()
    assert history.apply(join(4, "r1"), "join-n4") is None
    assert history.apply(Cancel("join-n4")) is None
    assert history.image.requests.requests["join-n4"].status is RequestStatus.CANCELLED
    node = history.image.node("n4")
    assert node is not None and node.state is NodeState.LEFT
    assert code_of(history.apply(change(join(4, "r1"), host_id="new"))) == "node_left"
    assert code_of(history.apply(change(join(5, "r1"), host_id="host-n4"))) == "host_id_used"
    replacing = Replace(
        node_id="n5",
        replaced_id="n1",
        cluster="demo",
        address="http://n5",
        dc="dc1",
        rack="r1",
        host_id="host-n4",
    )
    assert code_of(history.apply(replacing)) == "host_id_used"
    assert history.apply(change(join(5, "r1"), address="http://n4")) is None


def test_replacement_may_announce_a_release_under_the_replaced_address() -> None:
    history, _ = three_nodes()
    replacing = Replace(
        node_id="n5",
        replaced_id="n1",
        cluster="demo",
        address="http://n1",
        dc="dc1",
        rack="r1",
        host_id="host-n5",
    )
    assert history.apply(replacing) is None
    told = AnnounceNode(node_id="n5", address="http://n1", release_version="2", host_id="host-n5")
    assert history.apply(told) is None
    row = history.image.node("n5")
    assert row is not None and row.release_version == "2"


def test_address_of_a_dead_node_needs_a_replacement_or_its_removal() -> None:
    history, _ = three_nodes()
    assert history.apply(Exclude(("n3",)), "exclude") is None
    assert history.apply(ExcludeDead(1, "exclude")) is None
    newcomer = change(join(9, "r3"), address="http://n3")
    refused = history.apply(newcomer)
    assert refused is not None and refused.code == "address_in_use"
    assert "STELE_REPLACE_NODE=n3" in refused.hint and "stele remove n3" in refused.hint
    refused = history.apply(change(newcomer, address="http://n1"))
    assert refused is not None and "STELE_REPLACE_NODE" not in refused.hint
