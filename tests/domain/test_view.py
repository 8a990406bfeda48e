"""Views of images: plain JSON in one order, and readable differences."""

import json
from itertools import pairwise

import msgspec

from stele.domain.column import column_of
from stele.domain.commands import FoundCluster, Join, SetSetting
from stele.domain.image import EMPTY
from stele.domain.ring.ranges import MIN_TOKEN
from stele.domain.snapshot import facts_to_image, image_to_facts, state_hash
from stele.domain.view import diff, epoch_view, view
from stele.runtime.answers.history import DiffAnswer, EpochAnswer, StateAnswer
from tests.domain.history import History, join, three_nodes


def grown() -> History:
    history = History()
    assert history.apply(FoundCluster(cluster_id="blue/1")) is None
    assert history.apply(SetSetting("colour", "red")) is None
    join = Join(
        node_id="n1", cluster="blue", address="http://n1", dc="dc1", rack="r1", host_id="h1"
    )
    assert history.apply(join) is None
    return history


def test_view_is_plain_json_with_epoch_and_hash() -> None:
    image = grown().image
    shown = json.loads(json.dumps(view(image)))
    assert shown["epoch"] == 3
    assert shown["state_id"] == image.state_id.hex()
    assert shown["hash"] == state_hash(image)
    assert [node["node_id"] for node in shown["nodes"]] == ["n1"]
    assert shown["settings"] == {"colour": "red"}


def test_views_of_equal_images_are_identical_bytes() -> None:
    image = grown().image
    again = facts_to_image(reversed(image_to_facts(image)), image.epoch, image.state_id)
    assert json.dumps(view(again)) == json.dumps(view(image))


def test_views_match_the_published_types() -> None:
    history = grown()
    msgspec.convert(view(EMPTY), StateAnswer)
    msgspec.convert(view(history.image), StateAnswer)
    msgspec.convert(diff(EMPTY, history.image), DiffAnswer)
    for epoch in history.epochs:
        msgspec.convert(epoch_view(epoch), EpochAnswer)


def test_epoch_view_shows_rows_of_placements_as_numbers() -> None:
    history, _ = three_nodes()
    (shown,) = (
        fact
        for epoch in history.epochs
        for fact in json.loads(msgspec.json.encode(epoch_view(epoch)))["facts"]
        if fact["type"] == "PlacementChanged" and fact["removed"]["starts"] == [MIN_TOKEN]
    )
    rows = history.image.ring.placements[shown["placement"]].rows
    assert shown["added"]["starts"] == [row.start for row in rows]
    assert shown["added"]["writes"] == [3] * len(rows)
    for epoch in history.epochs:
        raw = msgspec.json.encode(epoch_view(epoch))
        assert msgspec.json.decode(raw, type=EpochAnswer, dec_hook=column_of).facts == epoch.facts


def test_diff_of_an_image_with_itself_is_empty() -> None:
    image = grown().image
    found = diff(image, image)
    assert found["nodes"] == {"added": [], "removed": [], "changed": []}
    assert found["placements"] == {}
    assert found["topology"] == {}


def test_diff_lists_added_removed_and_changed_settings() -> None:
    history = grown()
    before = history.image
    history.apply(SetSetting("colour", "blue"))
    history.apply(SetSetting("shape", "round"))
    found = diff(before, history.image)
    assert found["settings"] == {
        "added": {"shape": "round"},
        "removed": {},
        "changed": {"colour": {"before": "red", "after": "blue"}},
    }
    back = diff(history.image, before)
    assert back["settings"]["removed"] == {"shape": "round"}


def test_diff_shows_changed_fields_of_a_row() -> None:
    history = grown()
    node = history.image.membership.nodes["n1"]
    moved = msgspec.structs.replace(node, address="http://n1:2")
    membership = msgspec.structs.replace(
        history.image.membership, nodes=history.image.membership.nodes.set("n1", moved)
    )
    after = msgspec.structs.replace(history.image, membership=membership)
    assert diff(history.image, after)["nodes"]["changed"] == [
        {
            "node_id": "n1",
            "fields": {"address": {"before": "http://n1", "after": "http://n1:2"}},
        }
    ]


def test_diff_shows_placement_rows_per_placement() -> None:
    history, _ = three_nodes()
    after = history.image
    before = history.images[after.epoch - 1]
    found = diff(before, after)["placements"]
    assert list(found) == ["dc1:3"]
    assert found["dc1:3"]["removed"] == []
    assert found["dc1:3"]["added"] == list(view(after)["placements"]["dc1:3"])
    assert diff(after, before)["placements"]["dc1:3"]["added"] == []


def test_every_state_of_an_operation_can_be_shown() -> None:
    history, driver = three_nodes()
    history.apply(join(4, "r1"))
    driver.run()
    for before, after in pairwise(history.images):
        msgspec.convert(json.loads(json.dumps(view(after))), StateAnswer)
        msgspec.convert(json.loads(json.dumps(diff(before, after))), DiffAnswer)
