"""Alerts with advice, ranges without live replicas, and the reason why a state may be stale.

Pure functions of the known state.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Final

import msgspec
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from stele.domain.image import Image
from stele.domain.not_taken import restricted_text
from stele.domain.ring.columns import PAD
from stele.domain.topology.live_copies import described, losses
from stele.runtime.answers.coordinator import Progress, WaitProgress
from stele.runtime.answers.session_guard import Liveness, NodeLiveness
from stele.words.explain import DEAD_AFTER_S, Case, advice, waiting_line
from stele.words.names import what
from stele.words.units import last_heard

# Processes by their answers to health queries, and the clusters in Spark's tables: pure functions.


PREFIX: Final = "stele_placements_"


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One cluster in the tables of the placements service.

    ``epoch`` is the newest in the tables. ``not_judged`` counts records of the topic that were not
    read yet. ``waiting`` counts epochs that were read but are not in the tables. ``strays`` counts
    skipped records of other logs. ``quarantine`` states why the cluster is stopped, and what to do.
    """

    cluster: str
    epoch: int = 0
    not_judged: int = 0
    waiting: int = 0
    strays: int = 0
    quarantine: str = ""


class ProcessStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A process by its health answer. ``lag`` counts epochs behind the console's newest."""

    service: str
    url: str
    up: bool
    ok: bool
    epoch: int = 0
    lag: int | None = None
    reason: str = ""
    answered_ms: float | None = None
    clusters: tuple[ClusterStatus, ...] = ()
    """Clusters in the tables of the placements service; empty for others."""


def clusters_of(metrics: str, stopped: Mapping[str, str]) -> tuple[ClusterStatus, ...]:
    """Return the clusters from the answers of ``/metrics`` and ``/healthz``. Raises ValueError."""
    by_name = {
        name: _by_cluster(metrics, PREFIX + name)
        for name in ("epoch", "lag_records", "lag_epochs", "strays")
    }
    clusters = sorted({*stopped, *(each for values in by_name.values() for each in values)})
    return tuple(
        ClusterStatus(
            cluster=cluster,
            epoch=by_name["epoch"].get(cluster, 0),
            not_judged=by_name["lag_records"].get(cluster, 0),
            waiting=by_name["lag_epochs"].get(cluster, 0),
            strays=by_name["strays"].get(cluster, 0),
            quarantine=stopped.get(cluster, ""),
        )
        for cluster in clusters
    )


def _by_cluster(metrics: str, name: str) -> dict[str, int]:
    return {
        sample.labels["cluster"]: int(sample.value)
        for family in text_string_to_metric_families(metrics)
        if family.name == name
        for sample in family.samples
        if "cluster" in sample.labels
    }


LATE_EPOCHS: Final = 100
LONG_WAIT_S: Final = 60.0


class Alert(msgspec.Struct, frozen=True):
    """An alert. ``level`` is bad or warning, ``do`` the advice, ``place`` the view that shows more."""

    level: str
    text: str
    do: str
    place: dict[str, str] = {}


class RangeHealth(msgspec.Struct, frozen=True):
    """Number of ranges and tablets. ``under_replicated`` have a replica on a node that is down or
    excluded; ``unavailable`` have no majority of live replicas.
    """

    total: int = 0
    under_replicated: int = 0
    unavailable: int = 0


def alerts(
    image: Image,
    trouble: str,
    processes: Iterable[ProcessStatus],
    liveness: Iterable[NodeLiveness],
    progress: Progress | None,
    ranges: RangeHealth,
) -> tuple[Alert, ...]:
    """Return all alerts, the worst first."""
    rows = [*liveness]
    found = [
        *_log_alerts(image, trouble),
        *_ranges_alerts(ranges),
        *_processes_alerts(processes, {f"node {row.node_id}" for row in rows if _is_down(row)}),
        *_nodes_alerts(image, rows),
        *_progress_alerts(image, progress),
    ]
    return tuple(sorted(found, key=lambda alert: alert.level != "bad"))


def range_health(image: Image, down: Set[str]) -> RangeHealth:
    """Return the health of all ranges while the nodes ``down``, and the excluded ones, do not serve."""
    dead = image.membership.excluded() | down
    total = under = unavailable = 0
    for name, placement in image.ring.placements.items():
        if not image.schema.using(name):
            continue
        total += len(placement)
        if not dead:
            continue
        chosen = np.array([each in dead for each in placement.nodes.names] + [False])
        reads = placement.reads()
        lost = chosen[reads].sum(axis=1)  # PAD, -1, is the last one
        copies = (reads != PAD).sum(axis=1)
        under += int((lost > 0).sum())
        unavailable += int((2 * (copies - lost) <= copies).sum())
    return RangeHealth(total, under, unavailable)


def _ranges_alerts(ranges: RangeHealth) -> Iterator[Alert]:
    if ranges.unavailable:
        text = f"{ranges.unavailable} of {ranges.total} ranges and tablets have no majority of live replicas."
        do = "Quorum reads and writes of their keys fail. Start the nodes that are down."
        yield Alert("bad", text, do, {"view": "nodes"})


