"""The fenced blocks of the pages and the commands in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[2]
_FENCE = re.compile(r" *```(\w*)$")


class Block(NamedTuple):
    """A fenced block: its page, the line of its first fence, its language and its lines."""

    page: str
    line: int
    language: str
    lines: tuple[str, ...]

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


class Shown(NamedTuple):
    """A command on a page, its line, and its output. Empty output is not compared."""

    line: int
    command: str
    output: tuple[str, ...]


def with_generated_part(page: str, by: str, content: str) -> str:
    """Return the page with new content between the marks of ``tests/docs/<by>_page.py``."""
    pattern = rf"(<!-- made by tests/docs/{by}_page.py -->\n\n).*?(<!-- end -->)"
    found, count = re.subn(pattern, lambda m: m[1] + content + m[2], page, flags=re.DOTALL)
    assert count == 1, f"the page has {count} parts made by {by}_page.py"
    return found


def pages() -> list[str]:
    """Return the paths of the README and of all pages of docs, relative to the repository."""
    found = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
    return [str(path.relative_to(REPOSITORY)) for path in found]


def blocks(page: str) -> list[Block]:
    """Return all fenced blocks of a page. Raises AssertionError for an unclosed fence."""
    found, lines, opened = list[Block](), list[str](), None
    for number, text in enumerate((REPOSITORY / page).read_text().splitlines(), 1):
        fence = _FENCE.match(text)
        if fence is None:
            lines.append(text)
        elif opened is None:
            opened, lines = (number, fence[1]), []
        else:
            found.append(Block(page, *opened, tuple(lines)))
            opened = None
    assert opened is None, f"{page}:{opened}: this block is not closed"
    return found


def commands(block: Block) -> Iterator[Shown]:
    """Yield the lines that begin with ``$``, with continuation lines after a backslash, and their output."""
    assert block.lines and block.lines[0].startswith("$ "), f"{block.place}: begin with a command"
    starts = [at for at, text in enumerate(block.lines) if text.startswith("$ ")]
    for at, end in zip(starts, [*starts[1:], len(block.lines)], strict=True):
        first_output = at + 1
        while block.lines[first_output - 1].endswith("\\"):
            first_output += 1
        command = "\n".join(block.lines[at:first_output]).removeprefix("$ ")
        output = tuple(text for text in block.lines[first_output:end] if text.strip())
        yield Shown(block.line + 1 + at, command, output)
