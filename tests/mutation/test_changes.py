"""Mutants of a source file."""

import random

import pytest

from tests.mutation.changes import changes_of
from tests.mutation.files import ROOT, sources
from tests.mutation.run import SampleOptions

CASES = [
    ("if a == b:\n    c()\n", "condition", "if ((a) != (b)):\n    c()\n"),
    ("if a:\n    c()\n", "condition", "if (not (a)):\n    c()\n"),
    ("while not a:\n    c()\n", "condition", "while bool(a):\n    c()\n"),
    ("x = 1 if a else 2\n", "condition", "x = 1 if (not (a)) else 2\n"),
    ("if a < b:\n    c()\n", "bound", "if ((a) <= (b)):\n    c()\n"),
    ("x = a[1:]\n", "bound", "x = a[2:]\n"),
    ("x = a - 1\n", "bound", "x = a - 2\n"),
    ("if a:\n    raise b\n", "guard", "if False:\n    raise b\n"),
    ("x = a and b\n", "guard", "x = ((b))\n"),
    ("x = [a for a in b if a]\n", "guard", "x = [a for a in b if True]\n"),
    ("async def f():\n    await g()\n", "await", "async def f():\n    pass\n"),
    (
        "async def f():\n    async with g:\n        h()\n",
        "await",
        "async def f():\n    if True:\n        h()\n",
    ),
    ('x = "é" if a else 2\n', "condition", 'x = "é" if (not (a)) else 2\n'),
]


@pytest.mark.parametrize(("source", "kind", "changed"), CASES)
def test_source_has_the_expected_change(source: str, kind: str, changed: str) -> None:
    found = changes_of("a.py", source.encode())
    assert changed in [each.of(source.encode()).decode() for each in found if each.kind == kind]


@pytest.mark.parametrize(
    "source",
    [
        'log.info("a", b=c and d)\n',
        "assert a == b\n",
        "if TYPE_CHECKING:\n    import a\n",
        "x = 1\n",
        "x = f(1)\n",
    ],
)
def test_logging_assertions_and_type_checking_are_not_changed(source: str) -> None:
    assert changes_of("a.py", source.encode()) == []


def test_change_keeps_the_numbers_of_later_lines() -> None:
    source = b"if (\n    a\n    and b\n):\n    c()\n"
    for change in changes_of("a.py", source):
        assert change.of(source).splitlines()[4] == b"    c()"


def test_changes_of_the_product_compile() -> None:
    for path in random.Random(1).sample(sources(), 12):
        source = (ROOT / path).read_bytes()
        for change in changes_of(path, source):
            changed = change.of(source)
            assert changed != source, change
            compile(changed, path, "exec")


def test_sample_is_limited_to_the_requested_paths_and_kinds() -> None:
    paths = ["services/stele/log/chain.py", "services/stele/node"]
    changes, of = SampleOptions(
        paths, ["guard", "await"], sample=10_000, seed=1, again=False
    ).chosen()
    assert len(changes) == of
    assert {change.kind for change in changes} == {"guard", "await"}
    assert {change.path for change in changes if change.path != paths[0]}
    assert all(change.path.startswith(tuple(paths)) for change in changes)


def test_path_without_sources_is_refused() -> None:
    with pytest.raises(ValueError, match="tests/mutation has no source to change"):
        sources(["tests/mutation"])
    with pytest.raises(ValueError, match="services/stele/no"):
        sources(["services/stele/node", "services/stele/no"])
