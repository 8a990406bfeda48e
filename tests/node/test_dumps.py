"""Data directories of the dumped cluster and of others, in a cluster that began with a dump."""

from __future__ import annotations

import msgspec

from stele.agent.gate import binding
from stele.agent.identity import Acknowledged, Identity
from stele.domain.commands import FoundCluster
from stele.domain.image import Image
from stele.domain.overrides import awaits_state
from stele.log.record_builder import next_state_id
from tests.domain.epochs import AT_MS, LOG_ID, History
from tests.domain.overrides.overriding import ask
from tests.domain.overrides.test_rules import begun, shop

LATER = next_state_id(LOG_ID, AT_MS + 1, 9)


def of_the_old_cluster(image: Image) -> Identity:
    told = Acknowledged(image.epoch + 5, "ab" * 16, image.topology.version + 3, 1)
    return Identity(
        "n1", "demo", "host-n1", 3, "r", cluster_id="demo/1", log_id=LOG_ID.hex(), acknowledged=told
    )


def begun_with_a_dump() -> Image:
    """Return a log that begins with a dump, later than the old one."""
    image = begun(shop().image).image
    return msgspec.structs.replace(
        image, founding=msgspec.structs.replace(image.founding, log_id=LATER)
    )


def test_directory_of_the_dumped_cluster_needs_an_accepted_loss() -> None:
    old, new = of_the_old_cluster(shop().image), begun_with_a_dump()
    refused = binding(old, new, "").refused
    assert f"STELE_ACCEPT_LOST_EPOCHS={LOG_ID.hex()}" in refused
    assert binding(old, new, LATER.hex()).refused, "another log's id accepts nothing"
    found = binding(old, new, LOG_ID.hex())
    assert not found.refused
    assert found.loss is not None
    assert (found.loss.log_id, found.loss.as_log_id) == (LOG_ID.hex(), LATER.hex())


def test_directory_of_another_cluster_is_refused_despite_an_accepted_loss() -> None:
    other = msgspec.structs.replace(of_the_old_cluster(shop().image), cluster_id="other/1")
    assert (
        "the data is of cluster id other/1"
        in binding(other, begun_with_a_dump(), LOG_ID.hex()).refused
    )
    fresh = shop().image
    fresh = msgspec.structs.replace(
        fresh,
        founding=msgspec.structs.replace(fresh.founding, cluster_id="new/1", log_id=LATER),
    )
    assert binding(of_the_old_cluster(fresh), fresh, LOG_ID.hex()).refused


def test_a_log_awaits_its_state_between_its_founding_and_the_dump() -> None:
    history = History()
    assert not awaits_state(history.image)
    found = FoundCluster("green/1", LOG_ID.hex(), begin_frozen=True)
    assert ask(history, found, "found") is None
    assert awaits_state(history.image)
    assert not awaits_state(begun(shop().image).image)
    assert not awaits_state(shop().image)
