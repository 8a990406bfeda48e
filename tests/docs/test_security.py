"""Statements of the security guide agree with the product."""

from __future__ import annotations

import re

from stele.domain.commands import ClaimCoordinator
from stele.runtime.settings import KafkaSettings, variable_of
from tests.docs.pages import REPOSITORY
from tests.domain.history import three_nodes

PAGE = (REPOSITORY / "docs" / "guides" / "secure.md").read_text()


def test_any_process_can_claim_the_coordinator_term_until_the_next_claim() -> None:
    """The guide says so. If the product restricts the claim, change the guide and this test."""
    assert "can claim the coordinator's term" in PAGE
    history, _ = three_nodes()
    term = history.image.topology.coordinator.term
    for holder, next_term in (("a stranger", term + 1), ("c1", term + 2)):
        assert history.apply(ClaimCoordinator(holder, next_term)) is None
        assert history.image.topology.coordinator.holder == holder


def test_guide_lists_all_kafka_variables() -> None:
    named = re.findall(r"^\| `(STELE_KAFKA_\w+)` \|", PAGE, re.MULTILINE)
    assert named == [variable_of(each) for each in KafkaSettings.__struct_fields__]
