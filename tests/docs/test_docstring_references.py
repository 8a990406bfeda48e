"""Docstrings and comments name modules and functions that exist, and classes have unique names."""

import ast
import re
from collections import Counter
from pathlib import Path

from tests.docs.pages import REPOSITORY

ROOT = REPOSITORY / "services/stele"
REFERENCE = re.compile(r"``((?:[a-z_]+\.)+[A-Za-z_]\w*)(?:\(\))?``")
FOLDERS = {
    folder.name: folder
    for parent in (ROOT / "domain", ROOT)
    for folder in parent.iterdir()
    if (folder / "__init__.py").exists()
}
NOT_MODULES = {"fold.image.epoch", "group.instance.id", "member.routes", "node.json"}
"""A local value, a setting of Kafka, a method of a local value, and a file."""


def found(folder: Path, names: list[str]) -> bool:
    """Return whether the dotted name is a module below the folder, or a name that it defines."""
    for index, name in enumerate(names):
        if (folder / name).is_dir():
            folder /= name
            continue
        module = folder / f"{name}.py"
        rest = names[index + 1 :] if module.exists() else names[index:]
        text = (module if module.exists() else folder / "__init__.py").read_text()
        defined = rf"^ *(class|def|async def) {rest[0]}\b|^ *{rest[0]}\b.*=" if rest else ""
        return re.search(defined, text, re.MULTILINE) is not None
    return True


def test_dotted_names_in_backquotes_exist() -> None:
    dead = []
    for path in sorted(ROOT.rglob("*.py")):
        for reference in set(REFERENCE.findall(path.read_text())) - NOT_MODULES:
            first, *rest = reference.removeprefix("stele.").split(".")
            if first in FOLDERS:
                is_dead = not found(FOLDERS[first], rest)
            else:
                is_dead = (path.parent / f"{first}.py").exists() and not found(
                    path.parent, [first, *rest]
                )
            if is_dead:
                dead.append(f"{path.relative_to(ROOT)}: {reference}")
    assert not dead


def test_class_names_are_unique() -> None:
    found = Counter(
        node.name
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in found.items() if count > 1] == []
