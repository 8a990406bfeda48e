"""Checks of the whole archive within the replica: one at a time, in a thread with a share of a
processor.

Disks lose data that is never read. A check therefore runs every few days, with a small share. A
file found damaged is set aside by its reader and fetched again from other replicas. The newest
answer is kept in a file, because a process does not live as long as the interval between checks.
"""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Final

import msgspec

from stele.catch_up import metrics
from stele.catch_up.keeper import resting
from stele.log.archive.archive import Archive
from stele.log.archive.container import whole_file
from stele.log.archive_store.source import LocalSource
from stele.log.archive_store.verify import CheckProgress, verify
from stele.runtime.answers.catch_up import CheckAnswer, CheckState
from stele.runtime.logs import get_logger

FILE: Final = "checked.json"
PERCENT: Final = 25
UNASKED_PERCENT: Final = 5
FIRST_AFTER_S: Final = 3600.0
"""Delay of the first check after the start, when the archive was never checked: other work comes
first then.
"""
DAY_S: Final = 86_400.0

log = get_logger(__name__)


class _Stopped(Exception):
    """Raised in the checking thread when the process ends."""


class Checks:
    """Runs and repeats checks.

    ``answer`` is the state of the newest one; the ``kept`` file preserves it.
    """

    def __init__(self, archive: Archive, kept: Path | None = None) -> None:
        self._kept = kept
        self.answer = _read(kept)
        self._archive = archive
        self._task: asyncio.Task[None] | None = None
        self._repeating: asyncio.Task[None] | None = None
        self._ended = False

    def repeat(self, every_days: float) -> None:
        """Start a check, with a small share, when the newest is ``every_days`` old.

        0: only on request.
        """
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
        """Start a check with ``percent`` of a processor, unless one is running.

        Return its state.
        """
        if self.answer.state is not CheckState.RUNNING and not self._ended:
            self.answer = CheckAnswer(state=CheckState.RUNNING, began_ms=_now_ms())
            self._task = asyncio.create_task(self._run(percent / 100))
        return self.answer

    async def close(self) -> None:
        """Stop repeating and abort a running check without a result."""
        self._ended = True
        if self._repeating is not None:
            self._repeating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._repeating
        if self._task is not None:
            await self._task

    async def _run(self, share: float) -> None:
        rest, began_ms = resting(share), self.answer.began_ms

        def pause() -> None:
            if self._ended:
                raise _Stopped
            rest()

        def on_progress(done: CheckProgress) -> None:
            self.answer = CheckAnswer(
                state=CheckState.RUNNING,
                began_ms=began_ms,
                first=done.first,
                epoch=done.epoch,
                last=done.last,
                snapshots=done.snapshots,
            )
            pause()

        try:
            source = LocalSource(self._archive, pause=pause)
            verdict = await verify(source, on_progress)
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
        metrics.set_check(self.answer)
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


def due_in_s(ended_ms: int, now_ms: int, every_s: float) -> float:
    """Return the seconds until the next check, at most one interval even if the clock was set
    back.
    """
    return min(every_s, max(0.0, ended_ms / 1000 + every_s - now_ms / 1000))


def _read(kept: Path | None) -> CheckAnswer:
    """Read the previous answer. Without a readable file the answer is ``CheckState.NONE``."""
    if kept is not None:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            answer = msgspec.json.decode(kept.read_bytes(), type=CheckAnswer)
            metrics.set_check(answer)
            return answer
    return CheckAnswer(state=CheckState.NONE)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
