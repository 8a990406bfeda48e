"""Words for epochs and their facts."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from stele.domain.model.cdc import STREAM_BYTES
from stele.domain.model.schema import Replication, placement_name
from stele.domain.names import TABLET_MAP, ReplicaState
from stele.words.names import HistoryNames
from stele.words.units import clock, counted

# Words for facts about the archive of the log.


Fact = Mapping[str, Any]

_IS: Final = {
    ReplicaState.CANDIDATE: "is a candidate",
    ReplicaState.JOINING: "joins the members",
    ReplicaState.MEMBER: "is a member",
}


def _replica(fact: Fact) -> str:
    replica = fact["replica"]
    state = _IS.get(replica["state"], replica["state"])
    return f"catch-up replica {replica['replica_id']} {state}, at {replica['address']}"


def _forgotten(fact: Fact) -> str:
    unsafe = " (unsafe)" if fact.get("unsafe") else ""
    return f"catch-up replica {fact['replica_id']} is forgotten{unsafe}"


def _announced(fact: Fact) -> str:
    snapshot = fact["snapshot"]
    epochs = f"epochs {snapshot['first_epoch']} to {snapshot['epoch']}"
    return (
        f"{fact['replica_id']} has {epochs}, and the snapshot {snapshot['hash'][:12]} of the last"
    )


def _withdrawn(fact: Fact) -> str:
    epochs = ", ".join(map(str, fact["epochs"]))
    return f"snapshots of {fact['replica_id']} count no more: of epoch {epochs}"


def _truncated(fact: Fact) -> str:
    lost = fact["lost_readers"]
    named = f"; readers that are lost: {', '.join(lost)}" if lost else ""
    return f"the log begins at epoch {fact['epoch']}, offset {fact['offset']}{named}"


def _reader(fact: Fact) -> str:
    reader = fact["reader"]
    return f"reader {reader['reader_id']} is at epoch {reader['epoch']}"


def _diverged(fact: Fact) -> str:
    return (
        f"{fact['replica_id']} has diverged (time {fact['times']}): its snapshot of epoch {fact['epoch']}"
        " differs from the members', and it starts again empty"
    )


def _agrees(fact: Fact) -> str:
    store = f", and what is before it is in {fact['store']}" if fact["store"] else ""
    return (
        f"{fact['replica_id']} has the snapshot {fact['hash'][:12]} of epoch {fact['epoch']}{store}"
    )


def _trimmed(fact: Fact) -> str:
    lost, stores = fact["lost_readers"], fact["stores"]
    older = f"; older ones are in {', '.join(stores)}" if stores else ""
    named = f"; readers that are lost: {', '.join(lost)}" if lost else ""
    return f"the archive begins at epoch {fact['epoch']}{older}{named}"


ARCHIVE: Final[dict[str, Callable[[Fact], str]]] = {
    "ReplicaChanged": _replica,
    "ReplicaForgotten": _forgotten,
    "SnapshotAnnounced": _announced,
    "SnapshotsForgotten": _withdrawn,
    "SnapshotAsked": lambda fact: f"catch-up replicas take a snapshot of epoch {fact['epoch']}",
    "LogTruncated": _truncated,
    "ReaderChanged": _reader,
    "ReplicaDiverged": _diverged,
    "TrimProposed": lambda fact: f"the archive is to begin at epoch {fact['epoch']}",
    "TrimAgreed": _agrees,
    "ArchiveTrimmed": _trimmed,
    "ReaderForgotten": lambda fact: f"reader {fact['reader_id']} is forgotten",
}
"""Functions by the name of the fact."""


class EpochRow(msgspec.Struct, frozen=True):
    """One epoch as the metadata-log returns it; state ids are in hex.

    Unlike ``EpochAnswer`` it accepts facts of kinds that this build does not know: history outlives
    builds.
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
        """True if the epoch changed nothing: the barrier of a read or of a refusal."""
        return not self.facts


def summary(row: EpochRow, names: HistoryNames | None = None) -> str:
    """Return all facts on one line."""
    return "; ".join(fact_lines(row, names)) or "nothing: a barrier"


def fact_lines(row: EpochRow, names: HistoryNames | None = None) -> list[str]:
    """Return one line for each fact.

    ``names`` are the names before this epoch. They learn from its facts.
    """
    known = names or HistoryNames()
    lines = list[str]()
    for fact in row.facts:
        # First learn, then write the line: a fact that names a thing is written with that name.
        known.learn(fact)
        lines.append(known.line(fact, fact_words(fact), row.reason, row.epoch))
    return lines


def flat(facts: Sequence[Fact]) -> Iterator[Fact]:
    """Yield the facts, with those inside parts."""
    for fact in facts:
        if fact.get("type") == "Part":
            yield from flat(fact["facts"])
        else:
            yield fact


