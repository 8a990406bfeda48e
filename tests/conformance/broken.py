"""Agents that break a rule each: ``python -m tests.conformance.broken NAME`` is the node with that bug."""

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
from stele.node.__main__ import main
from stele.node.table_rows import TableRows
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


def _acks(patch: Patch, change: Any) -> None:
    patch.attribute(agent_module, "encode_ack", lambda ack: encode_ack(change(ack)))


def _counts_by_the_clock(patch: Patch) -> None:
    """Boots and acks go up, whatever is on the disk."""
    begun = time.time_ns()
    boot = f"{begun:020d}-"
    _acks(patch, lambda ack: replace(ack, boot_id=boot, sequence=begun + ack.sequence))


def tells_versions_ahead(patch: Patch) -> None:
    _acks(patch, lambda ack: replace(ack, version=ack.version + 1))


def tells_another_state(patch: Patch) -> None:
    _acks(patch, lambda ack: replace(ack, state_id=os.urandom(16)))


def tells_no_host(patch: Patch) -> None:
    _acks(patch, lambda ack: replace(ack, host_id=""))


def does_not_count(patch: Patch) -> None:
    _acks(patch, lambda ack: replace(ack, sequence=1))


def uses_versions_to_come(patch: Patch) -> None:
    _acks(patch, lambda ack: replace(ack, oldest_version_in_use=ack.version + 7))


def boots_go_down(patch: Patch) -> None:
    boot = f"x{10**15 - time.time_ns() // 10**6:020d}"
    _acks(patch, lambda ack: replace(ack, boot_id=boot))


def never_leaves_sessions(patch: Patch) -> None:
    seen = dict[str, None]()

    def change(ack: Ack) -> Ack:
        seen.update(dict.fromkeys(ack.sessions_in_use))
        return replace(ack, sessions_in_use=tuple(seen))

    _acks(patch, change)


def falls_silent(patch: Patch) -> None:
    plain = Agent._ack

    def ack(self: Agent) -> None:
        if self._sequence < 40:
            plain(self)

    patch.attribute(Agent, "_ack", ack)


def speaks_before_it_has_read(patch: Patch) -> None:
    patch.attribute(Gate, "is_open", property(lambda self: True))
    patch.attribute(Agent, "may_speak", lambda self: self.image.epoch > 1)
    plain = vars(member)["admit"]

    said = asyncio.Event()

    async def late(*args: Any, **options: Any) -> None:
        """Or its row is there before it has said anything; the first node has nothing to say before that."""
        with suppress(TimeoutError):
            async with asyncio.timeout(90):
                await said.wait()
        await plain(*args, **options)

    def speaking(ack: Ack) -> Ack:
        said.set()
        return ack

    _acks(patch, speaking)

    patch.attribute(member, "admit", late)


def takes_old_terms(patch: Patch) -> None:
    def accepts(self: OrderExecutor, order: Order, image: Image) -> bool:
        return order.index > self._index

    patch.attribute(OrderExecutor, "_accepts", accepts)


def takes_old_indices(patch: Patch) -> None:
    def accepts(self: OrderExecutor, order: Order, image: Image) -> bool:
        return order.term >= max(image.topology.coordinator.term, self._term)

    patch.attribute(OrderExecutor, "_accepts", accepts)


def takes_orders_of_other_logs(patch: Patch) -> None:
    def on_order(self: Agent, value: bytes) -> None:
        self.offer(decode_order(value))

    patch.attribute(Agent, "on_order", on_order)


def does_what_is_not_wanted(patch: Patch) -> None:
    async def run(self: Puller, order: Order, progress: object) -> None:
        await asyncio.sleep(0)

    patch.function(is_wanted, lambda image, order: True)
    patch.attribute(Puller, "run", run)


def answers_once(patch: Patch) -> None:
    plain = OrderExecutor._report
    told = set[object]()

    def report(self: OrderExecutor, running: Any) -> None:
        work = running.order.work()
        if work not in told:
            plain(self, running)
        if running.status is ReportStatus.SUCCESS:
            told.add(work)

    patch.attribute(OrderExecutor, "_report", report)


def fails_without_a_word(patch: Patch) -> None:
    def encode(report: Report) -> bytes:
        return encode_report(replace(report, error=""))

    patch.attribute(agent_module, "encode_report", encode)


def reports_on_what_nobody_ordered(patch: Patch) -> None:
    def encode(report: Report) -> bytes:
        return encode_report(replace(report, request_id="another"))

    patch.attribute(agent_module, "encode_report", encode)


def serves_stale_requests(patch: Patch) -> None:
    patch.function(check_token, lambda image, data_id, token, version: None)


def takes_what_is_meant_for_others(patch: Patch) -> None:
    patch.function(check_meant, lambda here, replica: None)


def knows_its_host_by_its_name(patch: Patch) -> None:
    """An emptied disk goes by the name that the node had."""
    name = uuid.uuid5(uuid.NAMESPACE_DNS, os.environ["STELE_NODE_ID"])
    patch.attribute(identity, "uuid", SimpleNamespace(uuid4=lambda: name))
    _counts_by_the_clock(patch)


