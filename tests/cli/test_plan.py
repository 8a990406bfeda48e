"""``stele plan``: its requests and its output."""

from __future__ import annotations

import msgspec
import pytest

from stele.cli.commands.plan import COMMANDS
from stele.coordinator.dry_run import dry_run, with_sizes
from stele.coordinator.model import Observed
from stele.domain.commands import (
    AnyCommand,
    CreateKeyspace,
    Leave,
    MoveTablets,
    Remove,
    Replace,
    SetSetting,
)
from stele.domain.model.operations import KeyspaceRfChange, ResizeTable, TabletMove
from stele.domain.model.settings import MIB
from stele.domain.names import WaitKind
from stele.domain.planner.planned import TableSizes
from stele.domain.topology.operations.table import OPERATIONS, Operation
from stele.domain.view import section
from stele.runtime.answers.coordinator import BlockerAnswer, WaitProgress
from stele.runtime.answers.plans import PlanAnswer, PlanVerdict
from stele.runtime.answers.tablet_balancer import SizesAnswer
from tests.cli.conftest import Server, Stele
from tests.cli.test_changes import IDENTITY
from tests.coordinator.test_dead_node_removal import two_of_a_rack
from tests.coordinator.test_preflight import envelope
from tests.coordinator.test_preflight import joining as join_of
from tests.coordinator.test_tablets import TABLE, tablets, with_table
from tests.coordinator.world import SimNode, World, three_nodes


def answer_of(
    world: World, command: AnyCommand, held: dict[str, int], rate: float | None
) -> PlanAnswer:
    """Return the answer of a coordinator. The nodes hold data of the first keyspace or table."""
    world.nodes["a2"] = SimNode("a2")
    world.pass_s(1)
    brain = world.brain
    seen = Observed(world.image, brain.acks, brain.reports, brain.term, world.now_s)
    found = dry_run(brain.memory, seen, world.limits, envelope(command))
    assert isinstance(found, PlanAnswer)
    data = next(iter(world.image.schema.all_data()))
    by_data = {node_id: {data.data_id: size_bytes} for node_id, size_bytes in held.items()}
    return with_sizes(found, world.image, by_data, rate)


def sent(server: Server) -> dict[str, object]:
    (asked,) = server.asked_for("/v1/plan")
    found: dict[str, object] = msgspec.json.decode(asked.body)
    return found


def test_a_plan_shows_steps_ranges_copies_bytes_and_time(server: Server, stele: Stele) -> None:
    server.answer("GET", "/v1/node", {**IDENTITY, "num_tokens": 2})
    found = answer_of(three_nodes(rf=3), join_of("a2", "a"), {"a1": 10_000_000}, 1_000_000.0)
    server.answer("POST", "/v1/plan", found)
    ran = stele.ok("plan", "join", server.url, "--rate", "1000000")
    body = sent(server)
    command = body["command"]
    assert isinstance(command, dict)
    assert (command["type"], command["node_id"]) == ("join", "n3")
    assert body["bytes_per_s"] == 1_000_000
    assert not server.asked_for("/v1/commands")
    lines = [" ".join(line.split()) for line in ran.out.splitlines()]
    share = f"{100 * found.streams[0].share:.1f} %"
    changing = found.plan.placements[0].changing
    for line in (
        "feasible: join a2 starts at once",
        f"planned at epoch {found.epoch}; nothing is done",
        "write_both_read_old yes yes",
        "write_both_read_new no",
        f"placement dc1:3 (library): {changing} ranges change, {share} of the ring; it has 7 now",
        f"dc1:3 a2 0.0 % {share}",
    ):
        assert line in lines, (line, ran.out)
    (stream,) = (line for line in lines if line.startswith(f"a2 {changing} "))
    assert stream.startswith(f"a2 {changing} a1 about ")
    assert lines[-1].startswith("in all: about ") and "1.0 MB/s a node" in lines[-1]


@pytest.mark.parametrize(
    ("rate", "takes"),
    [
        (77_000_000.0, "about 4.0 s (1.0 MB/s a node by stream_mib_per_s);"),
        (
            None,
            "at least 4.0 s (1.0 MB/s a node by stream_mib_per_s, no rate was measured yet);",
        ),
    ],
)
def test_estimated_time_respects_the_stream_limit(
    server: Server, stele: Stele, rate: float | None, takes: str
) -> None:
    server.answer("GET", "/v1/node", {**IDENTITY, "num_tokens": 2})
    world = three_nodes(rf=3)
    assert world.apply(SetSetting("stream_mib_per_s", "1")) is None
    share = (
        answer_of(world, join_of("a2", "a"), {"a1": 1}, None).plan.placements[0].nodes["a2"].after
    )
    found = answer_of(world, join_of("a2", "a"), {"a1": round(4 * MIB / share)}, rate)
    server.answer("POST", "/v1/plan", found)
    ran = stele("plan", "join", server.url)
    assert takes in ran.out, ran.out


