"""Statements of the page on access rights hold for the product: a new lock needs a change here."""

from __future__ import annotations

import re

from stele.domain.commands import ClaimCoordinator
from stele.runtime.settings import KafkaSettings, variable_of
from tests.docs.pages import REPOSITORY
from tests.domain.history import three_nodes

PAGE = (REPOSITORY / "docs" / "guides" / "secure.md").read_text()


def test_whoever_claims_the_coordinators_office_has_it_until_the_coordinator_claims_it_again() -> (
    None
):
    assert "can claim the coordinator's term" in PAGE
    history, _ = three_nodes()
    term = history.image.topology.coordinator.term
    for holder, next_term in (("a stranger", term + 1), ("c1", term + 2)):
        assert history.apply(ClaimCoordinator(holder, next_term)) is None
        assert history.image.topology.coordinator.holder == holder


def test_all_variables_of_how_brokers_are_reached_are_named() -> None:
    named = re.findall(r"^\| `(STELE_KAFKA_\w+)` \|", PAGE, re.MULTILINE)
    assert named == [variable_of(each) for each in KafkaSettings.__struct_fields__]
