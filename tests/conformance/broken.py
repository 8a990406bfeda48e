"""Agents that each break one rule: ``python -m tests.conformance.broken NAME`` runs the node with that bug."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import uuid
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from stele.agent import agent as agent_module
from stele.agent import identity, member
from stele.agent.agent import Agent
from stele.agent.cleanup import Truncator
from stele.agent.gate import Gate
from stele.agent.judging import Judge, JudgedRequest
from stele.agent.orders import OrderExecutor
from stele.agent.probing import check_meant
from stele.agent.pulling import Puller
from stele.domain.fencing import SessionGuard, check_token
from stele.domain.image import Image
from stele.domain.messages import Ack, Order, Report
from stele.domain.names import ReportStatus
from stele.domain.topology.live_copies import is_wanted
from stele.log.codec import decode_order, encode_ack, encode_report
from stele.log.fold import check_stray
from stele.node import http as node_http
from stele.node.__main__ import main
from stele.runtime.service import run_service
from stele_harness.conformance.data_scenes import (
    a_keyspace_is_truncated,
    a_session_closes,
    a_tablet_moves,
    columns_change,
    the_log_is_recovered,
)
from stele_harness.conformance.scenes import (
    a_copy_is_put_back,
    a_disk_is_wiped,
    a_fourth_joins,
    one_is_killed_and_comes_back,
    orders_are_judged,
    requests_are_judged,
    three_join,
)
from stele_simulator.patching import Patch


def _change_acks(patch: Patch, change: Any) -> None:
    patch.attribute(agent_module, "encode_ack", lambda ack: encode_ack(change(ack)))


def _count_by_the_clock(patch: Patch) -> None:
    """Take boot ids and sequences from the clock, so that they increase whatever the disk holds."""
    begun = time.time_ns()
    boot = f"{begun:020d}-"
    _change_acks(patch, lambda ack: replace(ack, boot_id=boot, sequence=begun + ack.sequence))


def acks_a_version_ahead(patch: Patch) -> None:
    _change_acks(patch, lambda ack: replace(ack, version=ack.version + 1))


def acks_another_state_id(patch: Patch) -> None:
    _change_acks(patch, lambda ack: replace(ack, state_id=os.urandom(16)))


def acks_without_host_id(patch: Patch) -> None:
    _change_acks(patch, lambda ack: replace(ack, host_id=""))


def repeats_the_sequence(patch: Patch) -> None:
    _change_acks(patch, lambda ack: replace(ack, sequence=1))


def uses_a_future_version(patch: Patch) -> None:
    _change_acks(patch, lambda ack: replace(ack, oldest_version_in_use=ack.version + 7))


def boot_ids_decrease(patch: Patch) -> None:
    boot = f"x{10**15 - time.time_ns() // 10**6:020d}"
    _change_acks(patch, lambda ack: replace(ack, boot_id=boot))


def never_ends_sessions(patch: Patch) -> None:
    seen = dict[str, None]()

    def change(ack: Ack) -> Ack:
        seen.update(dict.fromkeys(ack.sessions_in_use))
        return replace(ack, sessions_in_use=tuple(seen))

    _change_acks(patch, change)


def stops_sending_acks(patch: Patch) -> None:
    plain = Agent._ack

    def ack(self: Agent) -> None:
        if self._sequence < 40:
            plain(self)

    patch.attribute(Agent, "_ack", ack)


def acks_before_its_row(patch: Patch) -> None:
    patch.attribute(Gate, "is_open", property(lambda self: True))
    patch.attribute(Agent, "may_acknowledge", lambda self: self.image.epoch > 1)
    plain = vars(member)["admit"]

    acked = asyncio.Event()

    async def late(*args: Any, **options: Any) -> None:
        """Delay the membership request until the first ack. Otherwise the node's row would come first.

        The first node of a cluster has no epoch to acknowledge before its row, hence the limit.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(240):
                await acked.wait()
        await plain(*args, **options)

    def set_acked(ack: Ack) -> Ack:
        acked.set()
        return ack

    _change_acks(patch, set_acked)

    patch.attribute(member, "admit", late)