def test_a_plan_of_a_tablet_names_its_table(server: Server, stele: Stele) -> None:
    world = with_table("a1 b1 c1", 4)
    source, *_ = replicas = tablets(world)[0].reads
    (target,) = {"a1", "b1", "c1"} - {*replicas}
    move = TabletMove(table=TABLE, tablet=0, from_node=source, to_node=target)
    found = answer_of(world, MoveTablets((move,)), {}, None)
    server.answer("POST", "/v1/plan", found)
    place = {"epoch": found.epoch, "state_id": "ab", "next_cursor": ""}
    view = {**place, "keyspaces": section(world.image, "keyspaces")}
    server.answer("GET", "/v1/keyspaces", view)
    server.answer("GET", "/v1/tables", {**place, "tables": section(world.image, "tables")})
    ran = stele.ok("plan", "move-tablet", TABLE, "0", "--from", source, "--to", target)
    lines = [" ".join(line.split()) for line in ran.out.splitlines()]
    about = f"tablet_migration of {TABLE} tablet 0 from {source} to {target}"
    assert lines[0] == f"feasible: {about} starts at once"
    assert f"{TABLE}: 1 tablet changes, 25.0 % of the ring; it has 4 now" in lines
    assert any(line.startswith(f"{TABLE} {target} ") for line in lines)
    assert "tablets:" not in ran.out


def test_resize_plan_warns_that_the_balancer_may_undo_it(server: Server, stele: Stele) -> None:
    world = with_table("a1 b1 c1", 4)
    found = answer_of(world, ResizeTable(TABLE, 8), {}, None)
    server.answer("POST", "/v1/plan", found)
    place = {"epoch": found.epoch, "state_id": "ab", "next_cursor": ""}
    for name in ("keyspaces", "tables"):
        server.answer("GET", f"/v1/{name}", {**place, name: section(world.image, name)})
    sizes = TableSizes(
        table=TABLE,
        tablets=4,
        known=0,
        size_bytes=0,
        target_bytes=1,
        largest=(),
        wanted=4,
        why="it is small",
    )
    answer = SizesAnswer(epoch=found.epoch, state_id="ab", sizes=sizes)
    server.answer("GET", "/v1/balance/sizes", answer)
    ran = stele.ok("plan", "resize-table", TABLE, "8")
    assert f"{TABLE}: 4 tablets become 8; no data moves" in ran.out.splitlines()
    assert "copies held" not in ran.out
    assert "the balancer may change it back to 4 tablets: it is small." in ran.out


def test_plan_of_a_replication_change_has_the_keyspace_name(server: Server, stele: Stele) -> None:
    world = three_nodes(rf=1)
    found = answer_of(world, KeyspaceRfChange("library", {"dc1": 2}), {}, None)
    server.answer("POST", "/v1/plan", found)
    place = {"epoch": found.epoch, "state_id": "ab", "next_cursor": ""}
    server.answer("GET", "/v1/keyspaces", {**place, "keyspaces": section(world.image, "keyspaces")})
    ran = stele.ok("plan", "alter-keyspace", "library", "--replication", "dc1=2")
    assert found.plan.request.request_id not in ran.out
    assert "\nkeyspace library: " in ran.out and "\nlibrary " in ran.out


def test_unknown_sizes_and_times_are_shown_as_unknown(server: Server, stele: Stele) -> None:
    server.answer("GET", "/v1/node", IDENTITY)
    server.answer("POST", "/v1/plan", answer_of(three_nodes(), join_of("a2", "a"), {}, None))
    ran = stele("plan", "join", server.url)
    assert "in all: unknown, time unknown (no rate was measured yet)" in ran.out


def test_infeasible_plan_shows_the_reason_and_a_hint(server: Server, stele: Stele) -> None:
    found = answer_of(three_nodes(rf=1), Remove(node_id="a1"), {}, None)
    server.answer("POST", "/v1/plan", found)
    ran = stele.exits(1, "plan", "remove", "a1")
    assert ran.out.startswith("not feasible: remove a1 would fail: ") and "force" in ran.out
    assert "declares dead for good: a1" in ran.out


@pytest.mark.parametrize(
    ("waited_s", "first", "delay"),
    [
        (0.1, "feasible: decommission c1 starts at once", ""),
        (60.0, "feasible, with a delay: decommission c1 would wait", "the cause is n3: is slow"),
    ],
)
def test_plan_shows_only_long_waits_as_a_delay(
    server: Server, stele: Stele, waited_s: float, first: str, delay: str
) -> None:
    blocker = BlockerAnswer("n3", "is slow", 0.1)
    wait = WaitProgress((), "version 5 everywhere", (blocker,), WaitKind.APPLIED, waited_s)
    found = answer_of(three_nodes(rf=2), Leave("c1"), {}, None)
    waits = msgspec.structs.replace(
        found, verdict=PlanVerdict.WAITS, wait=msgspec.structs.replace(wait, cause="n3")
    )
    server.answer("POST", "/v1/plan", waits)
    ran = stele("plan", "decommission", "c1")
    assert ran.out.splitlines()[0] == first
    assert ("could delay it: " in ran.out) == bool(delay)
    assert delay in ran.out


