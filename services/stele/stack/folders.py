"""What a stack knows of its nodes from their folders: who was there before, and who is to stay down."""

from __future__ import annotations

import shutil
from pathlib import Path

NODE_FILE = "node.json"
"""By which a node knows its folder."""
DOWN_FILE = "stays_down"
"""Why the node is not started again; `stele stack start` removes it."""


def is_node(name: str) -> bool:
    """Whether a process of a stack is a data node, by its name."""
    return name[:1] == "n" and name[1:].isdigit()


def node_numbers(services: Path) -> list[int]:
    """Of all nodes that ever had a folder here, those that were removed too: no other gets their names."""
    names = (path.name for path in services.glob("n[0-9]*"))
    return sorted(int(name[1:]) for name in names if name[1:].isdigit())


def earlier(services: Path) -> set[str]:
    """Processes with a node's data."""
    return {path.parent.name for path in services.glob(f"*/{NODE_FILE}")}


def was_removed(folder: Path) -> bool:
    """Whether ``clear`` was here: of a node nothing is left but its name."""
    return folder.is_dir() and [path.name for path in folder.iterdir()] == [DOWN_FILE]


def stays_down(folder: Path) -> str:
    """Why it stays down; empty when it does not."""
    file = folder / DOWN_FILE
    return (file.read_text().strip() or "it was stopped") if file.exists() else ""


def keep_down(folder: Path, why: str) -> None:
    """Have no later stack start it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DOWN_FILE).write_text(why + "\n")


def let_up(folder: Path) -> None:
    (folder / DOWN_FILE).unlink(missing_ok=True)


def clear(folder: Path, why: str) -> None:
    """Delete all that a node has; its name stays taken."""
    shutil.rmtree(folder, ignore_errors=True)
    keep_down(folder, why)
