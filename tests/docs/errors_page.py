"""The generated part of docs/reference/errors.md: ``python -m tests.docs.errors_page`` writes it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from stele.domain import not_taken
from stele.metadata_log.http import NOT_TAKEN
from tests.docs.pages import REPOSITORY

PAGE = REPOSITORY / "docs" / "reference" / "errors.md"
SERVICES = REPOSITORY / "services" / "stele"
REFUSED = 409
OMITTED = "…"
"""Stands for the parts of a text that vary."""
SEE_LOG_PAGE = "See [answers that decide nothing](log.md#answers-that-decide-nothing)."
HTTP_ERRORS = ("HttpError", "Refused", "RequestRefused")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
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
        for error in _Module(ast.parse(path.read_text())).errors():
            found.setdefault((error.code, error.status), error)
    codes = {code for code, _ in found}
    for code, status in NOT_TAKEN.items():
        if code not in codes:
            found[code, status] = Error(code, status, "", SEE_LOG_PAGE)
    return [found[key] for key in sorted(found)]


class _Module:
    """The errors that a module makes, with texts from constants and local variables."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._functions = [n for n in ast.walk(tree) if isinstance(n, FUNCTIONS)]
        self._helpers = dict[str, int]()
        """Functions of this module that make an error of their code, message and hint: the HTTP status."""
        for function in self._functions:
            parameters = [argument.arg for argument in function.args.args if argument.arg != "self"]
            for call in _calls(function):
                names = [each.id for each in call.args[1:4] if isinstance(each, ast.Name)]
                if _name(call) in HTTP_ERRORS and len(names) == 3 and names == parameters[:3]:
                    self._helpers[function.name] = int(_number(call.args[0]))

    def errors(self) -> Iterator[Error]:
        for call in _calls(self._tree):
            error = self._error(call)
            if error is not None and error.code.strip(OMITTED):
                yield error

    def _error(self, call: ast.Call) -> Error | None:
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        name, args = _name(call), call.args
        if name in ("Rejection", "Rejected") and len(args) >= 2:
            code = self._text(args[0])
            status, texts = NOT_TAKEN.get(code, REFUSED), args
        elif name in self._helpers and len(args) >= 2:
            status, texts = self._helpers[name], args
        elif name in HTTP_ERRORS and len(args) >= 3 and isinstance(args[0], ast.Constant):
            status, texts = int(_number(args[0])), args[1:]
        else:
            return None
        hint = texts[2] if len(texts) > 2 else given.get("hint")
        shown = "" if hint is None else self._text(hint)
        return Error(self._text(texts[0]), status, self._text(texts[1]), shown)

    def _text(self, node: ast.expr) -> str:
        if isinstance(node, ast.Constant):
            return str(node.value)
        if isinstance(node, ast.JoinedStr):
            return "".join(
                OMITTED if isinstance(part, ast.FormattedValue) else self._text(part)
                for part in node.values
            )
        if isinstance(node, ast.BinOp):
            return self._text(node.left) + self._text(node.right)
        if isinstance(node, ast.Name):
            return NAMES.get(node.id) or self._variable(node)
        return OMITTED

    def _variable(self, name: ast.Name) -> str:
        """Return the text last assigned to a local variable before it is used."""
        around = [f for f in self._functions if f.lineno <= name.lineno <= (f.end_lineno or 0)]
        assigned = [
            node.value
            for node in (ast.walk(around[-1]) if around else ())
            if isinstance(node, ast.Assign)
            and node.lineno < name.lineno
            and any(
                isinstance(target, ast.Name) and target.id == name.id for target in node.targets
            )
        ]
        text = max(assigned, key=lambda value: value.lineno, default=None)
        is_text = isinstance(text, ast.Constant | ast.JoinedStr | ast.BinOp)
        return self._text(text) if text is not None and is_text else OMITTED


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    return (each for each in ast.walk(node) if isinstance(each, ast.Call))


def _name(call: ast.Call) -> str:
    """Return the name of a function, or of a method of ``self``."""
    function = call.func
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return function.attr if function.value.id == "self" else ""
    return function.id if isinstance(function, ast.Name) else ""


def _number(node: ast.expr) -> str:
    assert isinstance(node, ast.Constant), ast.dump(node)
    return str(node.value)


def sections() -> Iterator[str]:
    yield "| code | HTTP status | message | what to do |\n|---|--:|---|---|\n"
    for each in errors():
        cells = (f"`{each.code}`", each.status, _cell(each.message), _cell(each.hint))
        yield f"| {' | '.join(map(str, cells))} |\n"
    yield "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
