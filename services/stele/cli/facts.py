"""Epochs and their facts in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

Fact = Mapping[str, Any]


class EpochRow(msgspec.Struct, frozen=True):
    """One epoch as the metadata-log shows it; state ids in hex."""

    epoch: int
    command: str
    state_id: str = ""
    prev_state_id: str = ""
    request_id: str = ""
    actor: str = ""
    reason: str = ""
    origin: str = ""
    at_ms: int = 0
    facts: tuple[dict[str, Any], ...] = ()


def summary(row: EpochRow) -> str:
    """All facts on one line; what each epoch repeats is left out."""
    return "; ".join(fact_lines(row)) or "nothing: a barrier"


def fact_lines(row: EpochRow) -> list[str]:
    """One line a fact."""
    return [_IN_WORDS.get(str(fact.get("type")), _any)(fact) for fact in row.facts]


def _node(fact: Fact) -> str:
    node = fact["node"]
    return f"node {node['node_id']} is {node['state']}, {len(node.get('tokens', ()))} tokens"


def _request(fact: Fact) -> str:
    request = fact["request"]
    error = f" ({request['error']})" if request.get("error") else ""
    return f"request {request['request_id']} is {request['status']}{error}"


def _keyspace(fact: Fact) -> str:
    keyspace = fact["keyspace"]
    return f"keyspace {keyspace['name']} is replicated {keyspace['placement']}"


def _placement(fact: Fact) -> str:
    return (
        f"placement {fact['placement']}: {len(fact['removed'])} ranges out, {len(fact['added'])} in"
    )


def _topology(fact: Fact) -> str:
    topology = fact["topology"]
    state = topology["transition_state"] or "at rest"
    return f"topology {state}, version {topology['version']}, fence {topology['fence_version']}"


def _operation(fact: Fact) -> str:
    operation = fact["operation"]
    if operation is None:
        return "no operation under way"
    return f"operation: {operation['kind']} {operation['node_id']}"


def _coordinator(fact: Fact) -> str:
    coordinator = fact["coordinator"]
    return f"{coordinator['holder']} coordinates in term {coordinator['term']}"


def _any(fact: Fact) -> str:
    rest = {key: value for key, value in fact.items() if key != "type"}
    return f"{fact.get('type')} {msgspec.json.encode(rest).decode()[:200]}"


_IN_WORDS: Final[dict[str, Callable[[Fact], str]]] = {
    "ClusterCreated": lambda fact: f"cluster {fact['cluster']}",
    "NodeChanged": _node,
    "RequestChanged": _request,
    "KeyspaceChanged": _keyspace,
    "KeyspaceDropped": lambda fact: f"keyspace {fact['name']} is dropped",
    "PlacementChanged": _placement,
    "PlacementDropped": lambda fact: f"placement {fact['placement']} is dropped",
    "TopologyChanged": _topology,
    "OperationChanged": _operation,
    "CoordinatorChanged": _coordinator,
    "FeaturesEnabled": lambda fact: f"features {', '.join(fact['features'])}",
    "SettingChanged": lambda fact: f"{fact['name']} = {fact['value'] or '(default)'}",
}
