"""Locked packages can be installed on every promised version of Python."""

from __future__ import annotations

import re
import tomllib

from stele_harness.stack.jars import project_root

BACKPORT = re.compile(r"^backports[.-]zstd(.*)$", re.MULTILINE)


def test_backport_is_required_only_by_older_pythons() -> None:
    """The backport has no wheel for Python 3.14, which has the module in its standard library."""
    root = project_root()
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert any(
        re.fullmatch(r"backports.zstd.*python_version < '3.14'", d) for d in project["dependencies"]
    )
    for lock in ("all", "services", "placements", "router", "agent"):
        (found,) = BACKPORT.findall((root / "requirements" / f"{lock}.txt").read_text())
        assert "python_full_version < '3.14'" in found, lock
