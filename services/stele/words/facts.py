"""Epochs and their facts in words."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from stele.domain.cdc.heads import STREAM_BYTES
from stele.domain.schema.facts import TABLET_MAP, Replication, placement_name
from stele.words.archive_facts import ARCHIVE
from stele.words.names import HistoryNames
from stele.words.units import clock, counted

Fact = Mapping[str, Any]


class EpochRow(msgspec.Struct, frozen=True):
    """One epoch as the metadata-log shows it; state ids in hex.

    Unlike ``EpochAnswer`` it takes facts of kinds that this build does not know: history outlives builds.
    """

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

    def is_barrier(self) -> bool:
        """True when it changed nothing: the barrier of a read, or of a refusal."""
        return not self.facts


def summary(row: EpochRow, names: HistoryNames | None = None) -> str:
    """All facts on one line."""
    return "; ".join(fact_lines(row, names)) or "nothing: a barrier"


def fact_lines(row: EpochRow, names: HistoryNames | None = None) -> list[str]:
    """One line a fact; ``names`` are those of before this epoch, and learn what it says."""
    known = names or HistoryNames()
    lines = list[str]()
    for fact in row.facts:
        known.learn(fact)
        lines.append(known.line(fact, fact_words(fact), row.reason))
    return lines


def fact_words(fact: Fact) -> str:
    """One fact, with ids as they are."""
    return IN_WORDS.get(str(fact.get("type")), _any)(fact)


def _node(fact: Fact) -> str:
    node = fact["node"]
    clean = f", to be cleaned since {node['cleanup_since']}" if node.get("cleanup_since") else ""
    state = f"{node['state']}, excluded" if node.get("excluded_since") else node["state"]
    return f"node {node['node_id']} is {state}, {len(node.get('tokens', ()))} tokens{clean}"


def _request(fact: Fact) -> str:
    request = fact["request"]
    error = f" ({request['error']})" if request.get("error") else ""
    awaited = request.get("awaited_nodes", ())
    nodes = f", awaits {', '.join(awaited)}" if awaited else ""
    return f"request {request['request_id']} is {request['status']}{nodes}{error}"


def _keyspace(fact: Fact) -> str:
    keyspace = fact["keyspace"]
    if keyspace.get("dropped_version"):
        return (
            f"keyspace {keyspace['name']} is being dropped by version {keyspace['dropped_version']}"
        )
    shared = placement_name(keyspace["replication"])
    if keyspace.get("tablets"):
        wanted = Replication(keyspace["replication"], keyspace.get("racks", {})).words()
        return f"keyspace {keyspace['name']} is replicated {wanted}, its tables in tablets"
    own = "" if keyspace["placement"] == shared else f", in placement {keyspace['placement']}"
    truncated = keyspace.get("truncated_version")
    since = f", its data of before version {truncated} is gone" if truncated else ""
    return f"keyspace {keyspace['name']} is replicated {shared}{own}{since}"


def _among_some(fact: Fact) -> str:
    return " among some replicas" if fact.get("restricted") else ""


def _table(fact: Fact) -> str:
    table = fact["table"]
    if table.get("dropped_version"):
        return f"table {table['name']} is being dropped by version {table['dropped_version']}"
    options = {name: value for name, value in table.get("options", {}).items() if value}
    said = ", ".join(f"{name} {value}" for name, value in options.items())
    truncated = table.get("truncated_version")
    since = f", its data of before version {truncated} is gone" if truncated else ""
    base = str(table.get("placement", "")).removeprefix(TABLET_MAP)
    beside = f", co-located with {base}" if base not in ("", table["table_id"]) else ""
    return f"table {table['name']}{f' with {said}' if said else ''}{beside}{since}"


def _placement(fact: Fact) -> str:
    removed, added = len(fact["removed"]["starts"]), len(fact["added"]["starts"])
    return f"{_data(fact)}: {counted(removed, 'range', 'ranges')} out, {added} in"


def _data(fact: Fact) -> str:
    """Of a table's tablets, or a placement of the ring."""
    name = str(fact["placement"])
    table = name.removeprefix(TABLET_MAP)
    return f"placement {name}" if table == name else f"tablets of {table}"


