"""One run of the demo for all tests of its checks, its output and a console page that is open meanwhile."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser

from stele.cli.places import is_held, read_stack_file
from stele_harness.demo.checks import read_report
from tests.chromium import is_skipped
from tests.console.browser import Watched, chromium
from tests.end_to_end.demo.demo_run import DemoRun, url_of
from tests.polling import wait_until

DEADLINE_S = 1700.0  # about 90 s on two idle cores

RECORD = """() => {
    const known = globalThis.steleConsole;
    globalThis.seen = [];
    let last = known.state.newest;
    globalThis.begun = last;
    known.listen(() => {
        const now = Date.now();
        const fresh = [];
        for (const told of known.state.epochs) {
            if (told.epoch <= last) break;
            fresh.push([told.epoch, told.state_id, now - told.at_ms, told.live]);
        }
        for (const each of fresh.reverse()) globalThis.seen.push(each);
        last = Math.max(last, known.state.newest);
    });
}"""


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser | None]:
    """None if the browser tests are skipped on purpose: the demo's own checks need no browser."""
    if is_skipped():
        yield None
        return
    with chromium() as found:
        yield found


@pytest.fixture(scope="package")
def demo_run(
    browser: Browser | None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DemoRun]:
    """Run the demo to its end, with a console page open since the first epochs. Its stack still runs."""
    directory = tmp_path_factory.mktemp("demo") / "stack"
    report = directory.parent / "report.json"
    output = directory.parent / "output.txt"
    arguments = ("demo", "--keep", "--dir", str(directory), "--report", str(report))
    with output.open("wb") as out:
        demo = subprocess.Popen(
            [sys.executable, "-m", "stele.cli", *arguments], stdout=out, stderr=subprocess.STDOUT
        )
    try:
        page = None
        if browser is not None:
            wait_until(lambda: is_up(directory) or demo.poll() is not None, "the console", 600)
            assert demo.poll() is None, output.read_text()
            page = Watched(browser, url_of(directory, "console"))
            page.open("#/map")
            page.page.evaluate(RECORD)
        code = demo.wait(DEADLINE_S)
        assert report.exists(), output.read_text()
        found = read_report(report)
        broken = [check for check in found.checks if not check.held]
        assert code == 0, f"{found.failure}\n{broken}\n{output.read_text()[-6000:]}"
        yield DemoRun(directory, output.read_text(), found, page)
    finally:
        if demo.poll() is None:
            demo.terminate()
            demo.wait(240)
        down = [sys.executable, "-m", "stele.cli", "stack", "down", "--dir", str(directory)]
        subprocess.run(down, capture_output=True, timeout=600, check=False)
        assert not is_held(directory), "the stack still runs"
        assert not (directory / "stack.json").exists()


@pytest.fixture(scope="package")
def watched(demo_run: DemoRun) -> tuple[Watched, Path]:
    if demo_run.page is None:
        pytest.skip("STELE_SKIP_BROWSER is set")
    return demo_run.page, demo_run.directory


def is_up(directory: Path) -> bool:
    """Return whether the console and the log answer."""
    found = read_stack_file(directory)
    page = None if found is None else found.service("console")
    try:
        return page is not None and httpx.get(f"{page.url}/api/overview", timeout=240).is_success
    except httpx.TransportError:
        return False
