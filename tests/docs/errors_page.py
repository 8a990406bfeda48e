"""The generated part of docs/reference/errors.md: ``python -m tests.docs.errors_page`` writes it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from stele.domain import not_taken
from stele.metadata_log.http import NOT_TAKEN
from tests.docs.pages import REPOSITORY, with_generated_part

PAGE = REPOSITORY / "docs" / "reference" / "errors.md"
SERVICES = REPOSITORY / "services" / "stele"
REFUSED = 409
OMITTED = "…"
"""Stands for the parts of a text that vary."""
SEE_LOG_PAGE = "See [answers that decide nothing](log.md#answers-that-decide-nothing)."
NAMES = {name: str(value) for name, value in vars(not_taken).items() if name.isupper()}


class Error(NamedTuple):
    """A code with one of its texts, and the HTTP status of metadata-log's rejection."""

    code: str
    status: int
    message: str
    hint: str


def errors() -> list[Error]:
    """Return every code in the source with its first text, ordered by code. Texts of decisions come first."""
    found = dict[tuple[str, int], Error]()
    domain = SERVICES / "domain"
    paths = sorted(SERVICES.rglob("*.py"), key=lambda path: (domain not in path.parents, path))
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                error = _error(node)
                if error is not None:
                    found.setdefault((error.code, error.status), error)
    codes = {code for code, _ in found}
    for code, status in NOT_TAKEN.items():
        if code not in codes:
            found[code, status] = Error(code, status, "", SEE_LOG_PAGE)
    return [found[key] for key in sorted(found)]


def _error(node: ast.Call) -> Error | None:
    assert isinstance(node.func, ast.Name)
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    if node.func.id in ("Rejection", "Rejected") and len(node.args) >= 2:
        hint = node.args[2] if len(node.args) > 2 else given.get("hint")
        code, message = _text(node.args[0]), _text(node.args[1])
        status = NOT_TAKEN.get(code, REFUSED)
    elif node.func.id in ("HttpError", "Refused", "RequestRefused") and len(node.args) >= 3:
        number = node.args[0]
        if not isinstance(number, ast.Constant):
            return None
        code, status, message = _text(node.args[1]), int(str(number.value)), _text(node.args[2])
        hint = node.args[3] if len(node.args) > 3 else given.get("hint")
    else:
        return None
    if code.startswith(OMITTED) and code.count(OMITTED) == len(code):
        return None
    return Error(code, status, message, _text(hint) if hint is not None else "")


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    if isinstance(node, ast.Name) and node.id in NAMES:
        return NAMES[node.id]
    return OMITTED


def sections() -> Iterator[str]:
    yield "| code | HTTP status | message | what to do |\n|---|--:|---|---|\n"
    for each in errors():
        cells = (f"`{each.code}`", each.status, _cell(each.message), _cell(each.hint))
        yield f"| {' | '.join(map(str, cells))} |\n"
    yield "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def page_with(page: str) -> str:
    """Return the page with new content between its marks."""
    return with_generated_part(page, "errors", "".join(sections()))
