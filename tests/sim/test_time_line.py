"""The page of a run: events by process and time."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from stele.cli.main import run
from stele_simulator.processes.disaster import Disaster
from stele_simulator.processes.run import run_disaster_scenario
from stele_simulator.result import Failure, Result
from stele_simulator.time_line import LOG, REQUESTS, WORLD, events_of, time_line

TRACE = [
    "   0.000000 epoch 1 found by founder: idle version 1 fence 1",
    "   1.000000 cut n1,n12 (3) for 5.5 s",
    "   1.250000 ask SetSetting(name='k1', value='<b>', force=False)",
    "   2.000000 n2 is killed",
    "   2.500000 n2 starts",
    "   3.000000 Redis is away for 2.0 s",
    "   3.500000 w1 is upgraded",
    "   3.600000 n2 is rolled back to the older release",
    "   3.700000 n2 starts, of the older release",
    "   3.800000 n2 has stopped for want of report_sources",
    "   4.000000 n2 says: a node of dc1 in r1 tells cu1 of keyspace k3",
    "   5.000000 w1 is deaf to the log for 2.5 s",
    "what belongs to the line before",
]

QUIET = Disaster(seed=3)
"""Processes that nothing happens to."""


def test_event_is_in_the_lanes_of_the_processes_that_it_names() -> None:
    events = events_of(TRACE)
    assert [event.lanes for event in events] == [
        (LOG,),
        ("n1", "n12"),
        (REQUESTS,),
        ("n2",),
        ("n2",),
        (WORLD,),
        ("w1",),
        ("n2",),
        ("n2",),
        ("n2",),
        ("n2",),
        ("w1",),
    ]
    assert [event.kind for event in events] == [
        *("epoch", "fault", "asked", "fault", "life", "fault"),
        *("life", "life", "life", "fault", "said", "fault"),
    ]
    assert [event.lasts_s for event in events] == [0, 5.5, 0, 0, 0, 2.0, 0, 0, 0, 0, 0, 2.5]


@pytest.fixture(scope="module")
def ran() -> tuple[list[str], Result]:
    lines = list[str]()
    return lines, run_disaster_scenario(QUIET, show=lines.append)


def test_page_has_a_mark_and_a_row_for_each_event(ran: tuple[list[str], Result]) -> None:
    lines, result = ran
    page = time_line(lines, result)
    events = events_of(lines)
    assert len(events) > 50
    for event in events:
        assert page.count(f'href="#e{event.number}"') == page.count(f'id="e{event.number}"') == 1
    assert "passed" in page and "stele sim run --seed 3" in page
    assert "<script" not in page


def test_page_escapes_names_and_shows_the_failure(ran: tuple[list[str], Result]) -> None:
    failure = Failure(
        invariant="I6", expected="<i>no</i>", found="yes & no", at_s=2.25, before=(TRACE[3],)
    )
    page = time_line(TRACE, msgspec.structs.replace(ran[1], failure=failure))
    assert "I6 fails" in page and "&lt;i&gt;no&lt;/i&gt;" in page and "yes &amp; no" in page
    assert "value=&#x27;&lt;b&gt;&#x27;" in page
    assert len(re.findall('class="failed"', page)) == 1


def test_run_writes_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("quiet.json").write_bytes(msgspec.json.encode(QUIET))
    code = run(["sim", "run", "--scenario", "quiet.json", "--html"])
    assert code == 0
    (page,) = tmp_path.glob("*.html")
    assert page.as_uri() in capsys.readouterr().out
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("goes", [True, False])
def test_story_writes_its_page(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    goes: bool,
) -> None:
    story = (Path(__file__).parent / "stories/leave_rolled_back.txt").read_text()
    monkeypatch.chdir(tmp_path)
    Path("it.txt").write_text(story if goes else f"{story}\nnobody understands this\n")
    code = run(["sim", "run", "--scenario", "it.txt", "--html"])
    said, page = capsys.readouterr().out, (tmp_path / "stele-sim-it.html").read_text()
    assert code == (0 if goes else 1) and (tmp_path / "stele-sim-it.html").as_uri() in said
    assert ("went as it is written" if goes else "did not go as it is written") in page
    assert ("nobody understands this" in page) is (not goes)
    assert {"<div>A</div>", "<div>c1</div>", "<div>w1</div>"} <= {
        *re.findall("<div>[A-Za-z0-9]+</div>", page)
    }
    assert ('class="failed"' in page) is (not goes)