def altered_table(row: EpochRow) -> str:
    """Return the id of the table whose options an epoch alters; empty if none."""
    tables = [fact["table"]["table_id"] for fact in row.facts if fact.get("type") == "TableChanged"]
    return tables[0] if tables and row.command == "alter_table" else ""


def fact_words(fact: Fact) -> str:
    """Return the words of one fact, with its ids."""
    return IN_WORDS.get(str(fact.get("type")), _any)(fact)


def _node(fact: Fact) -> str:
    node = fact["node"]
    clean = f", to be cleaned since {node['cleanup_since']}" if node.get("cleanup_since") else ""
    state = "not a member yet" if node["state"] == "none" else node["state"]
    if node.get("excluded_since"):
        state += ", excluded"
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


def _table_schema(fact: Fact) -> str:
    schema = fact["schema"]
    columns = ", ".join(f"{column['name']} {column['type']}" for column in schema["columns"])
    dropped = (
        each["name"]
        for each in schema.get("dropped_columns", ())
        if each["dropped_epoch"] == schema["version"]
    )
    others = {
        "dropped now": ", ".join(dropped),
        "indexes": ", ".join(index["name"] for index in schema.get("indexes", ())),
        "with": " and ".join(f"{k} = {v}" for k, v in schema.get("parameters", {}).items()),
    }
    more = "".join(f"; {what} {text}" for what, text in others.items() if text)
    return f"table {schema['table_id']} has columns {columns}{more}"


def _fields(fact: Fact) -> str:
    fields = fact["user_type"]["fields"]
    return ", ".join(f"{field['name']} {field['type']}" for field in fields)


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
    """Return the words for the tablets of a table or a placement of the ring."""
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
            return "the log accepts the commands of all actors again"
        case "single_user":
            return f"the log takes commands of '{commits['actor']}' alone"
        case _:
            return f"the log is {commits['mode']}: it accepts no commands"


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
    who = f"{fact['actor'] or 'an unknown caller'}{reason}"
    return f"{fact['command']} by {who} is refused ({fact['code']}): {fact['message']}"


def _generation(fact: Fact) -> str:
    streams = len(base64.b64decode(fact["streams"])) // STREAM_BYTES
    return f"CDC generation {fact['generation_id']} is written with {streams} streams"


def _generation_committed(fact: Fact) -> str:
    return f"CDC generation {fact['generation_id']} holds from {clock(fact['since_ms'])}"


def _recovered(fact: Fact) -> str:
    last, known = fact["last_epoch"], fact["known_epoch"]
    lost = f"; epochs {last + 1} to {known} of it are lost" if known > last else ""
    return f"log {fact['from_log_id']} continues after epoch {last} as log {fact['log_id']}{lost}"


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
    "TableSchemaChanged": _table_schema,
    "TypeChanged": lambda fact: f"type {fact['user_type']['name']} has {_fields(fact)}",
    "TypeDropped": lambda fact: f"type {fact['type_id']} is dropped",
    "FunctionChanged": lambda fact: f"function {fact['function']['name']} is defined",
    "FunctionDropped": lambda fact: f"function {fact['function_id']} is dropped",
    "AggregateChanged": lambda fact: f"aggregate {fact['aggregate']['name']} is defined",
    "AggregateDropped": lambda fact: f"aggregate {fact['aggregate_id']} is dropped",
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
"""Functions by the name of the fact."""


class TransitionChange(NamedTuple):
    """A change of a transition: its requests, and the state that they enter.

    ``state`` is empty if the transition ends, or is marked to go back.
    """

    request_ids: tuple[str, ...] = ()
    state: str = ""


class OpenTransitions:
    """The requests of the open transitions, from facts in log order, without parts."""

    def __init__(self) -> None:
        self._request_ids = dict[str, tuple[str, ...]]()

    def take(self, fact: Fact) -> TransitionChange:
        """Return the change that a fact makes. Other facts change no request."""
        match fact.get("type"):
            case "TransitionOpened":
                transition = fact["transition"]
                own = transition["transition_id"]
                # A transition without subjects has the id of its only request.
                ids = tuple(s["request_id"] for s in transition.get("subjects", ())) or (own,)
                self._request_ids[own] = ids
                return TransitionChange(ids, transition["state"])
            case "TransitionMoved":
                return TransitionChange(self._of(fact), fact["state"])
            case "TransitionMarked" | "TransitionFinished":
                return TransitionChange(self._of(fact))
        return TransitionChange()

    def _of(self, fact: Fact) -> tuple[str, ...]:
        return self._request_ids.get(fact["transition_id"], ())
