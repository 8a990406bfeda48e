"""The glossary: in order, led to from the first pages, and each term stands on the page that it leads to."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import REPOSITORY

PAGE = REPOSITORY / "docs" / "glossary.md"
ROW = re.compile(r"^\| \[([^\]]+)\]\(([^)#]+)#?([^)]*)\) \| (.+) \|$", re.MULTILINE)
TERMS = ROW.findall(PAGE.read_text())
SPLIT = re.compile(r", | and ")


def anchor_of(heading: str) -> str:
    """As the site makes it, and as GitHub does for headings of plain words."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@pytest.mark.parametrize(("term", "page", "anchor"), [row[:3] for row in TERMS])
def test_a_term_leads_to_a_place_that_uses_it(term: str, page: str, anchor: str) -> None:
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


def test_every_row_is_read_and_they_are_in_order() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| [")]
    assert len(rows) == len(TERMS) > 40
    terms = [row[0].lower() for row in TERMS]
    assert terms == sorted(terms)
    assert len({*terms}) == len(terms)


@pytest.mark.parametrize("page", ["README.md", "docs/README.md"])
def test_who_begins_finds_it(page: str) -> None:
    assert "glossary.md)" in (REPOSITORY / page).read_text()
