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
"""Size of all files together, compressed."""
ROOT = Path(__file__).resolve().parents[2]


def files() -> list[Path]:
    return [path for path in PAGE.rglob("*") if path.is_file()]


def test_page_files_are_small_in_total() -> None:
    served = [path for path in files() if path.suffix in {".html", ".js", ".css", ".svg"}]
    assert len(served) > 15
    assert sum(len(gzip.compress(path.read_bytes())) for path in served) < LARGEST_BYTES


def test_page_requests_only_the_console() -> None:
    for path in files():
        if path.suffix in {".html", ".js", ".css"} and path.parent.name != "vendor":
            addresses = re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", path.read_text())
            assert not addresses, (path.name, addresses)


def test_page_has_no_inline_code_and_no_raw_markup() -> None:
    text = (PAGE / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=|<style", text)
    for path in PAGE.glob("*.js"):
        forbidden = (
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerouslySet|\beval\("
        )
        assert not re.search(forbidden, path.read_text()), path.name


def test_each_vendored_library_has_version_and_licence() -> None:
    licences = (PAGE / "vendor" / "LICENSES.md").read_text()
    for path in (PAGE / "vendor").glob("*.js"):
        assert re.search(rf"`{re.escape(path.name)}`.*\d+\.\d+\.\d+.*(MIT|Apache)", licences)


def test_every_module_is_valid_javascript() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node here")
    for path in PAGE.glob("*.js"):
        done = subprocess.run(
            [node, "--check", "--input-type=module"],
            input=path.read_bytes(),
            capture_output=True,
            timeout=240,
            check=False,
        )
        assert not done.returncode, (path.name, done.stderr.decode())
