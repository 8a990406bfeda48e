"""Pages of the console in a real Chromium."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Error, Page, expect, sync_playwright

from tests.chromium import executable, is_skipped
from tests.polling import wait_until

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "build" / "console"
WIDTH, HEIGHT = 1280, 860
DEADLINE_MS = 240_000
"""Limit of each wait. Playwright's five seconds are too few on a busy machine."""
SHOWN = """(() => {
    const { place, newest, trouble, problem, locked, looked } = globalThis.steleConsole?.state ?? {};
    const text = document.body.innerText.slice(0, 400);
    return JSON.stringify({ place, newest, trouble, problem, locked, looked: looked?.at_ms, text });
})()"""
"""Script that describes the page when a wait fails."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """A running Chromium. Fails the test if none is installed; `make test` installs one."""
    if is_skipped():
        pytest.skip("STELE_SKIP_BROWSER is set")
    expect.set_options(timeout=DEADLINE_MS)
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    program = executable()  # before Playwright starts: it asks Playwright for its own Chromium
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=program, args=sandbox)
        except Error as error:
            pytest.fail(
                f"Cannot start Chromium: {str(error).splitlines()[0]}."
                " `python -m tests.chromium` installs one; STELE_SKIP_BROWSER=1 skips these tests."
            )
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A page, and the errors that it reported."""

    def __init__(self, browser: Browser, url: str, theme: str = "light") -> None:
        context = browser.new_context(
            viewport={"width": WIDTH, "height": HEIGHT},
            color_scheme="dark" if theme == "dark" else "light",
        )
        context.set_default_timeout(DEADLINE_MS)
        self.complaints = list[str]()
        self.failed = list[str]()
        """Requests without an answer. A test allows them while it stops a service."""
        self.url = url
        self.page: Page = self._watched(context.new_page())

    def _watched(self, page: Page) -> Page:
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda m: self._said(m.type, m.text))
        page.on("requestfailed", lambda r: self.failed.append(f"{r.url} {r.failure}"))
        return page

    def _said(self, kind: str, text: str) -> None:
        is_network = "Failed to load resource" in text  # the test has stopped the service
        if kind == "error" and not is_network:
            self.complaints.append(text)

    def open(self, place: str = "") -> Page:
        """Open the address, and wait until the page has the state."""
        return self._open(self.page, place)

    def another(self, place: str = "") -> Page:
        """Open another page of this browser in the same way."""
        return self._open(self._watched(self.page.context.new_page()), place)

    def _open(self, page: Page, place: str) -> Page:
        page.goto(self.url + "/" + place)
        self.until("Boolean(globalThis.steleConsole?.state.overview)", page=page)
        return page

    def until(self, condition: str, deadline_s: float = 90.0, page: Page | None = None) -> None:
        """Wait for a condition. Playwright's own wait needs ``eval``, which the policy of the page forbids."""
        page = page or self.page
        try:
            wait_until(lambda: _holds(page, condition), condition, deadline_s)
        except AssertionError as error:
            shown = page.evaluate(SHOWN)
            raise AssertionError(f"{error}; {shown}; {self.complaints}; {self.failed}") from None

    def picture(self, name: str) -> None:
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}.png")


def _holds(page: Page, condition: str) -> bool:
    try:
        return bool(page.evaluate(condition))
    except Error as error:
        if "Execution context was destroyed" in str(error):  # the page loads itself again
            return False
        raise


def serious_faults(page: Page, *rules: str) -> list[str]:
    """Return serious accessibility faults found by axe, by all rules or these: rule and element."""
    options = {"runOnly": {"type": "rule", "values": [*rules]}} if rules else {}
    found = Axe().run(page, options=options).response["violations"]
    return [
        f"{each['id']}: {[node['target'] for node in each['nodes']][:4]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
