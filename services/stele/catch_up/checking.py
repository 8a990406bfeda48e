"""A check of the whole archive within the replica: one at a time, in a thread with a share of a processor."""

import asyncio
import time
from typing import Final

from stele.catch_up.share import resting
from stele.log.archive.archive import Archive
from stele.log.archive_store.check import Progress, check
from stele.log.archive_store.verify import Verdict
from stele.runtime.answers.catch_up import CheckAnswer, CheckState
from stele.runtime.logs import get_logger

PERCENT: Final = 25

log = get_logger(__name__)


class _Stopped(Exception):
    """The process ends."""


class Checks:
    """``answer`` says how far the newest one is."""

    def __init__(self, archive: Archive) -> None:
        self.answer = CheckAnswer(state=CheckState.NONE)
        self._archive = archive
        self._task: asyncio.Task[None] | None = None
        self._ended = False

    def begin(self, percent: int = PERCENT) -> CheckAnswer:
        """Unless one is under way."""
        if self.answer.state is not CheckState.RUNNING and not self._ended:
            self.answer = CheckAnswer(state=CheckState.RUNNING, began_ms=_now_ms())
            self._task = asyncio.create_task(self._run(percent / 100))
        return self.answer

    async def close(self) -> None:
        """One that is under way comes to nothing."""
        self._ended = True
        if self._task is not None:
            await self._task

    async def _run(self, share: float) -> None:
        began_ms = self.answer.began_ms
        try:
            verdict = await asyncio.to_thread(self._check, share)
        except _Stopped:
            return
        except Exception as error:
            log.exception("the archive could not be checked")
            self.answer = CheckAnswer(
                state=CheckState.FAILED, began_ms=began_ms, ended_ms=_now_ms(), why=repr(error)
            )
            return
        self.answer = CheckAnswer(
            state=CheckState.DONE, began_ms=began_ms, ended_ms=_now_ms(), verdict=verdict
        )
        for flaw in verdict.flaws:
            log.error("the check of the archive found a flaw", what=flaw)

    def _check(self, share: float) -> Verdict:
        rest, began_ms = resting(share), self.answer.began_ms

        def on_progress(done: Progress) -> None:
            if self._ended:
                raise _Stopped
            self.answer = CheckAnswer(
                state=CheckState.RUNNING,
                began_ms=began_ms,
                first=done.first,
                epoch=done.epoch,
                last=done.last,
                snapshots=done.snapshots,
            )
            rest()

        return check(self._archive, on_progress)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
