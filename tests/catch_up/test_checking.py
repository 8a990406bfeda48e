"""A replica checks its archive on request and regularly, one check at a time."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stele.catch_up import checking
from stele.catch_up.checking import FILE, Checks, due_in_s
from stele.runtime.answers.catch_up import CheckState
from tests.log.archive_store.made import SNAPSHOTS, Made


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


async def wait_until_ended(checks: Checks) -> None:
    async with asyncio.timeout(240):
        while checks.answer.state is CheckState.RUNNING:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_check_reports_its_state_and_its_result(tmp_path: Path) -> None:
    checks = Checks(Made(tmp_path).archive)
    assert checks.answer.state is CheckState.NONE
    began = checks.begin(100)
    assert began.state is CheckState.RUNNING
    assert checks.begin(100).began_ms == began.began_ms, "one at a time"
    await wait_until_ended(checks)
    answer = checks.answer
    assert answer.state is CheckState.DONE
    assert answer.verdict is not None and answer.verdict.snapshots == SNAPSHOTS
    assert answer.ended_ms >= answer.began_ms > 0
    assert checks.begin(100).state is CheckState.RUNNING
    await checks.close()


async def test_shutdown_does_not_wait_for_a_check(tmp_path: Path) -> None:
    checks = Checks(Made(tmp_path).archive)
    checks.begin(1)
    async with asyncio.timeout(240):
        await checks.close()
    assert checks.begin().state is not CheckState.DONE


async def test_failed_check_reports_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise OSError("no disk")

    monkeypatch.setattr(checking, "verify", fails)
    checks = Checks(Made(tmp_path).archive)
    checks.begin()
    await wait_until_ended(checks)
    assert checks.answer.state is CheckState.FAILED
    assert "no disk" in checks.answer.why


async def test_result_of_a_check_survives_a_restart(tmp_path: Path) -> None:
    made, kept = Made(tmp_path), tmp_path / FILE
    flip_a_bit(min(tmp_path.glob("segments/*")))  # noqa: ASYNC240
    checks = Checks(made.archive, kept)
    checks.begin(100)
    await wait_until_ended(checks)
    await checks.close()
    assert checks.answer.verdict is not None and checks.answer.verdict.flaws
    assert Checks(made.archive, kept).answer == checks.answer
    kept.write_bytes(b"torn")
    assert Checks(made.archive, kept).answer.state is CheckState.NONE


async def test_checks_repeat_at_the_configured_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = Checks(Made(tmp_path).archive, tmp_path / FILE)
    monkeypatch.setattr(checking, "UNASKED_PERCENT", 100)
    checks.repeat(every_days=0.0)
    await asyncio.sleep(0.05)
    assert not checks.answer.began_ms, "only when asked"
    checks.repeat(every_days=0.2 / checking.DAY_S)
    ends = set[int]()
    async with asyncio.timeout(240):
        while len(ends) < 3:
            await asyncio.sleep(0.01)
            ends |= {checks.answer.ended_ms} - {0}
    await checks.close()


@pytest.mark.parametrize(
    ("ended_s", "now_s", "wait_s"), [(100, 100, 50), (100, 130, 20), (100, 900, 0), (900, 100, 50)]
)
def test_next_check_is_due_one_interval_after_the_last_at_most(
    ended_s: int, now_s: int, wait_s: float
) -> None:
    assert due_in_s(ended_s * 1000, now_s * 1000, 50.0) == wait_s
