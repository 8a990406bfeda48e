"""The site that `make docs` builds has every page and a search, and no dead link."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import REPOSITORY

AT_THE_ROOT = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")


def build(docs: Path, work: Path) -> subprocess.CompletedProcess[str]:
    """Build a site from the pages in ``docs`` with the settings of the repository."""
    settings = work / "mkdocs.yml"
    ours = REPOSITORY / "mkdocs.yml"
    lines = [f"INHERIT: {ours}", f"docs_dir: {docs}", f"site_dir: {work / 'site'}"]
    lines.append(f"hooks: [{REPOSITORY / 'infra' / 'site' / 'hooks.py'}]")
    if docs != REPOSITORY / "docs":
        lines.append("nav: [README.md]")
    settings.write_text("\n".join(lines))
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(settings)],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_site_has_every_page_in_its_search_index(tmp_path: Path) -> None:
    built = build(REPOSITORY / "docs", tmp_path)
    assert built.returncode == 0, built.stderr
    index = json.loads((tmp_path / "site" / "search" / "search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    pages = (path.relative_to(REPOSITORY / "docs") for path in (REPOSITORY / "docs").rglob("*.md"))
    names = {
        f"{p.with_name('index.html') if p.name == 'README.md' else p.with_suffix('.html')}"
        for p in pages
    }
    assert names <= found


def test_site_loads_scripts_and_styles_from_itself(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "README.md").write_text("# Title\n\n```mermaid\nflowchart LR\n  a --> b\n```\n")
    built = build(docs, tmp_path)
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "site" / "index.html").read_text()
    scripts = [*re.findall(r'<(?:script|link rel="stylesheet")[^>]* (?:src|href)="([^"]+)"', page)]
    assert scripts
    for script in scripts:
        assert (tmp_path / "site" / script.partition("?")[0]).is_file(), script
    assert ("mermaid.min.js" in page) is ('class="mermaid"' in page), (
        "the page loads Mermaid if and only if it has a diagram"
    )


@pytest.mark.parametrize("link", ["nowhere.md", "README.md#nothing-here", "/absolute.md"])
def test_dead_link_fails_the_build(tmp_path: Path, link: str) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    page = docs / "README.md"
    page.write_text("# Title\n\n## Heading\n\n[there](README.md#heading)\n")
    assert build(docs, tmp_path).returncode == 0
    page.write_text(f"# Title\n\n[gone]({link})\n")
    built = build(docs, tmp_path)
    assert built.returncode != 0
    assert link.partition("#")[2] in built.stderr and "README.md" in built.stderr


@pytest.mark.parametrize("page", AT_THE_ROOT)
def test_links_of_the_first_pages_exist(page: str) -> None:
    links = LINK.findall((REPOSITORY / page).read_text())
    assert links
    assert not [link for link in links if not (REPOSITORY / link).exists()]


def test_every_page_is_in_the_index() -> None:
    index = (REPOSITORY / "docs" / "README.md").read_text()
    folders = ("get-started", "guides", "concepts", "reference", "internals")
    pages = [path for folder in folders for path in (REPOSITORY / "docs" / folder).glob("*.md")]
    assert not [p.name for p in pages if f"({p.parent.name}/{p.name})" not in index]
