"""One class name has one meaning in the product, as the style of the glossary asks."""

import ast
from collections import Counter

from tests.docs.pages import REPOSITORY

STORE = "a store, its pages and its rows: for a node, and for any store behind an agent"
NODE = "the agent's and the trial node's side of one thing"
RESULT = "a record of the log or an answer, and a result inside the agent or the node"

TWICE = {
    "InUse": NODE,
    "Page": STORE,
    "Refused": NODE,
    "Replica": "a catch-up replica of the log's schema, and a node's own data",
    "Request": "a request of the log's schema, and a request to a node",
    "Row": STORE,
    "Store": STORE,
    "Verdict": RESULT,
    "Versions": RESULT,
}
"""Names that still have two meanings, each with the reason. No name is added; names may leave."""


def test_a_class_name_is_defined_once() -> None:
    found = Counter(
        node.name
        for path in (REPOSITORY / "services/stele").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in found.items() if count > 1} == TWICE.keys()
