"""A replica checks its archive when it is asked to: once at a time, and not for longer than it runs."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stele.catch_up import checking
from stele.catch_up.checking import Checks
from stele.runtime.answers.catch_up import CheckState
from tests.log.archive_store.made import SNAPSHOTS, Made


async def ended(checks: Checks) -> None:
    async with asyncio.timeout(20):
        while checks.answer.state is CheckState.RUNNING:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_it_tells_how_far_it_is_and_what_it_found(tmp_path: Path) -> None:
    checks = Checks(Made(tmp_path).archive)
    assert checks.answer.state is CheckState.NONE
    began = checks.begin(100)
    assert began.state is CheckState.RUNNING
    assert checks.begin(100).began_ms == began.began_ms, "one at a time"
    await ended(checks)
    answer = checks.answer
    assert answer.state is CheckState.DONE
    assert answer.verdict is not None and answer.verdict.snapshots == SNAPSHOTS
    assert answer.ended_ms >= answer.began_ms > 0
    assert checks.begin(100).state is CheckState.RUNNING
    await checks.close()


async def test_a_process_that_ends_waits_for_no_check(tmp_path: Path) -> None:
    checks = Checks(Made(tmp_path).archive)
    checks.begin(1)
    async with asyncio.timeout(5):
        await checks.close()
    assert checks.begin().state is not CheckState.DONE


async def test_a_check_that_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise OSError("no disk")

    monkeypatch.setattr(checking, "check", fails)
    checks = Checks(Made(tmp_path).archive)
    checks.begin()
    await ended(checks)
    assert checks.answer.state is CheckState.FAILED
    assert "no disk" in checks.answer.why
