"""Services announce the features that they support, and a feature waits for all of them."""

import pytest

from stele.domain import decide as decide_module
from stele.domain import snapshot
from stele.domain.commands import (
    AnnounceNode,
    AnnounceService,
    EnableFeatures,
    Envelope,
    FinishEnabling,
    ForgetService,
    Rejection,
)
from stele.domain.model.membership import Node
from stele.domain.model.requests import named
from stele.domain.model.services import MAX_SERVICES
from stele.domain.registry import DOMAINS, features_of
from stele.domain.snapshot import domain_hashes, state_hash
from tests.domain.epochs import code_of
from tests.domain.history import History, three_nodes

FEATURE = "tablets"


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> History:
    """Return three nodes that support a feature, decided by a build that knows it."""
    monkeypatch.setattr(decide_module, "KNOWN_FEATURES", frozenset({FEATURE}))
    history, _ = three_nodes()
    for index in (1, 2, 3):
        node = history.image.node(f"n{index}")
        assert isinstance(node, Node)
        assert history.apply(announced(node, FEATURE)) is None
    return history


def announced(node: Node, *features: str) -> AnnounceNode:
    return AnnounceNode(
        node_id=node.node_id,
        address=node.address,
        host_id=node.host_id,
        supported_features=features,
    )


def service(service_id: str, *features: str) -> AnnounceService:
    return AnnounceService(service_id=service_id, supported_features=features)


def enable(history: History) -> Rejection | None:
    """Request the feature, and confirm that every member has acknowledged the request."""
    asked = f"enable-{history.image.epoch}"
    refused = history.apply(EnableFeatures((FEATURE,)), asked)
    return refused or history.apply(FinishEnabling(1, asked))


def test_feature_is_not_enabled_before_every_service_supports_it(history: History) -> None:
    assert history.apply(service("metadata-log/1", FEATURE)) is None
    assert history.apply(service("coordinator/1")) is None
    refused = enable(history)
    assert refused is not None
    assert refused.code == "feature_not_supported"
    assert refused.details["services"] == "coordinator/1"
    assert "stele features forget" in refused.hint
    assert history.apply(service("coordinator/1", FEATURE)) is None
    assert enable(history) is None
    assert history.image.features.enabled == (FEATURE,)


def test_forgotten_service_no_longer_blocks_a_feature(history: History) -> None:
    history.apply(service("coordinator/1"))
    assert enable(history) is not None
    assert history.apply(ForgetService("coordinator/1")) is None
    assert not history.image.services.services
    assert enable(history) is None


def test_service_without_an_enabled_feature_is_refused(history: History) -> None:
    assert enable(history) is None
    refused = history.apply(service("coordinator/1"))
    assert refused is not None
    assert (refused.code, refused.details) == ("missing_features", {"features": FEATURE})


def test_record_that_enables_a_feature_requires_it(history: History) -> None:
    """A reader of an older build stops there and names the feature."""
    assert enable(history) is None
    assert features_of(history.epochs[-1].facts).required == (FEATURE,)


def test_deciding_process_uses_its_own_supported_features(history: History) -> None:
    asked = EnableFeatures((FEATURE,))
    assert history.apply(asked, "asked") is None
    finish = Envelope(request_id=named("finish"), command=FinishEnabling(1, "asked"))
    newer = decide_module.decide(history.image, finish, 0, supported=frozenset({FEATURE}))
    older = decide_module.decide(history.image, finish, 0, supported=frozenset())
    assert not isinstance(newer, Rejection)
    assert isinstance(older, Rejection) and older.code == "unknown_feature"


def test_unchanged_announcement_changes_nothing(history: History) -> None:
    assert history.apply(service("coordinator/1", "b", "a")) is None
    assert history.apply(service("coordinator/1", "a", "b")) is None
    assert history.epochs[-1].facts == ()


def test_number_of_services_is_limited(history: History) -> None:
    for number in range(MAX_SERVICES):
        assert history.apply(service(f"coordinator/{number}")) is None
    refused = history.apply(service("coordinator/more"))
    assert refused is not None
    assert refused.code == "too_many_services"
    assert history.apply(service("coordinator/7", FEATURE)) is None


def test_feature_is_not_enabled_while_the_list_of_services_is_full(history: History) -> None:
    """A running service without the feature may have found no room in the list."""
    for number in range(MAX_SERVICES):
        assert history.apply(service(f"coordinator/{number}", FEATURE)) is None
    assert code_of(history.apply(EnableFeatures((FEATURE,)))) == "too_many_services"
    assert history.apply(ForgetService("coordinator/7")) is None
    assert history.apply(EnableFeatures((FEATURE,))) is None


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (service("coordinator/1", *(f"f{n}" for n in range(257))), "build_too_large"),
        (
            AnnounceService(service_id="coordinator/1", release_version="x" * 129),
            "build_too_large",
        ),
        (service("coordinator/1", "no spaces"), "bad_name"),
    ],
)
def test_announcement_of_a_service_is_bounded(
    history: History, command: AnnounceService, code: str
) -> None:
    assert code_of(history.apply(command)) == code


def test_empty_domain_does_not_change_the_hash(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build without the domain computes the same hash."""
    image = history.image
    assert domain_hashes(image)["services"] == 0
    without = tuple(d for d in DOMAINS if d.name != "services")
    whole = state_hash(image)
    monkeypatch.setattr(snapshot, "DOMAINS", without)
    assert state_hash(image) == whole