def _versions(fact: Fact) -> str:
    versions = fact["versions"]
    level = versions.get("let_through", "")
    barrier = f", let through at {level}" if level else ""
    return f"version {versions['version']}, fence {versions['fence_version']}{barrier}"


def _relaxed(fact: Fact) -> str:
    without = f" without {', '.join(fact['without'])}" if fact["without"] else ""
    unsafe = " (unsafe)" if fact["unsafe"] else ""
    return (
        f"the barrier of version {fact['version']} is relaxed to {fact['level']}{without}{unsafe}"
    )


def _setting(fact: Fact) -> str:
    unsafe = " (unsafe)" if fact.get("unsafe") else ""
    return f"{fact['name']} = {fact['value'] or '(default)'}{unsafe}"


def _commits(fact: Fact) -> str:
    commits = fact["commits"]
    match commits["mode"]:
        case "open":
            return "the log takes everybody's commands again"
        case "single_user":
            return f"the log takes commands of '{commits['actor']}' alone"
        case _:
            return f"the log is {commits['mode']}: it takes nobody's commands"


_OVERRIDES: Final = {
    "found": "the cluster begins with the state of epoch {of_epoch} of {of_cluster_id}",
    "revert": "the state is that of epoch {of_epoch} again",
    "load": "the state is that of a file, made from epoch {of_epoch}",
}


def _override(fact: Fact) -> str:
    override = fact["override"]
    what = _OVERRIDES[override["kind"]].format_map(override)
    lost = ", rows that may be lost given up" if override["accept_loss"] else ""
    before, after = override["hash_before"][:16], override["hash_after"][:16]
    return f"{what}: state {before} was replaced by {after}{lost} (unsafe)"


def _switched(fact: Fact) -> str:
    switch = fact["balancing"]
    of = f" of {fact['of']}" if fact["of"] else ""
    if not switch["off_since"]:
        return f"balancing{of} is on"
    until = f" until {clock(switch['until_ms'])}" if switch["until_ms"] else ""
    abort_at_ms = switch["abort_at_ms"]
    abort = f", what had begun is cancelled at {clock(abort_at_ms)}" if abort_at_ms else ""
    return f"balancing{of} is off{until}{abort}"


def _opened(fact: Fact) -> str:
    transition = fact["transition"]
    about = [s["node_id"] for s in transition["subjects"]] or [transition["keyspace_id"]]
    what = " ".join([transition["kind"], *filter(None, about)])
    return f"{what} begins in {transition['state']} (transition {transition['transition_id']})"


def _moved(fact: Fact) -> str:
    return f"transition {fact['transition_id']} is in {fact['state']}"


def _marked(fact: Fact) -> str:
    return f"transition {fact['transition_id']} will go back: {fact['mark']}"


def _planned(fact: Fact) -> str:
    rows = len(fact["plan"]["rows"])
    changed = counted(rows, "range", "ranges")
    return f"transition {fact['transition_id']} changes {changed} of {_data(fact)}"


def _unplanned(fact: Fact) -> str:
    return f"transition {fact['transition_id']} changes nothing of {_data(fact)} any more"


def _coordinator(fact: Fact) -> str:
    coordinator = fact["coordinator"]
    return f"{coordinator['holder']} coordinates in term {coordinator['term']}"


def _service(fact: Fact) -> str:
    service = fact["service"]
    supported = ", ".join(service["supported_features"]) or "nothing beyond the first release"
    return f"service {service['service_id']} {service['release_version']} supports {supported}"


def _refused(fact: Fact) -> str:
    reason = f" ({fact['reason']})" if fact.get("reason") else ""
    who = f"{fact['actor'] or 'somebody'}{reason}"
    return f"{fact['command']} by {who} is refused ({fact['code']}): {fact['message']}"


def _generation(fact: Fact) -> str:
    streams = len(base64.b64decode(fact["streams"])) // STREAM_BYTES
    return f"CDC generation {fact['generation_id']} is written with {streams} streams"


