"""``stele balance history``: each decision once, with its end, newest first."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.cli.commands import balance
from stele.domain.base import Rejection
from stele.domain.commands import (
    AlterTable,
    Cancel,
    CreateTable,
    DropTable,
    Envelope,
    KeyspaceRfChange,
    MoveTablets,
    RepairTable,
    RepairTablets,
    ResizeTable,
    SwitchBalancingOff,
)
from stele.domain.facts import Epoch
from stele.domain.model.operations import TabletMove, TabletRepair
from stele.domain.model.requests import RequestChanged, named
from stele.domain.model.ring import PlacementDropped
from stele.domain.model.schema import TableDropped, TableOptions
from stele.domain.names import BALANCER, RequestStatus
from stele.domain.staging import Part, of_names
from stele.domain.view import epoch_view
from stele.words.decisions import FACTS, BalancerDecision, DecisionHistory, Wanted
from stele.words.facts import EpochRow
from tests.cli.conftest import Server, Stele, at
from tests.cli.test_tables import KEYSPACE, SONGS
from tests.coordinator.test_tablets import TABLE, tablets, with_table
from tests.coordinator.world import World


def rows_of(epochs: Iterable[Epoch]) -> list[EpochRow]:
    """Return the rows that the metadata-log sends to a caller that selects these facts."""
    names = frozenset(FACTS)
    shown = [
        msgspec.structs.replace(epoch, facts=tuple(of_names(epoch.facts, names)))
        for epoch in epochs
    ]
    return [
        msgspec.convert(msgspec.json.decode(msgspec.json.encode(epoch_view(e))), EpochRow)
        for e in shown
    ]


def decisions_of(world: World, wanted: Wanted = Wanted()) -> list[BalancerDecision]:  # noqa: B008
    schema = world.image.schema
    names = {k.keyspace_id: k.name for k in schema.by_id.values()}
    names |= {t.table_id: schema.full_name(t) for t in schema.tables.values()}
    past = DecisionHistory(wanted, names)
    rows = rows_of(world.epochs)
    return [decision for row in reversed(rows) for decision in past.add(row)]


@cache
def busy_world() -> World:
    """Return a world with moves, a failed move, a split, a merge, and a move by a user."""
    world = with_table("a1 b1 c1", 8)
    assert world.apply(CreateTable("music.bands")) is None
    world.add("d1", rack="r")
    world.run()
    world.nodes["d1"].fails = 2 * world.limits.attempts
    world.balances = True
    world.pass_s(60)
    assert world.apply(AlterTable("music.bands", TableOptions(min_tablet_count=16))) is None
    world.pass_s(30)
    options = TableOptions(max_tablet_count=8)
    fewer = AlterTable("music.bands", options, reset=("min_tablet_count",))
    assert world.apply(fewer) is None
    world.pass_s(60)
    row = tablets(world)[0]
    target = min({*world.nodes} - {*row.reads})
    move = TabletMove(table=TABLE, tablet=0, from_node=row.reads[0], to_node=target)
    assert world.apply(MoveTablets((move,)), "mine") is None
    world.pass_s(60)
    return world


def test_each_request_is_listed_once_with_its_outcome_newest_first() -> None:
    found = [each for each in decisions_of(busy_world()) if each.kind in ("move", "split", "merge")]
    rows = [
        f.request for e in busy_world().epochs for f in e.facts if isinstance(f, RequestChanged)
    ]
    last = {r.request_id: r for r in rows if r.actor == BALANCER}
    assert {each.request_id: each.outcome for each in found} == {
        id_: request.status for id_, request in last.items()
    }
    assert len(found) == len(last)
    assert {each.kind for each in found} == {"move", "split", "merge"}
    assert {each.outcome for each in found} >= {"done", "failed"}
    epochs = [each.epoch for each in found]
    assert epochs == sorted(epochs, reverse=True)
    split = next(each for each in found if each.kind == "split")
    assert (split.what, split.tablets_before, split.tablets) == (
        "split music.bands 8 to 16",
        8,
        16,
    )
    assert split.reason == last[split.request_id].reason
    failed = next(each for each in found if each.outcome == "failed")
    assert failed.detail and failed.detail == last[failed.request_id].error


def test_history_filters_by_table_tablet_and_actor() -> None:
    whole = decisions_of(busy_world())
    of_table = decisions_of(busy_world(), Wanted(table=TABLE))
    assert of_table == [each for each in whole if each.table == TABLE] != []
    tablet = of_table[0].tablet
    of_tablet = decisions_of(busy_world(), Wanted(table=TABLE, tablet=tablet))
    assert of_tablet == [each for each in of_table if each.tablet == tablet]
    users = decisions_of(busy_world(), Wanted(by="ada"))
    assert [each.request_id for each in users if each.kind == "move"] == ["mine"]
    anybody = decisions_of(busy_world(), Wanted(by=""))
    assert {each.by for each in anybody} == {"ada", BALANCER}
    assert len(anybody) == len(whole) + len(users)


def by_balancer(world: World, command: Any, name: str, reason: str = "so") -> Rejection | None:
    envelope = Envelope(request_id=named(name), command=command, actor=BALANCER, reason=reason)
    refused = world.submit(envelope)
    if refused is not None:
        world.history.refuse(envelope, refused)
    return refused


def test_repairs_and_replication_changes_are_listed_with_their_moves() -> None:
    world = with_table("a1 b1 c1", 2)
    world.balances = True
    assert world.apply(RepairTablets((TabletRepair(table=TABLE, tablet=1),)), "tablet") is None
    world.run()
    assert world.apply(RepairTable(TABLE), "table") is None
    world.run()
    assert world.apply(KeyspaceRfChange("music", {"dc1": 3}), "wider") is None
    world.run()
    kinds = Counter(d.kind for d in decisions_of(world, Wanted("")) if not d.kind.startswith("re"))
    assert kinds == {"add replica": 2}
    by_id = {d.request_id: d for d in decisions_of(world, Wanted("")) if d.kind != "add replica"}
    assert by_id["tablet"].what == f"repair {TABLE} 1" and by_id["tablet"].tablet == 1
    assert by_id["table"].what == f"repair {TABLE}" and by_id["table"].tablet is None
    assert by_id["wider"].what == "replication music to dc1=3"
    assert {d.outcome for d in by_id.values()} == {RequestStatus.DONE}

    def about(*args: Any) -> set[str]:
        return {d.request_id for d in decisions_of(world, Wanted("", *args))}

    assert {"tablet", "table", "wider"} <= about(TABLE)
    assert "tablet" in about(TABLE, 1) and not {"table", "wider"} & about(TABLE, 1)
    assert not about("music.bands") - {"wider"}


def test_cancels_refusals_and_switches_are_listed_with_reasons() -> None:
    world = with_table("a1 b1 c1", 8)
    assert world.apply(ResizeTable(TABLE, 16), "split") is None
    assert by_balancer(world, Cancel("split"), "cancel", "not wanted any more") is None
    assert by_balancer(world, ResizeTable(TABLE, 7), "bad") is not None
    assert world.apply(SwitchBalancingOff(TABLE)) is None
    refusal, cancel = decisions_of(world, Wanted(table=TABLE))
    assert (refusal.kind, refusal.outcome, refusal.what) == ("refusal", "refused", "tablet_resize")
    assert refusal.detail.startswith("bad_tablet_count: Table music.songs has 8 tablets")
    assert (cancel.kind, cancel.what) == ("cancel", "cancel split music.songs 8 to 16")
    assert cancel.reason == "not wanted any more"
    assert decisions_of(world, Wanted(table="music.song")) == []
    switch, *_ = decisions_of(world, Wanted(by="", table=TABLE))
    assert (switch.kind, switch.what, switch.by) == (
        "switch",
        "balancing of music.songs is off",
        "ada",
    )
    assert not decisions_of(world, Wanted(by="", table="music.other"))


def test_dropped_tables_keep_their_names_from_the_log() -> None:
    world = with_table("a1 b1 c1", 8)
    assert by_balancer(world, ResizeTable(TABLE, 16), "split") is None
    world.run()
    assert world.apply(DropTable(TABLE)) is None
    world.run()
    (split,) = decisions_of(world, Wanted(table=TABLE))
    assert split.what == "split music.songs 8 to 16"


names = st.sampled_from(["PlacementDropped", "TableDropped"])


@given(st.frozensets(names), st.integers(0, 3))
def test_facts_are_selected_by_name_also_within_parts(wanted: frozenset[str], inside: int) -> None:
    facts = (PlacementDropped("p"), TableDropped("t"))
    parts = (Part("s", 0, facts * inside),)
    (part, *found) = of_names((*parts, *facts), wanted)
    assert isinstance(part, Part)
    plain = [fact for fact in facts if type(fact).__name__ in wanted]
    assert found == plain and [*part.facts] == plain * inside


def serve(server: Server, rows: list[dict[str, Any]], newest: int) -> None:
    page = {**at(newest), "next_cursor": ""}
    server.answer("GET", "/v1/keyspaces", {**page, "keyspaces": [KEYSPACE]})
    server.answer("GET", "/v1/tables", {**page, "tables": [SONGS]})
    server.answer("GET", "/v1/epochs", rows)
    server.answer("GET", "/v1/epochs", [])


def asked_row(epoch: int, status: str, **more: Any) -> dict[str, Any]:
    request = {
        "request_id": f"r-{epoch}",
        "kind": "tablet_migration",
        "status": "pending",
        "table_id": "t-1",
        "tablet": 3,
        "tablet_count": 8,
        "from_node": "n1",
        "to_node": "n4",
        "actor": BALANCER,
        "reason": "n1 has too many",
        "submitted_epoch": epoch,
        "submitted_at_ms": 1_700_000_000_000,
        **more,
    }
    fact = {"type": "RequestChanged", "request": {**request, "status": status}}
    facts = [{"type": "RequestChanged", "request": request}] if status == "pending" else [fact]
    at_epoch = epoch if status == "pending" else more["finished_epoch"]
    return {"epoch": at_epoch, "command": "x", "at_ms": 1_700_000_000_000, "facts": facts}


def test_output_has_reason_outcome_and_duration(server: Server, stele: Stele) -> None:
    end = {"finished_epoch": 8, "finished_at_ms": 1_700_000_004_500, "error": "n4 died"}
    noop = {"epoch": 9, "command": "noop", "facts": []}
    rows = [asked_row(7, "pending"), asked_row(7, "failed", **end), noop]
    serve(server, rows, 9)
    ran = stele.ok("balance", "history", "music.songs", "3")
    lines = ran.out.splitlines()
    assert lines[0].strip() == "decisions from epoch 1 to 9"
    shown = " ".join(lines[2].split()[2:])
    assert shown == "7 move music.songs 3 from n1 to n4 n1 has too many failed: n4 died 4.5 s"
    (asked, *_) = server.asked_for("/v1/epochs")
    assert asked.query == {"from": ["1"], "limit": ["9"], "facts": [",".join(FACTS)]}
    found = json.loads(stele("balance", "history", "--json").out)
    assert found["epoch"] == 9 and found["decisions"] == []


def test_search_ends_at_the_limit(server: Server, stele: Stele) -> None:
    serve(server, [asked_row(epoch, "pending") for epoch in range(1, 10)], 9)
    found = json.loads(stele("balance", "history", "--limit", "2", "--json").out)
    assert [each["epoch"] for each in found["decisions"]] == [9, 8]
    assert found["looked_back_to"] == 8


def test_search_reads_pages_up_to_a_maximum_of_epochs(
    server: Server, stele: Stele, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balance, "MOST_EPOCHS", 2500)
    serve(server, [], 10_000)
    ran = stele("balance", "history")
    asked = [(a.query["from"], a.query["limit"]) for a in server.asked_for("/v1/epochs")]
    assert asked == [
        (["9901"], ["100"]),
        (["8901"], ["1000"]),
        (["7901"], ["1000"]),
        (["7501"], ["400"]),
    ]
    assert ran.out.splitlines()[-2:] == [
        "nothing was asked for",
        "2500 epochs were searched: --epoch 7500 continues.",
    ]


def test_since_is_an_epoch_or_a_time(server: Server, stele: Stele) -> None:
    serve(server, [], 50)
    assert json.loads(stele("balance", "history", "--since", "20", "--json").out) == {
        "epoch": 50,
        "looked_back_to": 20,
        "decisions": [],
    }
    server.answers.clear()
    serve(server, [asked_row(epoch, "pending") for epoch in range(1, 10)], 9)
    assert json.loads(stele("balance", "history", "--since", "2h", "--json").out)["decisions"] == []
    ran = stele.exits(2, "balance", "history", "--since", "yesterday")
    assert "neither an epoch nor a span of time" in ran.err


def test_search_ends_at_truncated_epochs(server: Server, stele: Stele) -> None:
    serve(server, [], 500)
    server.answers.pop(("GET", "/v1/epochs"))
    server.answer("GET", "/v1/epochs", [asked_row(450, "pending")])
    server.answer("GET", "/v1/epochs", [])
    gone = {"code": "epoch_truncated", "message": "It is gone."}
    server.answer("GET", "/v1/epochs", gone, status=404)
    found = json.loads(stele("balance", "history", "--json").out)
    assert [each["epoch"] for each in found["decisions"]] == [450]
    assert found["looked_back_to"] == 401
