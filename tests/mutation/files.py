"""The files that are changed, and the tests that may find a change."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ROOT / "services"
FOLDERS: Final = tuple(
    f"services/stele/{name}" for name in ("agent", "coordinator", "domain", "log", "node")
)
UNIT_TESTS: Final = tuple(
    f"tests/{name}"
    for name in (
        *("agent", "catch_up", "coordinator", "domain", "log", "models", "node", "runtime"),
        *("session_guard", "tablet_balancer"),
    )
)
STORIES: Final = ("tests/sim/test_stories.py",)
"""Stories of the simulator, for code that no unit test runs or checks: several seconds each."""
NEED_SERVERS: Final = "broker or spark or end_to_end or deploy or browser"


def sources(paths: Sequence[str] = FOLDERS) -> list[str]:
    """Return the sources in these files and folders, relative to the root.

    Raises ValueError for a path without a source.
    """
    known = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    found = set[Path]()
    for path in paths:
        within = {each for each in known if each.is_relative_to(ROOT / path)}
        if not within:
            raise ValueError(f"{path} has no source to change; use paths in {', '.join(FOLDERS)}")
        found |= within
    return sorted(str(path.relative_to(ROOT)) for path in found)


COVERED: Final = "STELE_COVERED"
"""The environment variable with the path of the plugin's output."""
