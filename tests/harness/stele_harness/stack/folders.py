"""State of a stack's nodes in their folders: the nodes that existed before, and those that must
stay down.
"""

from __future__ import annotations

import shutil
from pathlib import Path

NODE_FILE = "node.json"
"""File that marks a folder as a node's."""
DOWN_FILE = "stays_down"
"""File with the reason why the node is not restarted. `stele stack start` removes it."""


def is_node(name: str) -> bool:
    """Return whether a process of a stack is a data node, by its name."""
    return name[:1] == "n" and name[1:].isdigit()


def node_numbers(services: Path) -> list[int]:
    """Return the numbers of all nodes that ever had a folder here.

    Names of removed nodes are not reused.
    """
    names = (path.name for path in services.glob("n[0-9]*"))
    return sorted(int(name[1:]) for name in names if name[1:].isdigit())


def earlier(services: Path) -> set[str]:
    """Return the processes with a node's data."""
    return {path.parent.name for path in services.glob(f"*/{NODE_FILE}")}


def was_removed(folder: Path) -> bool:
    """Return whether ``clear`` has run: only the name of the node remains."""
    return folder.is_dir() and [path.name for path in folder.iterdir()] == [DOWN_FILE]


def stays_down(folder: Path) -> str:
    """Return why the node stays down; empty when it does not."""
    file = folder / DOWN_FILE
    return (file.read_text().strip() or "it was stopped") if file.exists() else ""


def keep_down(folder: Path, why: str) -> None:
    """Prevent later stacks from starting the node."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DOWN_FILE).write_text(why + "\n")


def let_up(folder: Path) -> None:
    (folder / DOWN_FILE).unlink(missing_ok=True)


def clear(folder: Path, why: str) -> None:
    """Delete all data of a node; its name stays taken."""
    shutil.rmtree(folder, ignore_errors=True)
    keep_down(folder, why)
