"""Small changes of a source: a flipped condition, a dropped guard or await, a shifted bound.

Pure functions. A change keeps the line numbers of all other code. Logging and code for type checkers are
not changed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import accumulate
from typing import Final, NamedTuple

FLIPPED: Final[dict[type[ast.cmpop], str]] = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
SHIFTED: Final[dict[type[ast.cmpop], str]] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
}
KINDS: Final = ("await", "bound", "condition", "guard")
LEAVES: Final = (ast.Raise, ast.Return, ast.Continue, ast.Break)


class Change(NamedTuple):
    path: str
    line: int
    """Line of the first changed character, from 1."""
    kind: str
    """One of ``KINDS``."""
    start: int
    end: int
    """The changed span of the source, in bytes."""
    before: str
    after: str

    def of(self, source: bytes) -> bytes:
        """Return the source with this change."""
        kept_lines = b"\n" * (source[self.start : self.end].count(b"\n") - self.after.count("\n"))
        return source[: self.start] + self.after.encode() + kept_lines + source[self.end :]

    def __str__(self) -> str:
        before, after = (" ".join(text.split()) for text in (self.before, self.after))
        return f"{self.path}:{self.line}: {self.kind}: {before} -> {after}"


def changes_of(path: str, source: bytes) -> list[Change]:
    """Return the changes in the order of the source. Raises SyntaxError."""
    tree = ast.parse(source)
    text = _Text(path, source)
    return sorted(
        {change for node in _product(tree) for change in _of_node(text, node)}, key=_place
    )


def _place(change: Change) -> tuple[int, int, str]:
    return change.start, change.end, change.after


class _Text:
    def __init__(self, path: str, source: bytes) -> None:
        self.path = path
        self.source = source
        lengths = (len(line) for line in source.splitlines(keepends=True))
        self.line_starts = [0, *accumulate(lengths)]

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self.line_starts[node.lineno - 1] + node.col_offset,
            self.line_starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def of(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.source[start:end].decode()

    def change(self, kind: str, node: ast.expr | ast.stmt, after: str) -> Change:
        return Change(self.path, node.lineno, kind, *self.span(node), self.of(node), after)


def _product(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes except logging, assertions and code for type checkers."""
    if _only_logs(node) or isinstance(node, ast.Assert):
        return
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _product(child)


def _only_logs(node: ast.AST) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    owner = call.func.value
    return isinstance(owner, ast.Name) and owner.id == "log"


def _of_node(text: _Text, node: ast.AST) -> Iterator[Change]:
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        yield from _of_test(text, node.test)
        if isinstance(node, ast.If) and isinstance(node.body[-1], LEAVES) and not node.orelse:
            yield text.change("guard", node.test, "False")
    elif isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield from _of_test(text, test)
            yield text.change("guard", test, "True")
    elif isinstance(node, ast.BoolOp):
        yield from _of_operands(text, node)
    elif isinstance(node, ast.Compare):
        yield from _of_comparison(text, node)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Await):
        yield text.change("await", node, "pass")
    elif isinstance(node, ast.AsyncWith) and len(node.items) == 1:
        item = node.items[0]
        if item.optional_vars is None:
            start = text.span(node)[0]
            end = text.span(item.context_expr)[1]
            before = text.source[start:end].decode()
            yield Change(text.path, node.lineno, "await", start, end, before, "if True")
    elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        yield from _of_number(text, node.right)
    elif isinstance(node, ast.Slice):
        for bound in (node.lower, node.upper):
            yield from _of_number(text, bound)


def _of_test(text: _Text, test: ast.expr) -> Iterator[Change]:
    """Negate a test. ``_of_comparison`` and ``_of_operands`` change comparisons and boolean operations."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield text.change("condition", test, f"bool({text.of(test.operand)})")
    elif not isinstance(test, (ast.Compare, ast.BoolOp)):
        yield text.change("condition", test, f"(not ({text.of(test)}))")


def _of_operands(text: _Text, node: ast.BoolOp) -> Iterator[Change]:
    """Drop one operand at a time."""
    word = " and " if isinstance(node.op, ast.And) else " or "
    for dropped in range(len(node.values)):
        kept = [f"({text.of(v)})" for at, v in enumerate(node.values) if at != dropped]
        start, end = text.span(node)
        yield Change(
            text.path,
            node.values[dropped].lineno,
            "guard",
            start,
            end,
            text.of(node),
            f"({word.join(kept)})",
        )


def _of_comparison(text: _Text, node: ast.Compare) -> Iterator[Change]:
    if len(node.ops) != 1:
        return
    op = type(node.ops[0])
    for kind, others in (("condition", FLIPPED), ("bound", SHIFTED)):
        if op in others:
            left, right = text.of(node.left), text.of(node.comparators[0])
            yield text.change(kind, node, f"(({left}) {others[op]} ({right}))")


def _of_number(text: _Text, node: ast.expr | None) -> Iterator[Change]:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield text.change("bound", node, str(node.value + 1))
