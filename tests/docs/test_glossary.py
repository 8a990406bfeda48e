"""The words of the glossary stand in order, once, and lead to pages that use them."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import REPOSITORY

DOCS = REPOSITORY / "docs"
ROW = re.compile(
    r"^\| \[(?P<word>[^\]]+)\]\((?P<page>[^)#]+)(?:#(?P<anchor>[^)]+))?\) \| (?P<text>.+) \|$",
    re.MULTILINE,
)
TABLES = (DOCS / "glossary.md").read_text().split("\n## ")[1:]
ROWS = [row for table in TABLES for row in ROW.finditer(table)]


def test_every_row_is_read() -> None:
    lines = [line for table in TABLES for line in table.splitlines() if line.startswith("| [")]
    assert len(ROWS) == len(lines) > 50


@pytest.mark.parametrize("table", TABLES, ids=[table.partition("\n")[0] for table in TABLES])
def test_the_words_are_in_order(table: str) -> None:
    words = [row["word"].lower() for row in ROW.finditer(table)]
    assert words == sorted(words)


def test_no_word_is_there_twice() -> None:
    words = [row["word"] for row in ROWS]
    assert len(words) == len({*words})


@pytest.mark.parametrize("row", ROWS, ids=[row["word"] for row in ROWS])
def test_the_page_uses_the_word(row: re.Match[str]) -> None:
    text = (DOCS / row["page"]).read_text().lower()
    first = re.split(r" of | and | ", row["word"].lower())[0]
    assert first.removesuffix("s")[:6] in text, f"{row['page']} does not say '{first}'"
