"""What somebody should look at, and what to do about it: a pure function of what is known."""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from stele.console.pipeline import ClusterShown
from stele.domain.commits.restricted import restricted_text
from stele.domain.image import Image
from stele.runtime.answers.coordinator import Progress
from stele.runtime.answers.session_guard import Liveness, NodeLiveness
from stele.words.units import duration, last_heard

LATE_EPOCHS: Final = 100
LONG_WAIT_S: Final = 60.0


class ProcessShown(msgspec.Struct, frozen=True, kw_only=True):
    """A process, by what it says of itself; ``lag`` in epochs behind the newest that the console knows."""

    service: str
    url: str
    up: bool
    ok: bool
    epoch: int = 0
    lag: int | None = None
    reason: str = ""
    answered_ms: float | None = None
    clusters: tuple[ClusterShown, ...] = ()
    """Of placements: what its tables hold."""


class Alert(msgspec.Struct, frozen=True):
    """``level`` is bad or warning; ``do`` is what to do."""

    level: str
    text: str
    do: str


def alerts(
    image: Image,
    trouble: str,
    processes: Iterable[ProcessShown],
    liveness: Iterable[NodeLiveness],
    progress: Progress | None,
) -> tuple[Alert, ...]:
    """The worst first."""
    found = [
        *_of_log(image, trouble),
        *_of_processes(processes),
        *_of_nodes(image, liveness),
        *_of_progress(image, progress),
    ]
    return tuple(sorted(found, key=lambda alert: alert.level != "bad"))


def _of_log(image: Image, trouble: str) -> Iterator[Alert]:
    if trouble:
        do = "What is shown is old. `stele stack status` shows whether a metadata-log runs."
        yield Alert("bad", trouble, do)
    restricted = restricted_text(image.commits)
    if restricted:
        yield Alert("warning", restricted, "`stele log thaw` opens it.")


def _of_processes(processes: Iterable[ProcessShown]) -> Iterator[Alert]:
    for process in processes:
        where = f"{process.service} at {process.url}"
        for each in process.clusters:
            if each.quarantine:
                text = f"the tables of {each.cluster} are quarantined: {each.quarantine}"
                yield Alert("bad", text, "Then start the process again: each start tries anew.")
        if not process.up:
            yield Alert(
                "bad", f"{where} does not answer: {process.reason}", "Start it, or see its log."
            )
        elif not process.ok:
            yield Alert("bad", f"{where} is not well: {process.reason}", "See its log.")
        elif process.reason:
            yield Alert("warning", f"{where}: {process.reason}", "See its log.")
        elif process.lag is not None and process.lag > LATE_EPOCHS:
            text = f"{where} is {process.lag} epochs behind"
            yield Alert("warning", text, "Wait; if it lasts, see whether its machine is busy.")


def _of_nodes(image: Image, liveness: Iterable[NodeLiveness]) -> Iterator[Alert]:
    for row in liveness:
        node = image.membership.nodes.get(row.node_id)
        if row.liveness is Liveness.DOWN and (node is None or not node.excluded):
            do = f"Start it; or, if dead for good, `stele exclude {row.node_id}`, then replace or remove it."
            yield Alert("bad", f"node {row.node_id} is down, {last_heard(row.silent_for_s)}", do)


def _of_progress(image: Image, progress: Progress | None) -> Iterator[Alert]:
    if progress is None:
        do = "Nothing moves on until one does: start a coordinator."
        yield Alert("bad", "No coordinator answers.", do)
        return
    if not progress.active:
        holder = image.topology.coordinator.holder or "nobody"
        yield Alert(
            "warning",
            f"The coordinator that answers is on standby; {holder} holds the term.",
            "See whether that one runs.",
        )
    for wait in progress.waits:
        if wait.request_ids and (wait.waited_s or 0.0) > LONG_WAIT_S:
            text = (
                f"{wait.request_ids[0]} waits for {duration(wait.waited_s)} for {wait.waiting_for}"
            )
            yield Alert("warning", text, f"`stele why {wait.request_ids[0]}` says what to do.")
