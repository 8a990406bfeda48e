"""Messages of agents, judged against the log: a pure state machine.

Its inputs are epochs, orders, acks and reports. They come by several topics, so an ack may arrive
before its epoch. It is then kept until the epoch arrives.
"""

from typing import Final

import msgspec

from stele.domain.image import Image
from stele.domain.messages import Ack, Order, Report, WorkKey
from stele.domain.names import ReportStatus
from stele_harness.conformance.rules import Broken

PATIENCE_S: Final = 5.0
"""Limit until an epoch is acknowledged, an order is answered, or a session is left."""

OrderKey = tuple[str, int, int]
"""Node, term and index of an order."""


class _Epoch(msgspec.Struct, frozen=True):
    """The values that an ack of this epoch must have, and the time when the epoch was read."""

    at_s: float
    state_id: bytes
    log_id: bytes
    version: int
    fence_version: int
    hosts: dict[str, str]


class _Node(msgspec.Struct):
    ack: Ack | None = None
    ack_at_s: float = 0.0
    version: int = 0
    fence_version: int = 0
    boots: list[str] = []
    expected_since_s: float | None = None
    """Time from which acks are due. None: the process does not run, or the node is no member."""


class Watch:
    """Judges messages. ``broken`` are the rules broken so far. Times are seconds of one clock.

    ``patience`` multiplies the time limit.
    """

    def __init__(self, patience: float = 1.0) -> None:
        self._patience_s = PATIENCE_S * patience
        self.broken: list[Broken] = []
        self._epochs: dict[int, _Epoch] = {}
        self._newest = 0
        self._open: frozenset[str] = frozenset()
        self._closed_at_s: dict[str, float] = {}
        self._nodes: dict[str, _Node] = {}
        self._waiting: list[tuple[float, Ack]] = []
        self._orders: dict[OrderKey, Order] = {}
        self._unknown: list[tuple[float, Report]] = []
        self._forbidden: dict[OrderKey, tuple[str, str]] = {}
        self._reports: dict[OrderKey, ReportStatus] = {}
        self._done: set[WorkKey] = set()
        self._never_done: set[WorkKey] = set()

    def on_epoch(self, image: Image, now_s: float) -> None:
        topology = image.topology
        self._epochs[image.epoch] = _Epoch(
            at_s=now_s,
            state_id=image.state_id,
            log_id=image.log_id,
            version=topology.version,
            fence_version=topology.fence_version,
            hosts={node_id: node.host_id for node_id, node in image.membership.nodes.items()},
        )
        self._newest = image.epoch
        sessions = topology.sessions() | {
            node.cleanup_session() for node in image.membership.nodes.values()
        }
        for session in self._open - sessions:
            self._closed_at_s[session] = now_s
        self._open = sessions
        ready = [ack for _, ack in self._waiting if ack.epoch <= self._newest]
        self._waiting = [each for each in self._waiting if each[1].epoch > self._newest]
        for ack in ready:
            self._judge(ack, now_s)

    def on_ack(self, ack: Ack, now_s: float) -> None:
        if ack.epoch > self._newest:
            self._waiting.append((now_s, ack))
        else:
            self._judge(ack, now_s)

    def on_order(self, order: Order) -> None:
        self._orders[order.node_id, order.term, order.index] = order

    def on_report(self, report: Report, now_s: float) -> None:
        key = (report.node_id, report.term, report.index)
        if key in self._forbidden:
            rule, what = self._forbidden[key]
            self._break(rule, report.node_id, f"it reports {report.status} on {what}")
        elif key in self._orders:
            self._judge_report(report, self._orders[key])
        else:
            self._unknown.append((now_s, report))

    def forbid(self, order: Order, rule: str, what: str) -> None:
        """Make any report on this order break the rule."""
        self._forbidden[order.node_id, order.term, order.index] = (rule, what)

    def never_done(self, order: Order) -> None:
        """Note that the session of this order is not open: the work can only fail."""
        self._never_done.add(order.work())

    def expect_acks(self, node_id: str, now_s: float) -> None:
        """Expect acks from now on: the process runs, and its node is a member."""
        self._node(node_id).expected_since_s = now_s

    def expect_nothing(self, node_id: str) -> None:
        self._node(node_id).expected_since_s = None

    def status_of(self, order: Order) -> ReportStatus | None:
        """Return the last status that was reported on exactly this order."""
        return self._reports.get((order.node_id, order.term, order.index))

    def boots_of(self, node_id: str) -> int:
        """Return the number of the node's starts that have sent acks.

        Acks of an earlier start may arrive late.
        """
        return len(self._node(node_id).boots)

    def epoch_of(self, node_id: str) -> int:
        """Return the epoch of the node's newest ack; 0: there is none."""
        ack = self._node(node_id).ack
        return 0 if ack is None else ack.epoch

    def sessions_of(self, node_id: str) -> tuple[str, ...]:
        """Return the sessions in use by the node's newest ack."""
        ack = self._node(node_id).ack
        return () if ack is None else ack.sessions_in_use

    def expects(self, node_id: str) -> bool:
        """Return True if acks of the node are due."""
        return self._node(node_id).expected_since_s is not None

    def heard_at_s(self, node_id: str) -> float:
        """Return when the last ack of the node arrived; 0: none has."""
        return self._node(node_id).ack_at_s

    def tick(self, now_s: float) -> None:
        """Check all acks, reports and sessions that are due."""
        for at_s, ack in self._waiting:
            if now_s - at_s > self._patience_s:
                what = f"an ack tells epoch {ack.epoch}, the log ends at {self._newest}"
                self._break("ack-is-of-this-log", ack.node_id, what)
        self._waiting = [each for each in self._waiting if now_s - each[0] <= self._patience_s]
        still = list[tuple[float, Report]]()
        for at_s, report in self._unknown:
            key = (report.node_id, report.term, report.index)
            if key in self._orders:
                self._judge_report(report, self._orders[key])
            elif now_s - at_s > self._patience_s:
                what = f"it reports on term {report.term} index {report.index}, which nobody sent"
                self._break("report-names-its-order", report.node_id, what)
            else:
                still.append((at_s, report))
        self._unknown = still
        for node_id, node in self._nodes.items():
            self._check_alive(node_id, node, now_s)

    def _check_alive(self, node_id: str, node: _Node, now_s: float) -> None:
        if node.expected_since_s is None:
            return
        silent_s = now_s - max(node.ack_at_s, node.expected_since_s)
        if silent_s > self._patience_s:
            self._break("heartbeat", node_id, f"no ack for {silent_s:.1f} s")
            node.expected_since_s = now_s
            return
        acked = 0 if node.ack is None else node.ack.epoch
        following = self._epochs.get(acked + 1)
        if following is not None:
            late_s = now_s - max(following.at_s, node.expected_since_s)
            if late_s > self._patience_s:
                what = f"epoch {acked + 1} is not acknowledged after {late_s:.1f} s"
                self._break("reads-on", node_id, what)
                node.expected_since_s = now_s

    def _judge(self, ack: Ack, now_s: float) -> None:
        node, known = self._node(ack.node_id), self._epochs.get(ack.epoch)
        if known is None or (ack.state_id, ack.log_id) != (known.state_id, known.log_id):
            what = f"its ack of epoch {ack.epoch} has another state id or log id than the log"
            self._break("ack-is-of-this-log", ack.node_id, what)
            return
        self._judge_host(ack, known)
        if (ack.version, ack.fence_version) != (known.version, known.fence_version):
            what = (
                f"it tells version {ack.version} and fence {ack.fence_version} at epoch {ack.epoch}, which"
                f" has {known.version} and {known.fence_version}"
            )
            self._break("ack-tells-what-is-applied", ack.node_id, what)
        if ack.oldest_version_in_use > ack.version:
            what = f"version {ack.oldest_version_in_use} in use, of {ack.version}"
            self._break("version-in-use", ack.node_id, what)
        self._judge_order_of_acks(ack, node)
        for session in ack.sessions_in_use:
            closed_s = self._closed_at_s.get(session)
            if session not in self._open and (
                closed_s is None or now_s - closed_s > self._patience_s
            ):
                what = f"session {session} is in use, which is not open"
                self._break("session-ends", ack.node_id, what)
        node.ack, node.ack_at_s = ack, now_s
        node.version = max(node.version, ack.version)
        node.fence_version = max(node.fence_version, ack.fence_version)

    def _judge_host(self, ack: Ack, known: _Epoch) -> None:
        host = known.hosts.get(ack.node_id)
        if host is None:
            what = f"it acknowledges epoch {ack.epoch}, in which there is no such node"
            self._break("no-ack-before-the-row", ack.node_id, what)
        elif host != ack.host_id:
            what = f"its acks are of host {ack.host_id or '(none)'}, its row of {host}"
            self._break("host-id-is-the-rows", ack.node_id, what)

    def _judge_order_of_acks(self, ack: Ack, node: _Node) -> None:
        before = node.ack
        if before is not None and before.boot_id == ack.boot_id:
            now = (ack.epoch, ack.version, ack.fence_version)
            was = (before.epoch, before.version, before.fence_version)
            if ack.sequence <= before.sequence or any(n < w for n, w in zip(now, was, strict=True)):
                what = f"ack {ack.sequence} tells {now}, after ack {before.sequence} told {was}"
                self._break("ack-goes-up", ack.node_id, what)
            return
        if node.boots and ack.boot_id <= max(node.boots):
            what = f"boot id {ack.boot_id} comes after {max(node.boots)}"
            self._break("boot-id-goes-up", ack.node_id, what)
        elif before is not None and ack.sequence <= before.sequence:
            what = f"started again, it sends ack {ack.sequence} after ack {before.sequence}"
            self._break("ack-goes-up", ack.node_id, what)
        node.boots = [*node.boots, ack.boot_id]
        if ack.version < node.version or ack.fence_version < node.fence_version:
            what = (
                f"started again, it tells version {ack.version} and fence {ack.fence_version}, after"
                f" {node.version} and {node.fence_version}"
            )
            self._break("acknowledged-is-kept", ack.node_id, what)

    def _judge_report(self, report: Report, order: Order) -> None:
        said = (report.kind, report.session, report.request_id, report.log_id)
        if said != (order.kind, order.session, order.request_id, order.log_id):
            what = f"its report on index {order.index} names another kind, session, request or log"
            self._break("report-names-its-order", report.node_id, what)
        self._reports[report.node_id, report.term, report.index] = report.status
        work = report.work()
        if report.status is ReportStatus.SUCCESS:
            if work in self._never_done:
                what = (
                    f"{report.kind} under session {report.session}, which was never open, is done"
                )
                self._break("closed-session-is-refused", report.node_id, what)
            self._done.add(work)
        if report.status is ReportStatus.FAILED:
            if work in self._done:
                what = f"{report.kind} under session {report.session} failed, and was done"
                self._break("success-is-final", report.node_id, what)
            if not report.error:
                self._break("failure-says-why", report.node_id, "a FAILED report says nothing")

    def _node(self, node_id: str) -> _Node:
        return self._nodes.setdefault(node_id, _Node())

    def _break(self, rule: str, node_id: str, what: str) -> None:
        """Record a broken rule once for each node. Later breaks of it follow from the first."""
        if not any((each.rule, each.node_id) == (rule, node_id) for each in self.broken):
            self.broken.append(Broken(rule, node_id, what))
