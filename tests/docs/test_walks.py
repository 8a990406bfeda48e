"""The walks of docs/internals/architecture.md name functions that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/internals/architecture.md"
HOP = re.compile(r"^(\w[\w.]*) {2,}([\w.]+) {2,}\S", re.MULTILINE)


@pytest.mark.parametrize(("package", "name"), sorted({*HOP.findall(PAGE.read_text())}))
def test_hops_name_functions_of_their_package(package: str, name: str) -> None:
    *owner, function = name.split(".")
    wanted = [rf"^class {each}\b" for each in owner] + [rf"\bdef {function}\("]
    sources = (ROOT / "services/stele" / package.replace(".", "/")).rglob("*.py")
    texts = (path.read_text() for path in sources)
    assert any(all(re.search(each, text, re.MULTILINE) for each in wanted) for text in texts)
