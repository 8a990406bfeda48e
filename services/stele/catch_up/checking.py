"""Checks of the whole archive within the replica: one at a time, in a thread with a share of a processor.

Disks lose what nobody reads. So a check is made each few days, at a small share; what it finds damaged is set
aside by whoever reads it, and filled from others. The newest answer is kept in a file, since processes live for
less long.
"""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Final

import msgspec

from stele.catch_up import metrics
from stele.catch_up.share import resting
from stele.log.archive.archive import Archive
from stele.log.archive.files import whole_file
from stele.log.archive_store.check import Progress, check
from stele.log.archive_store.verify import Verdict
from stele.runtime.answers.catch_up import CheckAnswer, CheckState
from stele.runtime.logs import get_logger

FILE: Final = "checked.json"
PERCENT: Final = 25
UNASKED_PERCENT: Final = 5
FIRST_AFTER_S: Final = 3600.0
"""After the start, where the archive was never checked: who has just begun has other things to do."""
DAY_S: Final = 86_400.0

log = get_logger(__name__)


class _Stopped(Exception):
    """The process ends."""


class Checks:
    """``answer`` says how far the newest one is. In the ``kept`` file it outlives the process."""

    def __init__(self, archive: Archive, kept: Path | None = None) -> None:
        self._kept = kept
        self.answer = _read(kept)
        self._archive = archive
        self._task: asyncio.Task[None] | None = None
        self._repeating: asyncio.Task[None] | None = None
        self._ended = False

    def repeat(self, every_days: float) -> None:
        """Begin one whenever the newest is so old, with a small share; 0: only when asked."""
        if every_days > 0:
            self._repeating = asyncio.create_task(self._repeat(every_days * DAY_S), name="checks")

    async def _repeat(self, every_s: float) -> None:
        if self.answer.state is CheckState.NONE:
            await asyncio.sleep(min(FIRST_AFTER_S, every_s))
            await self._one()
        while True:
            await asyncio.sleep(due_in_s(self.answer.ended_ms, _now_ms(), every_s))
            await self._one()

    async def _one(self) -> None:
        self.begin(UNASKED_PERCENT)
        if self._task is not None:
            await asyncio.shield(self._task)

    def begin(self, percent: int = PERCENT) -> CheckAnswer:
        """Unless one is under way."""
        if self.answer.state is not CheckState.RUNNING and not self._ended:
            self.answer = CheckAnswer(state=CheckState.RUNNING, began_ms=_now_ms())
            self._task = asyncio.create_task(self._run(percent / 100))
        return self.answer

    async def close(self) -> None:
        """One that is under way comes to nothing."""
        self._ended = True
        if self._repeating is not None:
            self._repeating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._repeating
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
            await asyncio.to_thread(self._keep)
            return
        self.answer = CheckAnswer(
            state=CheckState.DONE, began_ms=began_ms, ended_ms=_now_ms(), verdict=verdict
        )
        metrics.told(self.answer)
        for flaw in verdict.flaws:
            log.error("the check of the archive found a flaw", what=flaw)
        await asyncio.to_thread(self._keep)

    def _keep(self) -> None:
        if self._kept is None:
            return
        try:
            with whole_file(self._kept) as file:
                file.write(msgspec.json.encode(self.answer))
        except OSError as error:
            log.warning("what the check found is not kept on the disk", why=str(error))

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


def due_in_s(ended_ms: int, now_ms: int, every_s: float) -> float:
    """Until the next check; a clock that was set back brings it no further away than one interval."""
    return min(every_s, max(0.0, ended_ms / 1000 + every_s - now_ms / 1000))


def _read(kept: Path | None) -> CheckAnswer:
    """The answer of before; of a file that cannot be read, that there is none."""
    if kept is not None:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            answer = msgspec.json.decode(kept.read_bytes(), type=CheckAnswer)
            metrics.told(answer)
            return answer
    return CheckAnswer(state=CheckState.NONE)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