def test_forced_replacement_is_shown_with_both_nodes_and_each_source_once(
    server: Server, stele: Stele
) -> None:
    """Ranges with one replica have no source: their writes are given up."""
    world = three_nodes(rf=1)
    for rf in (2, 3):
        assert world.apply(CreateKeyspace(f"of{rf}", {"dc1": rf})) is None
    world.crash("c1")
    command = Replace(
        node_id="c2",
        replaced_id="c1",
        cluster="demo",
        address="http://c2",
        dc="dc1",
        rack="c",
        host_id="host-c2",
        force=True,
    )
    found = answer_of(world, command, {}, None)
    assert {gain.sources for gain in found.plan.gains} >= {(), ("a1",), ("b1",)}
    server.answer("GET", "/v1/node", IDENTITY)
    server.answer("POST", "/v1/plan", found)
    ran = stele("plan", "replace", "c1", server.url, "--force")
    assert "replace c1 by c2" in ran.out.splitlines()[0]
    moves = next(line for line in ran.out.splitlines() if line.startswith("c2 "))
    assert moves.split()[2:5] == ["a1,", "b1", "unknown"]


def test_several_removals_are_planned_as_one(server: Server, stele: Stele) -> None:
    found = answer_of(two_of_a_rack(excluded=True), Remove(node_id="b1"), {}, None)
    whole = msgspec.structs.replace(found.plan.request, request_id="other", node_id="b2")
    plan = msgspec.structs.replace(found.plan, together=(whole,))
    server.answer("POST", "/v1/plan", msgspec.structs.replace(found, plan=plan))
    ran = stele("plan", "remove", "b1", "b2", "--force")
    assert ran.out.startswith("not feasible: remove b1 b2 would fail: ")
    assert [sent(server)["command"], sent(server)["together"]] == [
        {"type": "remove", "node_id": "b1", "ignore_nodes": [], "force": True},
        [{"type": "remove", "node_id": "b2", "ignore_nodes": [], "force": True}],
    ]


def test_plan_of_a_rejected_command_fails_with_the_hint(server: Server, stele: Stele) -> None:
    refusal = {"code": "too_few_nodes", "message": "2 would remain.", "hint": "Add a node first."}
    server.answer("POST", "/v1/plan", refusal, status=409)
    ran = stele.exits(1, "plan", "decommission", "n1")
    assert " ".join(ran.err.split()) == "stele: 2 would remain. Add a node first."


def test_a_plan_as_json_is_the_answer(server: Server, stele: Stele) -> None:
    world = three_nodes(rf=2)
    found = answer_of(world, Leave("c1"), {}, None)
    server.answer("POST", "/v1/plan", found)
    ran = stele("plan", "decommission", "c1", "--json")
    assert msgspec.json.decode(ran.out, type=PlanAnswer) == found
    assert sent(server)["command"] == {"type": "leave", "node_id": "c1"}


@pytest.mark.parametrize("name", COMMANDS)
def test_plan_commands_have_no_options_of_changes(stele: Stele, name: str) -> None:
    shown = stele("plan", name, "--help").out
    assert "--rate" in shown and "--json" in shown and "--url" in shown
    assert "--reason" not in shown and "--wait" not in shown


def test_every_operation_has_a_plan_command(server: Server, stele: Stele) -> None:
    """Each subcommand sends a command. A new operation needs a subcommand."""
    server.answer("GET", "/v1/node", IDENTITY)
    server.answer("POST", "/v1/plan", {"code": "no", "message": "No."}, status=409)
    arguments = {
        "join": [server.url],
        "replace": ["n1", server.url],
        "drop-keyspace": ["library"],
        "alter-keyspace": ["library", "--replication", "dc1=2"],
        "new-cdc-generation": ["--force"],
        "resize-table": ["music.songs", "16"],
        "repair-table": ["music.songs", "--tablet", "3"],
        "snapshot-table": ["music.songs", "--tag", "monday", "--expire", "7d"],
        "restore-table": ["music.songs", "--tag", "monday"],
        "restore-tablet": ["music.songs", "3"],
        "drop-table": ["music.songs"],
        "move-tablet": ["music.songs", "3", "--from", "n1", "--to", "n2"],
    }
    for name in COMMANDS:
        stele("plan", name, *arguments.get(name, ["n1"]))
    bodies = [msgspec.json.decode(asked.body) for asked in server.asked_for("/v1/plan")]
    served = {kind for kind, operation in OPERATIONS.items() if not _moves(operation)}
    goals = {"table_restore"}  # the balancer does what there is to do
    assert {body["command"]["type"] for body in bodies} - goals == {*OPERATIONS} - served


def _moves(operation: Operation) -> bool:
    """Return whether an operation has a command, and has states or declares nodes dead."""
    return operation.command is not None and (bool(operation.states) or operation.excludes_only)
