"""Each class name has one meaning in the product."""

import ast
from collections import Counter

from tests.docs.pages import REPOSITORY


def test_class_names_are_unique() -> None:
    found = Counter(
        node.name
        for path in (REPOSITORY / "services/stele").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in found.items() if count > 1] == []
