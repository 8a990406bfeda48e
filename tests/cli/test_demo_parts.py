"""The demo's own reasoning: which steps, how long, and when a read or a write counts as wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from stele.cli.demo.checks import Check, Report, read_report
from stele.cli.demo.load import NEVER_SENT, NO_ANSWER, Answer, Load, number_in, value_of
from stele.cli.demo.operation import step_durations
from stele.cli.demo.scenario import STEPS, chosen_steps
from stele.cli.demo.steps.fences import holds
from stele.cli.demo.steps.library import library_files
from stele.cli.errors import CliError
from stele.cli.facts import EpochRow
from stele.cli.models import PlacementRow
from tests.cli.conftest import Server


def test_a_step_brings_those_that_it_needs_in_order() -> None:
    names = [step.name for step in chosen_steps(("join",))]
    assert names == ["members", "library", "load", "join"]
    assert chosen_steps(()) == STEPS
    with pytest.raises(CliError, match="no step 'fly'"):
        chosen_steps(("fly",))


def test_a_report_holds_only_when_every_check_does(tmp_path: Path) -> None:
    report = Report(checks=[Check("a", True, ""), Check("b", False, "why")])
    report.close(1.23)
    assert not report.held
    report.write(tmp_path / "build" / "report.json")
    assert read_report(tmp_path / "build" / "report.json") == report
    report.checks.pop()
    report.close(1)
    assert report.held
    report.failure = "the step did not end"
    report.close(1)
    assert not report.held


def topology(epoch: int, state: str, at_ms: int) -> EpochRow:
    fact = {"type": "TopologyChanged", "topology": {"transition_state": state}}
    return EpochRow(epoch=epoch, command="advance", at_ms=at_ms, facts=(fact,))


def test_steps_last_until_the_next_one_begins() -> None:
    epochs = [
        topology(3, "write_both_read_old", 1_000),
        topology(4, "write_both_read_old", 1_500),
        topology(5, "write_both_read_new", 4_000),
        topology(6, "", 4_250),
    ]
    spans = step_durations(epochs, last=6)
    assert spans == [("write_both_read_old", 3.0), ("write_both_read_new", 0.25)]


def test_a_value_is_known_only_as_its_own_keys() -> None:
    assert number_in(value_of("a", 7), "a") == 7
    assert number_in(value_of("a", 7), "b") == -1
    assert number_in(value_of("a", 7)[:-1], "a") == -1
    assert number_in(b"", "a") == -1


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
def test_only_a_write_that_surely_did_nothing_is_tried_again(answer: Answer, undone: bool) -> None:
    assert answer.is_surely_undone() is undone


async def test_a_read_behind_an_acknowledged_write_is_noticed(server: Server) -> None:
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
        await load._read(key)  # 404: what was acknowledged is gone
        assert len(load.account.stale_reads) == 3


async def test_a_write_without_an_answer_is_unknown_and_may_show_up(server: Server) -> None:
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


async def test_a_lost_write_is_found(server: Server) -> None:
    async with aiohttp.ClientSession() as http:
        load = Load(http)
        load.nodes = (server.url,)
        load._all = [load.keys[0][0]]
        load._all[0].acknowledged = load._all[0].attempted = 1
        assert len(await asyncio.wait_for(load.lost_writes(), 10)) == 1


def test_the_last_range_wraps_around_the_ring() -> None:
    row = PlacementRow(start=10, end=-10, reads=(), writes=())
    assert holds(row, 11)
    assert holds(row, -10)
    assert not holds(row, 10)
    assert not holds(row, 0)


def test_the_library_leaves_out_what_is_no_data(tmp_path: Path) -> None:
    for name in ("a.py", "__pycache__/a.pyc", "site-packages/b.py", "sub/c.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    files, left_out = library_files(tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path, _ in files] == ["a.py", "sub/c.py"]
    assert left_out == 0