def _log_alerts(image: Image, trouble: str) -> Iterator[Alert]:
    if trouble:
        do = "This page may be stale. `stele stack status` shows whether a metadata-log runs."
        yield Alert("bad", trouble, do, {"view": "health"})
    restricted = restricted_text(image.commits)
    if restricted:
        yield Alert("warning", restricted, "`stele log thaw` ends this.")


def _is_down(row: NodeLiveness) -> bool:
    return row.liveness is Liveness.DOWN


def _processes_alerts(processes: Iterable[ProcessStatus], down: Set[str]) -> Iterator[Alert]:
    """Yield the alerts of processes. Nodes that are ``down`` have an alert of their own."""
    place = {"view": "health"}
    for process in processes:
        where = f"{process.service} at {process.url}"
        for each in process.clusters:
            if each.quarantine:
                text = f"The tables of {each.cluster} are quarantined: {each.quarantine}"
                do = "Remove the cause, then restart the placements service: it retries at its start."
                yield Alert("bad", text, do, place)
        if not process.up:
            if process.service in down:
                continue
            text = f"{where} does not answer: {process.reason}."
            yield Alert("bad", text, "Start it, or read its log.", place)
        elif not process.ok:
            text = f"{where} is unhealthy: {process.reason}."
            yield Alert("bad", text, "Read its log.", place)
        elif process.reason:
            yield Alert("warning", f"{where}: {process.reason}", "Read its log.", place)
        elif process.lag is not None and process.lag > LATE_EPOCHS:
            text = f"{where} is {process.lag} epochs behind."
            do = "Wait. If it lasts, check the load of its machine."
            yield Alert("warning", text, do, place)


def _nodes_alerts(image: Image, liveness: Iterable[NodeLiveness]) -> Iterator[Alert]:
    for row in liveness:
        node = image.membership.nodes.get(row.node_id)
        if _is_down(row) and (node is None or not node.excluded):
            lost = () if node is None else losses(image, {row.node_id})
            if row.returning:
                text = f"Node {row.node_id} is back, and up once its heartbeats are steady."
                yield Alert("warning", text, "Wait.", {"view": "nodes", "node": row.node_id})
                continue
            do = "Start it, if it is not starting already."
            if (row.silent_for_s or 0.0) > DEAD_AFTER_S:
                do = f"Start it; or, if it is dead, `stele exclude {row.node_id}`, then replace or remove it."
            if lost:
                lacking = "may have acknowledged writes that no other live node has"
                do = f"Start it: {described(image, lost)} {lacking}."
            text = f"Node {row.node_id} is down, {last_heard(row.silent_for_s)}."
            yield Alert("bad", text, do, {"view": "nodes", "node": row.node_id})


def _progress_alerts(image: Image, progress: Progress | None) -> Iterator[Alert]:
    if progress is None:
        do = "No operation makes progress until one does. Start a coordinator."
        yield Alert("bad", "No coordinator answers.", do, {"view": "health"})
        return
    if not progress.active:
        holder = image.topology.coordinator.holder or "nobody"
        yield Alert(
            "warning",
            f"The coordinator that answers is on standby; {holder} holds the term.",
            "Check whether that one runs.",
            {"view": "health"},
        )
    for wait in progress.waits:
        if wait.request_ids and (wait.waited_s or 0.0) > LONG_WAIT_S:
            yield _wait_alert(image, wait)


def _wait_alert(image: Image, wait: WaitProgress) -> Alert:
    """Return the alert of a long wait: it names the node that is the cause, and the advice."""
    request_id = wait.request_ids[0]
    request, place = image.request(request_id), {"view": "operations", "request": request_id}
    if request is None:
        text = f"{request_id} {waiting_line(wait)}"
        return Alert("warning", text, f"`stele why {request_id}` says what to do.", place)
    text = f"{what(request, image.schema.names_by_id())} {waiting_line(wait)}"
    do = advice(Case(request, image.topology.of_request(request_id), wait))
    return Alert("warning", text, f"{do[0].upper()}{do[1:]}.", place)


SERVICE: Final = "metadata-log"
QUIET_S: Final = 12.0
"""Silence of the stream that is suspicious. The metadata-log sends a ping every ten seconds."""
HEARD_S: Final = 3.0
"""Age of the last line of the stream up to which a slow answer is not a failure."""


def stale_reason(epoch: int, silent_s: float, processes: Iterable[ProcessStatus]) -> str:
    """Return why ``epoch``, the newest of the stream, may be old; empty if it is not.

    ``silent_s`` is the time since the last line of the stream.
    """
    logs = [each for each in processes if each.service == SERVICE]
    behind = newest_of(logs) - epoch
    if behind > LATE_EPOCHS:
        return f"The console is {behind} epochs behind the metadata-log."
    if logs and not any(each.ok for each in logs):
        worst = next((each for each in logs if each.up), logs[0])
        if worst.up:
            return f"The metadata-log is not well: {worst.reason}"
        if silent_s > HEARD_S:
            return f"The metadata-log does not answer: {worst.reason}."
    if silent_s > QUIET_S:
        return f"The metadata-log has sent nothing for {silent_s:.0f} s."
    return ""


def newest_of(processes: Iterable[ProcessStatus]) -> int:
    """Return the newest epoch of any healthy metadata-log; 0 if there is none."""
    return max((p.epoch for p in processes if p.service == SERVICE and p.ok), default=0)