def accepts_old_terms(patch: Patch) -> None:
    def accepts(self: OrderExecutor, order: Order, image: Image) -> bool:
        return order.index > self._index

    patch.attribute(OrderExecutor, "_accepts", accepts)


def accepts_old_indices(patch: Patch) -> None:
    def accepts(self: OrderExecutor, order: Order, image: Image) -> bool:
        return order.term >= max(image.topology.coordinator.term, self._term)

    patch.attribute(OrderExecutor, "_accepts", accepts)


def accepts_orders_of_other_logs(patch: Patch) -> None:
    def on_order(self: Agent, value: bytes) -> None:
        self.offer(decode_order(value))

    patch.attribute(Agent, "on_order", on_order)


def accepts_orders_of_closed_sessions(patch: Patch) -> None:
    async def run(self: Puller, order: Order, progress: object) -> None:
        await asyncio.sleep(0)

    patch.function(is_wanted, lambda image, order: True)
    patch.attribute(Puller, "run", run)


def reports_success_once(patch: Patch) -> None:
    plain = OrderExecutor._report
    reported = set[object]()

    def report(self: OrderExecutor, running: Any) -> None:
        work = running.order.work()
        if work not in reported:
            plain(self, running)
        if running.status is ReportStatus.SUCCESS:
            reported.add(work)

    patch.attribute(OrderExecutor, "_report", report)


def fails_without_an_error(patch: Patch) -> None:
    def encode(report: Report) -> bytes:
        return encode_report(replace(report, error=""))

    patch.attribute(agent_module, "encode_report", encode)


def reports_another_request_id(patch: Patch) -> None:
    def encode(report: Report) -> bytes:
        return encode_report(replace(report, request_id="another"))

    patch.attribute(agent_module, "encode_report", encode)


def serves_stale_requests(patch: Patch) -> None:
    patch.function(check_token, lambda image, data_id, token, version: None)


def serves_requests_for_other_nodes(patch: Patch) -> None:
    patch.function(check_meant, lambda here, replica: None)


def derives_host_id_from_node_id(patch: Patch) -> None:
    """Derive the host id from the node's name: a wiped disk gets the old host id again."""
    name = uuid.uuid5(uuid.NAMESPACE_DNS, os.environ["STELE_NODE_ID"])
    patch.attribute(identity, "uuid", SimpleNamespace(uuid4=lambda: name))
    _count_by_the_clock(patch)


def acks_without_sessions(patch: Patch) -> None:
    _change_acks(patch, lambda ack: replace(ack, sessions_in_use=()))


def continues_after_the_session_closed(patch: Patch) -> None:
    patch.attribute(OrderExecutor, "_on_epoch", lambda self, image, delta: None)
    patch.attribute(SessionGuard, "check", lambda self: None)


def streams_no_tablets(patch: Patch) -> None:
    plain = Puller.run

    async def run(self: Puller, order: Order, progress: Any) -> None:
        transition = self._follower.image.topology.of_session(order.session)
        if transition is not None and transition.table_id:
            raise RuntimeError("tablets are not supported")
        await plain(self, order, progress)

    patch.attribute(Puller, "run", run)


def prepares_no_resize(patch: Patch) -> None:
    _change_acks(patch, lambda ack: replace(ack, prepared=()))


def never_truncates(patch: Patch) -> None:
    async def run(self: Truncator, order: Order, progress: object) -> None:
        raise RuntimeError("no")

    patch.attribute(Truncator, "run", run)


def serves_truncated_data(patch: Patch) -> None:
    """Accept requests for data that the schema no longer has."""
    plain = check_token

    def check(image: Image, data_id: str, token: int, version: int) -> object:
        known = image.schema.of_data(data_id) is not None
        return plain(image, data_id, token, version) if known else None

    patch.function(check_token, check)


