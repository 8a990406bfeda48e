"""The demo in a browser: every epoch live and without a gap, and afterwards any past epoch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from stele.domain.names import OWNS_TOKENS
from tests.console.browser import PICTURES, Watched
from tests.end_to_end.demo.demo_run import url_of

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.browser,
]

CHOSEN = (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)
"""Points in the history that the test goes back to, as fractions of it."""


def newest(directory: Path) -> int:
    answer = httpx.get(f"{url_of(directory, 'metadata-log')}/v1/topology", timeout=240)
    epoch: int = answer.json()["epoch"]
    return epoch


def test_page_received_every_epoch_once_and_in_order(watched: tuple[Watched, Path]) -> None:
    """The coordinator and the metadata-log were killed meanwhile."""
    page, directory = watched
    end = newest(directory)
    page.until(f"globalThis.steleConsole.state.newest >= {end}")
    begun: int = page.page.evaluate("globalThis.begun")
    seen: list[tuple[int, str, float, bool]] = page.page.evaluate("globalThis.seen")
    epochs = [epoch for epoch, *_ in seen]
    assert epochs == list(range(begun + 1, epochs[-1] + 1))
    assert epochs[-1] >= end
    assert len(epochs) > 50
    asked = {"from": begun + 1, "limit": len(epochs)}
    theirs = dict[int, str]()
    while len(theirs) < len(epochs):
        url = f"{url_of(directory, 'metadata-log')}/v1/epochs"
        rows = httpx.get(url, params=asked, timeout=240).json()
        assert rows
        theirs |= {row["epoch"]: row["state_id"] for row in rows}
        asked = {"from": rows[-1]["epoch"] + 1, "limit": len(epochs) - len(theirs)}
    assert {epoch: state_id for epoch, state_id, *_ in seen} == theirs
    delays = sorted(delay for *_, delay, live in seen if live)
    told = {
        "epochs": len(epochs),
        "median_ms": delays[len(delays) // 2],
        "p95_ms": delays[int(0.95 * len(delays))],
        "worst_ms": delays[-1],
    }
    PICTURES.mkdir(parents=True, exist_ok=True)
    (PICTURES / "demo.json").write_text(json.dumps(told, indent=2) + "\n")
    assert not page.complaints


def test_past_epochs_show_the_nodes_and_owners_of_that_epoch(watched: tuple[Watched, Path]) -> None:
    """Move the slider of the time line backwards and forwards."""
    page, directory = watched
    log, end = url_of(directory, "metadata-log"), newest(directory)
    shown = page.page
    shown.goto(f"{page.url}/#/nodes?map=*tokens")
    moved = set[str]()
    for part in (*reversed(CHOSEN), *CHOSEN):
        epoch = max(1, round(part * end))
        shown.locator("input.slider").fill(str(epoch))
        page.until(f"globalThis.steleConsole.state.overview?.epoch === {epoch}")
        page.until(MAP_OF % epoch)
        there = httpx.get(f"{log}/v1/nodes", params={"epoch": epoch}, timeout=240).json()["nodes"]
        rows: list[dict[str, Any]] = shown.evaluate("globalThis.steleConsole.state.overview.nodes")
        assert {row["node_id"]: row["state"] for row in rows} == {
            node["node_id"]: node["state"] for node in there
        }
        for node in there:
            if node["state"] != "left":
                expect(shown.locator(f"[data-node={node['node_id']}]")).to_have_count(1)
            moved.add(node["state"])
        owners = shown.evaluate(OWNERS)
        tokens = {t: n["node_id"] for n in there if n["state"] in OWNS_TOKENS for t in n["tokens"]}
        assert owners == [tokens[token] for token in sorted(tokens)]
    assert "normal" in moved


MAP_OF = """((known) => !known.overview.maps.length || known.map?.epoch === %d)(
    globalThis.steleConsole.state)"""
"""There is no map before the first node has tokens."""
OWNERS = """() => {
    const { map } = globalThis.steleConsole.state;
    if (map?.placement !== "*tokens") return [];
    const ends = [];
    for (let at = 0; at + 1 < map.rows; at++) ends.push(map.nodes[map.replicas[at]]);
    return ends;
}"""
"""The owner of each range of the token ring, except the last range, which wraps around."""


def test_diff_in_the_console_equals_the_diff_of_the_command_line(
    watched: tuple[Watched, Path],
) -> None:
    page, directory = watched
    log, end = url_of(directory, "metadata-log"), newest(directory)

    def states(epoch: int) -> dict[str, str]:
        there = httpx.get(f"{log}/v1/nodes", params={"epoch": epoch}, timeout=240).json()["nodes"]
        return {node["node_id"]: node["state"] for node in there}

    for first, last in ((1, end // 3), (end // 3, end // 2), (end // 2, end)):
        before, after = states(first), states(last)
        page.page.goto(f"{page.url}/#/history?from={first}&to={last}")
        title = f"Epoch {first} to epoch {last}"
        expect(page.page.locator("h2", has_text=title)).to_be_visible()
        expect(page.page.locator(".diff li").first).to_be_visible()
        nodes = page.page.get_by_label("Nodes", exact=True)
        lines = diff_lines_of(directory, first, last)
        found = page.page.get_by_text(f"All {len(lines)} changed fields and ranges")
        expect(found).to_be_visible()
        shown = page.page.get_by_label("All changes").locator("li").all_text_contents()
        assert [text[0] for text in shown] == [line[0] for line in lines], "signs, in their order"
        for node_id in sorted(after):
            if before.get(node_id) != after[node_id]:
                expect(nodes).to_contain_text(node_id)


def diff_lines_of(directory: Path, first: int, last: int) -> list[str]:
    """Return the lines of ``stele diff``."""
    arguments = ["diff", str(first), str(last), "--dir", str(directory)]
    done = subprocess.run(
        [sys.executable, "-m", "stele.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "COLUMNS": "1000"},
    )
    return done.stdout.splitlines()


def test_health_page_shows_the_spark_pipeline(watched: tuple[Watched, Path]) -> None:
    """The real Spark job reports its own state."""
    page, _ = watched
    page.page.goto(f"{page.url}/#/health")
    row = page.page.locator("tr[data-cluster=demo]")
    expect(row).to_contain_text("running")
    expect(row).to_contain_text("0 records")
    page.picture("pipeline")
