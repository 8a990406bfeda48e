"""``stele features``: list, enable and forget."""

from __future__ import annotations

import json

from tests.cli.conftest import NODES, Server, Stele, at, cluster

SERVICE = {
    "service_id": "coordinator/c-1",
    "supported_features": ["tablets"],
    "release_version": "2.0",
}


def features(server: Server) -> None:
    nodes = [{**node, "supported_features": ["tablets"]} for node in NODES]
    gone = {**NODES[0], "node_id": "n9", "state": "left"}
    cluster(server, nodes=[*nodes, gone])
    server.answer("GET", "/v1/services", {**at(7), "services": [SERVICE]})
    server.answer("GET", "/v1/settings", {**at(7), "features": ["rounds"], "settings": {}})


def test_list_shows_members_and_services(server: Server, stele: Stele) -> None:
    features(server)
    shown = stele.ok("features", "list")
    assert "enabled: rounds" in shown.out
    for part in ("coordinator/c-1", "2.0", "tablets", "n1", "n2"):
        assert part in shown.out
    assert "n9" not in shown.out


def test_list_as_json_has_features_services_and_nodes(server: Server, stele: Stele) -> None:
    features(server)
    found = json.loads(stele("features", "list", "--json").out)
    assert found["features"] == ["rounds"]
    assert found["services"] == [SERVICE]
    assert found["nodes"] == {"n1": ["tablets"], "n2": ["tablets"]}


def test_refusal_names_processes_without_the_feature_and_a_hint(
    server: Server, stele: Stele
) -> None:
    rejection = {
        "code": "feature_not_supported",
        "message": "Feature 'tablets' is not supported by coordinator/c-2.",
        "hint": "Upgrade these first.",
    }
    outcome = {"request_id": "r", "applied": False, "log_id": "", **at(8), "rejection": rejection}
    server.answer("POST", "/v1/commands", outcome, status=409)
    refused = stele("features", "enable", "tablets")
    assert refused.exit_code != 0
    assert "coordinator/c-2. Upgrade these first." in refused.err