def forgets_to_tell_sessions(patch: Patch) -> None:
    _acks(patch, lambda ack: replace(ack, sessions_in_use=()))


def works_on_when_the_session_has_closed(patch: Patch) -> None:
    patch.attribute(OrderExecutor, "_on_epoch", lambda self, image, delta: None)
    patch.attribute(SessionGuard, "check", lambda self: None)


def streams_no_tablets(patch: Patch) -> None:
    plain = Puller.run

    async def run(self: Puller, order: Order, progress: Any) -> None:
        transition = self._follower.image.topology.of_session(order.session)
        if transition is not None and transition.table_id:
            raise RuntimeError("what is a tablet?")
        await plain(self, order, progress)

    patch.attribute(Puller, "run", run)


def cuts_no_tablets(patch: Patch) -> None:
    _acks(patch, lambda ack: replace(ack, prepared=()))


def never_truncates(patch: Patch) -> None:
    async def run(self: Truncator, order: Order, progress: object) -> None:
        raise RuntimeError("no")

    patch.attribute(Truncator, "run", run)


def knows_no_truncation(patch: Patch) -> None:
    """It judges data that is gone by what it finds no replicas of."""
    plain = check_token

    def check(image: Image, data_id: str, token: int, version: int) -> object:
        known = image.schema.of_data(data_id) is not None
        return plain(image, data_id, token, version) if known else None

    patch.function(check_token, check)


def serves_columns_that_it_has_not_read(patch: Patch) -> None:
    def is_newer(self: Judge, request: JudgedRequest) -> bool:
        return request.version > self._follower.image.topology.version

    patch.attribute(Judge, "_is_newer", is_newer)


def answers_no_table_version(patch: Patch) -> None:
    patch.attribute(Judge, "newer_table_version", lambda self, request: 0)


def takes_columns_that_are_gone(patch: Patch) -> None:
    patch.attribute(TableRows, "check_columns", lambda self, body: None)


def takes_an_older_copy(patch: Patch) -> None:
    """It ignores its earlier acknowledgements."""

    async def newest_ack(*_: object) -> None: ...

    patch.attribute(member, "newest_ack", newest_ack)
    _counts_by_the_clock(patch)


def reads_on_in_a_recovered_log(patch: Patch) -> None:
    patch.function(check_stray, lambda chain, offset, value: None)


def has_an_encoding_of_its_own(patch: Patch) -> None:
    patch.attribute(agent_module, "encode_ack", lambda ack: encode_ack(ack)[2:])


BROKEN = {
    has_an_encoding_of_its_own: ("encoding", three_join),
    tells_versions_ahead: ("ack-tells-what-is-applied", three_join),
    tells_another_state: ("ack-is-of-this-log", three_join),
    tells_no_host: ("host-id-is-the-rows", three_join),
    does_not_count: ("ack-goes-up", three_join),
    uses_versions_to_come: ("version-in-use", three_join),
    speaks_before_it_has_read: ("no-ack-before-the-row", three_join),
    boots_go_down: ("boot-id-goes-up", one_is_killed_and_comes_back),
    never_leaves_sessions: ("session-ends", None),
    falls_silent: ("heartbeat", None),
    takes_old_terms: ("old-term-is-refused", orders_are_judged),
    takes_old_indices: ("old-index-is-refused", orders_are_judged),
    takes_orders_of_other_logs: ("other-log-is-ignored", orders_are_judged),
    does_what_is_not_wanted: ("closed-session-is-refused", orders_are_judged),
    answers_once: ("done-is-answered-again", orders_are_judged),
    fails_without_a_word: ("failure-says-why", orders_are_judged),
    reports_on_what_nobody_ordered: ("report-names-its-order", a_fourth_joins),
    takes_what_is_meant_for_others: ("request-for-another-node", requests_are_judged),
    serves_stale_requests: ("stale-request-is-refused", requests_are_judged),
    streams_no_tablets: ("tablets-move", a_tablet_moves),
    cuts_no_tablets: ("resize-is-prepared", a_tablet_moves),
    never_truncates: ("truncates", a_keyspace_is_truncated),
    knows_no_truncation: ("truncated-data-is-refused", a_keyspace_is_truncated),
    serves_columns_that_it_has_not_read: ("newer-columns-are-read", columns_change),
    answers_no_table_version: ("newer-version-is-answered", columns_change),
    takes_columns_that_are_gone: ("missing-column-is-refused", columns_change),
    forgets_to_tell_sessions: ("session-is-told", a_session_closes),
    works_on_when_the_session_has_closed: ("session-ends", a_session_closes),
    knows_its_host_by_its_name: ("wiped-disk-is-refused", a_disk_is_wiped),
    takes_an_older_copy: ("older-copy-is-refused", a_copy_is_put_back),
    reads_on_in_a_recovered_log: ("recovered-log-is-left", the_log_is_recovered),
}
"""The bug, the rule that the kit must say is broken, and the scene in which it does; None: sooner or later."""


if __name__ == "__main__":
    with Patch() as planted:
        {bug.__name__: bug for bug in BROKEN}[sys.argv[1]](planted)
        code = run_service(main)
    raise SystemExit(code)
