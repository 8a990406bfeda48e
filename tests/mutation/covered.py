"""A pytest plugin that records which test runs which line: ``pytest -p tests.mutation.covered``.

``STELE_COVERED`` names the output file: the tests with their seconds, and for each line of the product the
numbers of the tests that run it. A line that runs at the import of its module has no tests.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

from tests.mutation.files import COVERED, FOLDERS, ROOT

_measuring = coverage.Coverage(
    data_file=None,
    config_file=False,
    source=[str(ROOT / folder) for folder in FOLDERS],
    concurrency=["thread", "greenlet"],
    messages=False,
)
_measuring.start()
_seconds = dict[str, float]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _measuring.switch_context(item.nodeid)
    began_s = time.perf_counter()
    result = yield
    _seconds[item.nodeid] = time.perf_counter() - began_s
    _measuring.switch_context("")
    return result


def pytest_sessionfinish() -> None:
    _measuring.stop()
    data = _measuring.get_data()
    number = {nodeid: at for at, nodeid in enumerate(_seconds)}
    lines = {
        str(Path(path).relative_to(ROOT)): {
            line: sorted(number[test] for test in tests if test in number)
            for line, tests in data.contexts_by_lineno(path).items()
        }
        for path in data.measured_files()
    }
    found = {"tests": list(_seconds.items()), "lines": lines}
    Path(os.environ[COVERED]).write_text(json.dumps(found))
