"""Results of a run of the demo."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from stele.cli.places import read_stack_file
from stele_harness.demo.checks import Report
from tests.console.browser import Watched


class DemoRun(NamedTuple):
    directory: Path
    output: str
    report: Report
    page: Watched | None
    """None where there is no Chromium."""


def url_of(directory: Path, service: str) -> str:
    stack = read_stack_file(directory)
    assert stack is not None
    found = stack.service(service)
    assert found is not None
    return found.url