def _generation_committed(fact: Fact) -> str:
    return f"CDC generation {fact['generation_id']} holds from {clock(fact['since_ms'])}"


def _recovered(fact: Fact) -> str:
    last, known = fact["last_epoch"], fact["known_epoch"]
    lost = f"; epochs {last + 1} to {known} of it are lost" if known > last else ""
    return f"log {fact['from_log_id']} goes on after epoch {last} as log {fact['log_id']}{lost}"


def _any(fact: Fact) -> str:
    rest = {key: value for key, value in fact.items() if key != "type"}
    return f"{fact.get('type')} {msgspec.json.encode(rest).decode()[:200]}"


IN_WORDS: Final[dict[str, Callable[[Fact], str]]] = {
    "ClusterCreated": lambda fact: f"cluster {fact['cluster']}",
    "LogRecovered": _recovered,
    "CommitsRestricted": _commits,
    "StateReplaced": _override,
    "NodeChanged": _node,
    "NodeNumbered": lambda fact: f"node {fact['node_id']} is number {fact['number']} in placements",
    "CommandRefused": _refused,
    "Part": lambda fact: f"part {fact['index']} of a large change: {len(fact['facts'])} facts",
    "PartsCommitted": lambda fact: f"all {fact['parts']} parts of the change are true from here on",
    "RequestChanged": _request,
    "RequestForgotten": lambda fact: f"request {fact['request_id']} leaves the state",
    "KeyspaceChanged": _keyspace,
    "KeyspaceDropped": lambda fact: f"keyspace {fact['keyspace_id']} is gone",
    "TableChanged": _table,
    "TableDropped": lambda fact: f"table {fact['table_id']} is gone",
    "BalancingSwitched": _switched,
    "PlacementChanged": _placement,
    "PlacementDropped": lambda fact: f"{_data(fact)}: all gone",
    "VersionsChanged": _versions,
    "BarrierRelaxed": _relaxed,
    "TransitionOpened": _opened,
    "TransitionMoved": _moved,
    "TransitionMarked": _marked,
    "TransitionPlanned": _planned,
    "TransitionUnplanned": _unplanned,
    "TransitionFinished": lambda fact: f"transition {fact['transition_id']} is over",
    "CoordinatorChanged": _coordinator,
    "TabletRepaired": lambda fact: (
        f"tablet {fact['tablet']} of {fact['table_id']} is repaired{_among_some(fact)}"
    ),
    "RepairsResized": lambda fact: (
        f"repairs of {fact['table_id']} are of {fact['tablets']} tablets"
    ),
    "RepairsForgotten": lambda fact: (
        f"repairs of {fact['table_id']}{_among_some(fact)} are forgotten"
    ),
    "TableSnapshotTaken": lambda fact: (
        f"snapshot {fact['snapshot']['name']} of {fact['snapshot']['table']} is taken"
    ),
    "TableSnapshotDeleted": lambda fact: f"snapshot {fact['snapshot_id']} is deleted",
    "TableRestoreBegun": lambda fact: f"restore {fact['restore_id']} of {fact['table_id']} begins",
    "TabletRestored": lambda fact: f"tablet {fact['tablet']} is restored by {fact['restore_id']}",
    "TableRestoreResized": lambda fact: (
        f"restore {fact['restore_id']} is of {fact['tablets']} tablets"
    ),
    "TableRestoreEnded": lambda fact: f"restore {fact['restore_id']} is over",
    "CdcGenerationWritten": _generation,
    "CdcGenerationCommitted": _generation_committed,
    "CdcGenerationPublished": lambda fact: f"CDC generation {fact['generation_id']} is published",
    "CdcGenerationForgotten": lambda fact: f"CDC generation {fact['generation_id']} is forgotten",
    "FeaturesEnabled": lambda fact: f"features {', '.join(fact['features'])}",
    "ServiceChanged": _service,
    "ServiceForgotten": lambda fact: f"service {fact['service_id']} is forgotten",
    "SettingChanged": _setting,
    **ARCHIVE,
}
"""By the fact's name."""
