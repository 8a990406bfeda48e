"""Decisions about tablets by the balancer or a person, read from the log backwards.

The end of a request is read before its start. Only the requests that were under way at one time are
kept meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from stele.domain.model.requests import Request
from stele.domain.model.schema import Keyspace, Table
from stele.domain.names import BALANCER, UNFINISHED, RequestStatus
from stele.words.facts import EpochRow, Fact, fact_words, flat

FACTS: Final = (
    *("RequestChanged", "CommandRefused", "BalancingSwitched"),
    *("KeyspaceChanged", "TableChanged"),
)
"""Facts that contain a decision or a name in it."""
COMMANDS: Final = frozenset(
    {
        *("tablet_migration", "tablet_resize", "tablet_repair", "table_repair"),
        *("table_snapshot", "table_restore", "tablet_restore"),
        *("keyspace_rf_change", "cancel"),
        *("switch_balancing_off", "switch_balancing_on"),
    }
)
"""Commands whose refusals are shown."""


class BalancerDecision(msgspec.Struct, frozen=True, kw_only=True):
    """A decision: a move, split, merge, repair, replication, cancel, switch or refusal.

    ``outcome`` is the request's status. For decisions that take effect at once it is done or
    refused. ``detail`` adds to it. ``took_s`` is the time from the request to its end. Tablets are
    those at the time of the request.
    """

    epoch: int
    at_ms: int
    kind: str
    what: str
    by: str
    reason: str
    outcome: str
    detail: str = ""
    took_s: float | None = None
    request_id: str = ""
    table: str = ""
    tablet: int | None = None
    from_node: str = ""
    to_node: str = ""
    to_shard: int | None = None
    tablets_before: int | None = None
    tablets: int | None = None


class Wanted(msgspec.Struct, frozen=True):
    """Filter of decisions by actor, table and tablet. An empty field or None matches any."""

    by: str = BALANCER
    table: str = ""
    tablet: int | None = None

    def is_by(self, actor: str) -> bool:
        return not self.by or actor == self.by

    def is_about(self, request: Request, names: Mapping[str, str]) -> bool:
        of = names.get(request.table_id or request.keyspace_id, "")
        inside = self.table == of or (not request.table_id and self.table.startswith(f"{of}."))
        if self.table and not inside:
            return False
        return self.tablet is None or (_is_of_one_tablet(request) and request.tablet == self.tablet)

    def is_named_in(self, text: str) -> bool:
        """Return True if the text of a refusal names the wanted table and tablet."""
        if not self.table:
            return True
        tablet = "" if self.tablet is None else rf"tablet {self.tablet} of "
        pattern = rf"{tablet}(?<![\w.-]){re.escape(self.table)}(?![\w-]|\.\w)"
        return re.search(pattern, text, re.IGNORECASE) is not None

    def is_inside(self, scope: str) -> bool:
        """Return True if a switch of this scope applies to the wanted table."""
        inside = scope in ("", self.table) or self.table.startswith(f"{scope}.")
        return self.tablet is None and (not self.table or inside)


class DecisionHistory:
    """The fold over epochs, the newest first.

    It adds to ``names`` of keyspaces and tables by id.
    """

    def __init__(self, wanted: Wanted, names: dict[str, str]) -> None:
        self._wanted = wanted
        self._names = names
        self._newest: dict[str, Request] = {}
        """The newest row of each request whose start was not read yet."""

    def add(self, row: EpochRow) -> Iterator[BalancerDecision]:
        """Yield the decisions of an epoch, the last one first."""
        facts = [*flat(row.facts)]
        for fact in facts:
            self._learn(fact)
        if row.command == "cancel":
            yield from self._cancel(row, facts)
        for fact in reversed(facts):
            match fact.get("type"):
                case "RequestChanged":
                    yield from self._request(row, fact)
                case "CommandRefused":
                    yield from self._refusal(row, fact)
                case "BalancingSwitched":
                    yield from self._switch(row, fact)

    def _request(self, row: EpochRow, fact: Fact) -> Iterator[BalancerDecision]:
        request = _request_of(fact)
        if request is None or not _is_of_tablets(request) or not self._wanted.is_by(request.actor):
            return
        newest = self._newest.setdefault(request.request_id, request)
        if request.submitted_epoch < row.epoch:
            return
        del self._newest[request.request_id]
        if self._wanted.is_about(newest, self._names):
            yield self._decision(newest)

    def _decision(self, request: Request) -> BalancerDecision:
        kind, of = _kind(request), request.table_id or request.keyspace_id
        name = self._names.get(of, of)
        ended = request.status not in UNFINISHED
        took_s = (request.finished_at_ms - request.submitted_at_ms) / 1000
        return BalancerDecision(
            epoch=request.submitted_epoch,
            at_ms=request.submitted_at_ms,
            kind=kind,
            what=_words(request, kind, name),
            by=request.actor,
            reason=request.reason,
            outcome=request.status,
            detail=request.error,
            took_s=took_s if ended else None,
            request_id=request.request_id,
            table=name if request.table_id else "",
            tablet=request.tablet if _is_of_one_tablet(request) else None,
            from_node=request.from_node,
            to_node=request.to_node,
            to_shard=request.to_shard if request.to_shard >= 0 else None,
            tablets_before=request.tablet_count_before if request.resizes else None,
            tablets=request.tablet_count if request.resizes else None,
        )

    def _cancel(self, row: EpochRow, facts: Sequence[Fact]) -> Iterator[BalancerDecision]:
        targets = [r for f in facts if f.get("type") == "RequestChanged" and (r := _request_of(f))]
        if not targets or not self._wanted.is_by(row.actor):
            return
        target, names = targets[0], self._names
        is_shown = _is_of_tablets(target) or row.actor == BALANCER
        if is_shown and self._wanted.is_about(target, names):
            about = self._decision(target).what if _is_of_tablets(target) else _plain(target, names)
            yield _at_once(row, "cancel", f"cancel {about}", target.request_id)

    def _refusal(self, row: EpochRow, fact: Fact) -> Iterator[BalancerDecision]:
        wanted, actor = self._wanted, str(fact["actor"])
        is_shown = fact["command"] in COMMANDS and wanted.is_by(actor)
        if is_shown and wanted.is_named_in(fact["message"]):
            yield BalancerDecision(
                epoch=row.epoch,
                at_ms=row.at_ms,
                kind="refusal",
                what=str(fact["command"]),
                by=actor,
                reason=str(fact["reason"]),
                outcome="refused",
                detail=f"{fact['code']}: {fact['message']}",
                request_id=str(fact["request_id"]),
            )

    def _switch(self, row: EpochRow, fact: Fact) -> Iterator[BalancerDecision]:
        of = str(fact["of"])
        name = self._names.get(of, of)
        if self._wanted.is_by(row.actor) and self._wanted.is_inside(name):
            words = fact_words({**fact, "of": name})
            yield _at_once(row, "switch", words, row.request_id)

    def _learn(self, fact: Fact) -> None:
        """Add the names in a fact. The newest name is read first, and is never replaced."""
        try:
            match fact.get("type"):
                case "KeyspaceChanged":
                    keyspace = msgspec.convert(fact["keyspace"], Keyspace)
                    self._names.setdefault(keyspace.keyspace_id, keyspace.name)
                case "TableChanged":
                    table = msgspec.convert(fact["table"], Table)
                    of = self._names.get(table.keyspace_id, table.keyspace_id)
                    self._names.setdefault(table.table_id, f"{of}.{table.name}")
        except msgspec.ValidationError:
            return


def _request_of(fact: Fact) -> Request | None:
    """Return the request of a fact; None if this build cannot read it."""
    try:
        return msgspec.convert(fact["request"], Request)
    except msgspec.ValidationError:
        return None


def _is_of_tablets(request: Request) -> bool:
    if request.replication:
        return True
    return bool(request.table_id) and (request.moves_replica or request.resizes or request.repairs)


def _is_of_one_tablet(request: Request) -> bool:
    """Return True if the request is about a single tablet."""
    return request.moves_replica or request.stays_in_place


def _kind(request: Request) -> str:
    if request.tag:
        return "restore" if request.restore_id else "snapshot"
    if request.repairs:
        return "repair"
    if request.resizes:
        return _resize_kind(request)
    if not request.moves_replica:
        return "replication"
    if not request.recounts:
        return "move"
    return "add replica" if request.to_node else "delete replica"


def _resize_kind(request: Request) -> str:
    if not request.tablet_count_before:
        return "resize"
    return "split" if request.tablet_count > request.tablet_count_before else "merge"


def _words(request: Request, kind: str, name: str) -> str:
    if request.resizes:
        return f"{kind} {name} {_numbers(request)}"
    if request.tag:
        tablet = f" {request.tablet}" if request.restores_tablet else ""
        return f"{kind} {name}{tablet} {'from' if request.restore_id else 'as'} {request.tag}"
    if not _is_of_one_tablet(request):
        to = f" to {request.wanted.words()}" if request.replication else ""
        return f"{kind} {name}{to}{request.among.words()}"
    return f"{kind} {name} {request.tablet}{request.ways()}{request.among.words()}"


def _numbers(request: Request) -> str:
    before = f"{request.tablet_count_before} " if request.tablet_count_before else ""
    return f"{before}to {request.tablet_count}"


def _plain(request: Request, names: Mapping[str, str]) -> str:
    id_ = request.table_id or request.keyspace_id
    return f"{request.kind} {request.node_id or names.get(id_, id_)}".rstrip()


def _at_once(row: EpochRow, kind: str, what: str, request_id: str) -> BalancerDecision:
    return BalancerDecision(
        epoch=row.epoch,
        at_ms=row.at_ms,
        kind=kind,
        what=what,
        by=row.actor,
        reason=row.reason,
        outcome=RequestStatus.DONE,
        request_id=request_id,
    )
