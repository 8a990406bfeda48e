"""One class name has one meaning in the product, as the style of the glossary asks."""

import ast
from collections import Counter

from tests.docs.pages import REPOSITORY

STORE = "a store, its pages and its spans: for a node, for any store behind an agent, and in Spark"
NODE = "the agent's and the trial node's side of one thing"
RESULT = "a record of the log or an answer, and a result inside the agent, the node or the table"

TWICE = {
    "Head": "the start of a table of events, and of one of reports",
    "Held": "tablets that a node holds, and rows that a table holds",
    "InUse": NODE,
    "Judge": "the judge of requests in an agent, and of records in the table of events",
    "Page": STORE,
    "Position": "one answer of all services; placements answers without a hash",
    "Progress": "the coordinator's answer, and the table of progress",
    "Read": "the read of a key by a node, and the option of the command line",
    "Refused": NODE,
    "Replica": "a catch-up replica of the log's schema, and a node's own data",
    "Request": "a request of the log's schema, and a request to a node",
    "Row": STORE,
    "Standing": "the status of an epoch, and of the clusters of placements",
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
