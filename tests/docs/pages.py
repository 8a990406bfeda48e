"""The fenced blocks of the pages, in their order, and what each holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[2]
_FENCE = re.compile(r" *```(\w*)$")


class Block(NamedTuple):
    """A fenced block: the page it is of, the line of its first fence, its language and its lines."""

    page: str
    line: int
    language: str
    lines: tuple[str, ...]

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


class Shown(NamedTuple):
    """A command as a page shows it, at which line, and the output under it; none: nothing is said of it."""

    line: int
    command: str
    output: tuple[str, ...]


def made_anew(page: str, by: str, made: str) -> str:
    """Return the page with new content between the marks of ``tests/docs/<by>_page.py``."""
    pattern = rf"(<!-- made by tests/docs/{by}_page.py -->\n\n).*?(<!-- end -->)"
    found, count = re.subn(pattern, lambda m: m[1] + made + m[2], page, flags=re.DOTALL)
    assert count == 1, "the page has its marks"
    return found


def pages() -> list[str]:
    """The README and all pages of docs, by their paths in the repository."""
    found = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
    return [str(path.relative_to(REPOSITORY)) for path in found]


def blocks(page: str) -> list[Block]:
    """All fenced blocks of a page. Raises AssertionError for a fence that is never closed."""
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
    assert opened is None, f"{page}:{opened}: this block has no end"
    return found


def commands(block: Block) -> Iterator[Shown]:
    """Return the lines that begin with ``$``, their continuations after a backslash, and their output."""
    assert block.lines and block.lines[0].startswith("$ "), f"{block.place}: begin with a command"
    starts = [at for at, text in enumerate(block.lines) if text.startswith("$ ")]
    for at, end in zip(starts, [*starts[1:], len(block.lines)], strict=True):
        first_output = at + 1
        while block.lines[first_output - 1].endswith("\\"):
            first_output += 1
        command = "\n".join(block.lines[at:first_output]).removeprefix("$ ")
        output = tuple(text for text in block.lines[first_output:end] if text.strip())
        yield Shown(block.line + 1 + at, command, output)
