"""Parts of the demo: choice of steps, durations, and the checks of reads and writes."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import aiohttp
import msgspec
import pytest
from rich.console import Console

from stele.cli.errors import CliError
from stele.cli.main import build_app
from stele.cli.places import STACK_FILE
from stele.domain.model.topology import TransitionSummary
from stele.runtime.answers.node import ChangeView
from stele.runtime.answers.tablet_balancer import BalanceAnswer
from stele_harness.demo.checks import Check, Report, read_report
from stele_harness.demo.load import NEVER_SENT, NO_ANSWER, Answer, Load, value_of
from stele_harness.demo.operation import Fault
from stele_harness.demo.rows import ADDED, NUMBER, Acknowledged, RowLoad
from stele_harness.demo.scenario import STEPS, chosen_steps
from stele_harness.demo.site import MOST_RESTARTS, Never, Site
from stele_harness.demo.steps.tablets import check_has_room
from stele_harness.demo.timeline import Timeline
from stele_harness.demo.words import NEXT, PROVES, suggestions
from tests.cli.conftest import Server, transition
from tests.end_to_end.demo.test_demo import CHECKS


def test_chosen_step_includes_its_required_steps_in_order() -> None:
    names = [step.name for step in chosen_steps(("join",))]
    assert names == ["members", "library", "load", "join"]
    assert chosen_steps(()) == STEPS
    with pytest.raises(CliError, match="no step 'fly'"):
        chosen_steps(("fly",))


def test_each_check_prints_what_it_proves() -> None:
    out = Console(file=io.StringIO(), width=200)
    timeline = Timeline(out, Report())
    for name in CHECKS:
        timeline.check(name, True, "seen")
    assert isinstance(out.file, io.StringIO)
    said = out.file.getvalue()
    assert all(f"so: {PROVES[name]}" in said for name in CHECKS)
    assert {*PROVES} == CHECKS


@pytest.mark.parametrize(
    "played", [set[str](), {"members"}, {"members", "library"}, {step.name for step in STEPS}]
)
def test_suggestions_are_valid_command_lines(played: set[str]) -> None:
    for command, text in suggestions(played):
        words = command.rpartition("| ")[2].split()
        assert words[0] == "stele" and text
        _, bound, _ = build_app(words[1]).parse_args(words[1:], exit_on_error=False)
        assert bound.arguments.get("file", "-") == "-", "no other file is there"
    has_library = any("library" in command for command, _ in suggestions(played))
    assert has_library is ("library" in played)


def test_next_steps_are_valid_command_lines_or_pages() -> None:
    root = Path(__file__).parents[2]
    for command, _ in NEXT:
        words = command.split()
        if words[0] == "stele":
            build_app(words[1]).parse_args(words[1:], exit_on_error=False)
        else:
            assert (root / command).exists(), command
    commands = [command for command, _ in NEXT]
    runs_from = commands.index("stele stack up --detach")
    assert commands.index("stele console") > runs_from, "after a demo nothing runs"


def closed(report: Report, at_s: float) -> bool:
    report.close(at_s)
    return report.held


def test_report_passes_only_if_every_check_passes(tmp_path: Path) -> None:
    report = Report(checks=[Check("a", True, ""), Check("b", False, "why")])
    assert not closed(report, 1.23)
    report.write(tmp_path / "build" / "report.json")
    assert read_report(tmp_path / "build" / "report.json") == report
    report.checks.pop()
    assert closed(report, 1)
    report.failure = "the step did not end"
    assert not closed(report, 1)


def test_fault_happens_only_while_data_moves() -> None:
    fault = Fault("coordinator")
    begins, streams, after = (
        msgspec.convert(transition(state, "a", session=session), TransitionSummary)
        for state, session in (
            ("join_group0", ""),
            ("write_both_read_old", "s-1"),
            ("write_both_read_new", ""),
        )
    )
    assert not fault.is_due(None)
    assert not fault.is_due(begins)
    assert fault.is_due(streams)
    fault.fired = True
    assert not fault.is_due(after)
    assert Fault("coordinator").is_due(after), "no look came while it streamed"


@pytest.mark.parametrize(
    ("answer", "undone"),
    [
        (Answer(NEVER_SENT, b""), True),
        (Answer(409, b""), True),
        (Answer(503, b'{"code":"node_left"}'), True),
        (Answer(503, b'{"code":"catching_up"}'), True),
        (Answer(503, b'{"code":"unavailable"}'), False),
        (Answer(503, b'{"code":"outcome_unknown","facts":{"n2":"disk_full: n2: it is"}}'), False),
        (Answer(500, b""), False),
        (Answer(NO_ANSWER, b""), False),
    ],
)
def test_write_is_retried_only_if_it_surely_had_no_effect(answer: Answer, undone: bool) -> None:
    assert answer.is_surely_undone() is undone


async def test_read_older_than_an_acknowledged_write_is_an_error(server: Server) -> None:
    async with aiohttp.ClientSession() as http:
        load = Load(http)
        load.nodes = (server.url,)
        key = load.keys[0][0]
        path = f"/v1/data/library/{key.name}"
        key.acknowledged, key.attempted = 5, 6
        for number, wrong in ((5, 0), (6, 0), (4, 1), (7, 2)):
            server.answers.clear()
            server.answer("GET", path, value_of(key.name, number))
            await load._read(key)
            assert len(load.account.stale_reads) == wrong, number
        server.answers.clear()
        await load._read(key)  # 404: the acknowledged write is lost
        assert len(load.account.stale_reads) == 3


async def test_unanswered_write_is_unknown_and_may_become_visible(server: Server) -> None:
    async with aiohttp.ClientSession() as http:
        load = Load(http)
        load.nodes = (server.url,)
        key = load.keys[0][0]
        path = f"/v1/data/library/{key.name}"
        server.answer("PUT", path, {"code": "unavailable", "message": ""}, status=503)
        await load._write(key)
        assert (key.acknowledged, key.attempted) == (0, 1)
        assert load.account.writes_unknown == 1
        server.answer("GET", path, value_of(key.name, 1))
        await load._read(key)
        assert not load.account.stale_reads


async def test_lost_write_is_detected(server: Server) -> None:
    async with aiohttp.ClientSession() as http:
        load = Load(http)
        load.nodes = (server.url,)
        load._all = [load.keys[0][0]]
        load._all[0].acknowledged = load._all[0].attempted = 1
        assert len(await asyncio.wait_for(load.lost_writes(), 240)) == 1


async def test_client_rereads_columns_after_a_dropped_column_error(
    server: Server,
) -> None:
    async with aiohttp.ClientSession() as http:
        load = RowLoad(http, "loans.counts", 7)
        load.nodes, load.columns = (server.url,), (NUMBER, ADDED)
        key = load.keys[0][0]
        path = f"/v1/data/loans.counts/{key.name}"
        error = {"code": "dropped_column", "message": "", "details": {"table_version": 9}}
        server.answer("PUT", path, error, status=400)
        server.answer("PUT", path, {"timestamp": 5, "version": 1, "epoch": 9})
        await load._write(key)
        assert (load.version, load.dropped_at) == (9, {9})
        assert [*load.columns] == [NUMBER]
        assert load.acknowledged == {key.name: [Acknowledged(5, 1)]}
        assert not load.refused()
        server.answers.clear()
        server.answer("PUT", path, error, status=400)
        await load._write(key)
        assert load.refused(), "a node with older columns than the client's refuses a right row"


def change(time_us: int, number: int, reader: str = "ada") -> ChangeView:
    row = {"desk": "desk", "reader": reader, "title": "dune", NUMBER: number}
    return ChangeView(time_us, b"", "put", row=row)


async def test_missing_or_reordered_changes_of_acknowledged_rows_are_detected() -> None:
    async with aiohttp.ClientSession() as http:
        load = RowLoad(http, "loans.counts", 7)
        load.acknowledged["desk/ada/dune"] = [Acknowledged(1, 1), Acknowledged(3, 2)]
        unknown = change(4, 3)
        assert not load.missing_changes([change(1, 1), change(3, 2), unknown])
        assert load.missing_changes([change(1, 1)]) == ["desk/ada/dune: 2"]
        assert load.missing_changes([change(1, 1, "bob"), change(3, 2)]) == ["desk/ada/dune: 1"]
        assert load.missing_changes([change(3, 2), change(1, 1)])
        assert load.missing_changes([change(1, 1), change(3, 2), change(5, 1)])


@pytest.mark.parametrize(
    ("state", "restarts", "stops"),
    [("given_up", 0, True), ("running", MOST_RESTARTS, True), ("running", 1, False)],
)
async def test_wait_ends_with_the_reason_if_a_process_cannot_continue(
    tmp_path: Path, state: str, restarts: int, stops: bool
) -> None:
    def write(state: str, restarts: int) -> None:
        placements = {"name": "placements", "url": "u", "state": state, "restarts": restarts}
        found = {"pid": 1, "environment": {}, "brokers": [], "redis": {"url": ""}}
        content = msgspec.json.encode({**found, "services": [placements]})
        (tmp_path / STACK_FILE).write_bytes(content)

    log = tmp_path / "services" / "placements" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text("starting\ngetSubject is not supported\n\n")
    write("running", 0)
    tries = list[None]()

    async def never() -> bool:
        tries.append(None)
        write(state, restarts)
        return False

    async with aiohttp.ClientSession() as http:
        with pytest.raises(CliError) as raised:
            await Site(tmp_path, http).until_of("placements", "Spark", never, 0.3)
    assert ("getSubject is not supported" in raised.value.message) is stops
    assert (len(tries) == 1) is stops


def test_full_disk_ends_the_demo_with_a_hint() -> None:
    found = cast(BalanceAnswer, SimpleNamespace(full=("n8",)))
    check_has_room(found, "n7")
    with pytest.raises(Never, match="the disk is more than 98% full, so n8 gets no tablets; make"):
        check_has_room(found, "n8")
