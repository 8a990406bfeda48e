"""The Chromium of the browser tests: ``python -m tests.chromium`` installs one if none is found.

``STELE_TEST_CHROMIUM`` names an executable. ``STELE_SKIP_BROWSER=1`` skips the browser tests on purpose.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from playwright.sync_api import sync_playwright

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
INSTALL_TIMEOUT_S: Final = 300
BY_PLAYWRIGHT: Final = [sys.executable, "-m", "playwright", "install", "chromium"]
BY_APT: Final = (["apt-get", "update"], ["apt-get", "install", "--yes", "chromium"])


def is_skipped() -> bool:
    """True if the browser tests are skipped on purpose."""
    return os.environ.get("STELE_SKIP_BROWSER", "") not in {"", "0"}


def executable() -> str | None:
    """Path of a Chromium of this machine or of Playwright, or None."""
    if given := os.environ.get("STELE_TEST_CHROMIUM"):
        return given
    if found := next((path for name in NAMES if (path := shutil.which(name))), None):
        return found
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if Path(own).exists() else None


def _runs(command: list[str]) -> bool:
    """Run an installer with a time limit; True if it succeeded."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=INSTALL_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def main() -> int:
    """Install Chromium if none is found. Returns 1, and prints the command to type, where that fails."""
    if is_skipped() or executable():
        return 0
    print("No Chromium is installed. Installing one for the browser tests.", flush=True)
    if _runs(BY_PLAYWRIGHT) and executable():
        return 0
    if os.geteuid() == 0 and shutil.which("apt-get") and all(map(_runs, BY_APT)) and executable():
        return 0
    print(
        "Cannot install Chromium for the browser tests: neither Playwright's download nor the system's packages"
        " worked. Install it (on Debian: `sudo apt-get install chromium`), name one in STELE_TEST_CHROMIUM, or"
        " skip these tests with STELE_SKIP_BROWSER=1.",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
