"""What the page of who may do what says of the product is so: whoever adds a lock has to mend it."""

from __future__ import annotations

import re
from pathlib import Path

import stele
from stele.domain.commands import ClaimCoordinator
from tests.docs.pages import REPOSITORY
from tests.domain.history import three_nodes

PAGE = (REPOSITORY / "docs" / "operations" / "security.md").read_text()


def test_whoever_claims_the_coordinators_office_has_it_until_the_coordinator_claims_it_again() -> (
    None
):
    assert "who claims the coordinator's office" in PAGE
    history, _ = three_nodes()
    term = history.image.topology.coordinator.term
    for holder, next_term in (("a stranger", term + 1), ("c1", term + 2)):
        assert history.apply(ClaimCoordinator(holder, next_term)) is None
        assert history.image.topology.coordinator.holder == holder


def test_no_setting_protects_what_services_say_to_the_brokers() -> None:
    assert "there is no setting for either" in PAGE
    package = Path(stele.__path__[0])
    sources = (path for path in package.rglob("*.py") if "stack" not in path.parts)
    protected = re.compile(r"security[._]protocol|sasl|ssl\.(ca|key|certificate)")
    assert not [path for path in sources if protected.search(path.read_text())]
