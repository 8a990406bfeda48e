"""The generated part of docs/reference/metrics.md: ``python -m tests.docs.metrics_page`` writes it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from stele.placements.metrics import Clusters
from tests.docs.pages import REPOSITORY

PAGE = REPOSITORY / "docs" / "reference" / "metrics.md"
SERVICES = REPOSITORY / "services" / "stele"
KINDS = {
    "Counter": "counter",
    "CounterMetricFamily": "counter",
    "Gauge": "gauge",
    "GaugeMetricFamily": "gauge",
    "Histogram": "histogram",
}
PROCESSES = {
    "metadata_log": "metadata-log",
    "coordinator": "coordinator",
    "session_guard": "session-guard",
    "tablet_balancer": "tablet-balancer",
    "catch_up": "catch-up",
    "console": "console",
    "cdc_connector": "cdc-connector",
    "node": "the trial store",
    "agent": "every node",
    "placements": "placements",
    "log": "processes that read or write the log",
    "runtime": "all processes",
}
"""The processes that have the metrics of a package."""


class Metric(NamedTuple):
    """A metric as the code declares it. ``name`` is its name in Prometheus."""

    name: str
    kind: str
    text: str
    labels: tuple[str, ...]


def metrics() -> dict[str, list[Metric]]:
    """Return the metrics of each package, by name."""
    found = dict[str, list[Metric]]()
    for path in sorted(SERVICES.rglob("*.py")):
        package = path.relative_to(SERVICES).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                function = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                name = _text(node.args[0]) if node.args else ""
                if function in KINDS and name.startswith("stele_"):
                    found.setdefault(package, []).append(_metric(KINDS[function], name, node))
    found["placements"] += [
        Metric(f"stele_placements_{name}", "gauge", text, ("cluster",))
        for name, text in Clusters._TEXTS.items()
    ]
    return {package: sorted(each) for package, each in sorted(found.items())}


def _metric(kind: str, name: str, node: ast.Call) -> Metric:
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    text = _text(node.args[1]) if len(node.args) > 1 else _text(given["documentation"])
    labels = node.args[2] if len(node.args) > 2 else given.get("labelnames")
    names = labels.elts if isinstance(labels, ast.List | ast.Tuple) else []
    ending = "_total" if kind == "counter" else ""
    return Metric(name + ending, kind, text, tuple(map(_text, names)))


def _text(node: ast.expr) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else ""


def sections() -> Iterator[str]:
    for package, found in metrics().items():
        yield f"### {PROCESSES[package][0].upper()}{PROCESSES[package][1:]}\n\n"
        yield "| metric | type | labels | |\n|---|---|---|---|\n"
        for each in found:
            labels = ", ".join(f"`{label}`" for label in each.labels)
            yield f"| `{each.name}` | {each.kind} | {labels} | {each.text} |\n"
        yield "\n"
