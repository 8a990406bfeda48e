"""What is changed, and what may find it."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ROOT / "services"
FOLDERS: Final = tuple(
    f"services/stele/{name}" for name in ("coordinator", "domain", "log", "node")
)
UNIT_TESTS: Final = tuple(
    f"tests/{name}"
    for name in (
        *("agent", "catch_up", "coordinator", "domain", "log", "models", "node", "runtime"),
        *("session_guard", "tablet_balancer"),
    )
)
STORIES: Final = ("tests/sim/test_stories.py",)
"""Of the simulator, for what no unit test runs or finds: several seconds each."""
NEED_SERVERS: Final = "broker or spark or end_to_end or deploy or browser"


def sources() -> list[str]:
    """From the root."""
    found = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return sorted(str(path.relative_to(ROOT)) for path in found)


COVERED: Final = "STELE_COVERED"
"""The variable that says where to write which test runs which line."""
