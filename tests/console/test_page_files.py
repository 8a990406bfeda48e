"""Files of the page: no foreign content, no inline code, and small."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from stele.console.http import PAGE

LARGEST_BYTES = 400_000
"""Size of all files together, as sent."""
ROOT = Path(__file__).resolve().parents[2]


def files() -> list[Path]:
    return [path for path in PAGE.rglob("*") if path.is_file()]


def test_all_of_the_page_is_small() -> None:
    served = [path for path in files() if path.suffix in {".html", ".js", ".css", ".svg"}]
    assert len(served) > 15
    assert sum(len(gzip.compress(path.read_bytes())) for path in served) < LARGEST_BYTES


def test_the_page_asks_nobody_but_the_console() -> None:
    for path in files():
        if path.suffix in {".html", ".js", ".css"} and path.parent.name != "vendor":
            addresses = re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", path.read_text())
            assert not addresses, (path.name, addresses)


def test_nothing_stands_inline_and_nothing_from_the_log_becomes_markup() -> None:
    text = (PAGE / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=|<style", text)
    for path in PAGE.glob("*.js"):
        forbidden = (
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerouslySet|\beval\("
        )
        assert not re.search(forbidden, path.read_text()), path.name


def test_each_library_has_its_version_and_licence_beside_it() -> None:
    licences = (PAGE / "vendor" / "LICENSES.md").read_text()
    for path in (PAGE / "vendor").glob("*.js"):
        assert re.search(rf"`{re.escape(path.name)}`.*\d+\.\d+\.\d+.*(MIT|Apache)", licences)


def test_every_module_is_javascript_that_can_be_read() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node here")
    for path in PAGE.glob("*.js"):
        done = subprocess.run(
            [node, "--check", "--input-type=module"],
            input=path.read_bytes(),
            capture_output=True,
            timeout=90,
            check=False,
        )
        assert not done.returncode, (path.name, done.stderr.decode())