def serves_unread_column_versions(patch: Patch) -> None:
    def is_newer(self: Judge, request: JudgedRequest) -> bool:
        return request.version > self._follower.image.topology.version

    patch.attribute(Judge, "_is_newer", is_newer)


def answers_no_table_version(patch: Patch) -> None:
    patch.attribute(Judge, "newer_table_version", lambda self, request: 0)


def accepts_dropped_columns(patch: Patch) -> None:
    patch.attribute(node_http, "check_columns", lambda schema, row: None)


def starts_from_an_older_copy(patch: Patch) -> None:
    """Ignore the node's earlier acknowledgements."""

    async def newest_ack(*_: object) -> None: ...

    patch.attribute(member, "newest_ack", newest_ack)
    _count_by_the_clock(patch)


def follows_a_recovered_log(patch: Patch) -> None:
    patch.function(check_stray, lambda chain, offset, value: None)


def encodes_acks_wrongly(patch: Patch) -> None:
    patch.attribute(agent_module, "encode_ack", lambda ack: encode_ack(ack)[2:])


BROKEN = {
    encodes_acks_wrongly: ("encoding", three_join),
    acks_a_version_ahead: ("ack-tells-what-is-applied", three_join),
    acks_another_state_id: ("ack-is-of-this-log", three_join),
    acks_without_host_id: ("host-id-is-the-rows", three_join),
    repeats_the_sequence: ("ack-goes-up", three_join),
    uses_a_future_version: ("version-in-use", three_join),
    acks_before_its_row: ("no-ack-before-the-row", three_join),
    boot_ids_decrease: ("boot-id-goes-up", one_is_killed_and_comes_back),
    never_ends_sessions: ("session-ends", None),
    stops_sending_acks: ("heartbeat", None),
    accepts_old_terms: ("old-term-is-refused", orders_are_judged),
    accepts_old_indices: ("old-index-is-refused", orders_are_judged),
    accepts_orders_of_other_logs: ("other-log-is-ignored", orders_are_judged),
    accepts_orders_of_closed_sessions: ("closed-session-is-refused", orders_are_judged),
    reports_success_once: ("done-is-answered-again", orders_are_judged),
    fails_without_an_error: ("failure-says-why", orders_are_judged),
    reports_another_request_id: ("report-names-its-order", a_fourth_joins),
    serves_requests_for_other_nodes: ("request-for-another-node", requests_are_judged),
    serves_stale_requests: ("stale-request-is-refused", requests_are_judged),
    streams_no_tablets: ("tablets-move", a_tablet_moves),
    prepares_no_resize: ("resize-is-prepared", a_tablet_moves),
    never_truncates: ("truncates", a_keyspace_is_truncated),
    serves_truncated_data: ("truncated-data-is-refused", a_keyspace_is_truncated),
    serves_unread_column_versions: ("newer-columns-are-read", columns_change),
    answers_no_table_version: ("newer-version-is-answered", columns_change),
    accepts_dropped_columns: ("missing-column-is-refused", columns_change),
    acks_without_sessions: ("session-is-reported", a_session_closes),
    continues_after_the_session_closed: ("session-ends", a_session_closes),
    derives_host_id_from_node_id: ("wiped-disk-is-refused", a_disk_is_wiped),
    starts_from_an_older_copy: ("older-copy-is-refused", a_copy_is_put_back),
    follows_a_recovered_log: ("recovered-log-is-left", the_log_is_recovered),
}
"""The bug, the rule that the kit must report, and the scene that shows it. None: any scene may show it."""


if __name__ == "__main__":
    with Patch() as planted:
        {bug.__name__: bug for bug in BROKEN}[sys.argv[1]](planted)
        code = run_service(main)
    raise SystemExit(code)
