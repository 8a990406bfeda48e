"""Generated pages agree with the code, and other pages agree with them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from stele_simulator.processes.stories.player import play_story
from tests.docs.errors_page import errors
from tests.docs.pages import REPOSITORY, blocks

OUTDATED = "from tests.docs.__main__ import outdated; print(*outdated())"


def test_generated_pages_are_up_to_date() -> None:
    """Runs in a separate process: a previous call of a command changes the first line of its help."""
    outdated = subprocess.run(
        [sys.executable, "-c", OUTDATED], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert not outdated.stdout.strip(), "run `python -m tests.docs`"


def test_errors_include_rejections_and_http_errors() -> None:
    codes = {each.code for each in errors()}
    assert {"…_exists", "too_few_nodes", "topic_missing", "unknown_epoch"} <= codes


def test_story_on_the_page_passes(tmp_path: Path) -> None:
    [story] = [block for block in blocks("docs/internals/stories.md") if block.language == "text"]
    path = tmp_path / "shown.txt"
    path.write_text("\n".join(story.lines))
    play_story(path)


def test_monitoring_page_lists_every_alert() -> None:
    alerts = (REPOSITORY / "infra" / "prometheus" / "alerts.yml").read_text()
    page = (REPOSITORY / "docs" / "guides" / "monitor.md").read_text()
    named = re.findall(r"^ *- alert: (\w+)$", alerts, re.MULTILINE)
    assert named
    shown = re.findall(r"^\| (Stele\w+) \|", page, re.MULTILINE)
    assert sorted(shown) == sorted(named)
