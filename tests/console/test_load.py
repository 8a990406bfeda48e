"""Pages with a missing part, and pages whose shared worker does not start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Route

from tests.console.browser import Watched, chromium
from tests.console.generated import Generated, large_image, served_beside
from tests.console.process import console
from tests.polling import wait_until

pytestmark = [pytest.mark.browser]

MUTE = """globalThis.SharedWorker = class {
    constructor() { globalThis.workersAsked = (globalThis.workersAsked ?? 0) + 1; }
    port = { postMessage() {}, close() {} };
};"""
"""A worker that neither fails nor answers."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with (
        served_beside(Generated(large_image(4, 16))) as url,
        console(url, tmp_path_factory.mktemp("console")) as address,
    ):
        yield address


def test_page_with_a_missing_module_reloads_itself(browser: Browser, address: str) -> None:
    watched, cut = Watched(browser, address), list[str]()

    def cut_twice(route: Route) -> None:
        if len(cut) < 2:
            cut.append(watched.page.inner_text("#page"))
            route.abort()
        else:
            route.continue_()

    watched.page.route("**/page/ui.js", cut_twice)
    watched.open("#/nodes")
    assert len(cut) == 2
    assert watched.page.evaluate("location.hash") == "#/nodes"
    assert watched.page.evaluate("sessionStorage.length") == 0


def test_page_that_never_loads_reports_it_and_stops(browser: Browser, address: str) -> None:
    watched = Watched(browser, address)
    page, loads = watched.page, list[str]()

    def cut(route: Route) -> None:
        loads.append("")
        route.abort()

    page.route("**/page/ui.js", cut)
    page.add_init_script("sessionStorage.setItem('stele-console-loads', '5')")
    page.clock.install()
    page.goto(address)
    assert "failed to load 6 times" in page.inner_text("#page")
    page.clock.fast_forward(600_000)
    assert "6 times" in page.inner_text("#page")
    assert len(loads) == 1


def test_page_opens_its_own_stream_if_the_shared_worker_does_not_start(
    browser: Browser, address: str
) -> None:
    watched = Watched(browser, address)
    page = watched.page
    page.add_init_script(MUTE)
    page.clock.install()
    page.goto(address)
    wait_until(lambda: page.evaluate("globalThis.workersAsked"), "the worker to be asked")
    assert page.evaluate("globalThis.steleConsole.state.overview") is None
    page.clock.fast_forward(30_000)
    watched.until("globalThis.steleConsole.state.overview")
    assert page.evaluate("globalThis.workersAsked") == 1
