"""The glossary is sorted and linked from the first pages. Each term occurs on the page that it links to."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import REPOSITORY

PAGE = REPOSITORY / "docs" / "glossary.md"
ROW = re.compile(r"^\| \[([^\]]+)\]\(([^)#]+)#?([^)]*)\) \| (.+) \|$", re.MULTILINE)
TERMS = ROW.findall(PAGE.read_text())
SPLIT = re.compile(r", | and ")


def anchor_of(heading: str) -> str:
    """Return the anchor that the site makes of a heading. GitHub makes the same of plain words."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@pytest.mark.parametrize(("term", "page", "anchor"), [row[:3] for row in TERMS])
def test_page_linked_from_a_term_uses_the_term(term: str, page: str, anchor: str) -> None:
    text = (PAGE.parent / page).read_text()
    sections = dict[str, str]()
    for part in re.split(r"^#+ ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        sections[anchor_of(heading)] = f"{heading}\n{body}"
    if anchor:
        assert anchor in sections, f"{page} has no such heading; it has {sorted(sections)}"
    plain = re.sub(r"[`_\s]+", " ", sections[anchor] if anchor else text).lower()
    words = [word.lower() for word in SPLIT.split(term)]
    assert any(word in plain for word in words), f"{page}#{anchor} does not say {words}"


def test_rows_are_valid_sorted_and_unique() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| [")]
    assert len(rows) == len(TERMS) > 40
    terms = [row[0].lower() for row in TERMS]
    assert terms == sorted(terms)
    assert len({*terms}) == len(terms)


@pytest.mark.parametrize("page", ["README.md", "docs/README.md"])
def test_first_pages_link_to_the_glossary(page: str) -> None:
    assert "glossary.md)" in (REPOSITORY / page).read_text()
