"""A commit pipeline that acts on its results at once, for tests without an event loop."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context

from stele.domain.commands import Envelope, Outcome, Rejection
from stele.domain.facts import Epoch
from stele.log.fold import Fold
from stele.log.pipeline import CommitPipeline, Decisions
from stele.log.record_builder import Deciding, Ids, Made, Pending

Past = Callable[[int], Decisions | None]


class AtOnce(asyncio.AbstractEventLoop):
    """An event loop only for futures: their callbacks run as soon as they end."""

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        handle._run()
        return handle

    def create_future(self) -> asyncio.Future[Outcome]:
        return asyncio.Future(loop=self)

    def get_debug(self) -> bool:
        return False


def unknown(epoch: int) -> Decisions | None:
    raise AssertionError(f"nobody asks twice here, so epoch {epoch} need not be read")


class Driven(CommitPipeline):
    """Passes records to ``append``, and asks ``past`` for the decisions of past epochs.

    Without ``past`` these epochs wait in ``asked``. Large decisions wait in ``works``, if it is set.
    Commands that break the core fail the test, unless ``bugs`` is set.
    """

    def __init__(
        self, fold: Fold, append: Callable[[bytes], None], ids: Ids, past: Past | None = unknown
    ) -> None:
        super().__init__(fold, ids, AtOnce())  # type: ignore[abstract]  # only futures use it
        self._depth = 0
        self.append = append
        self.past = past
        self.asked: list[int] = []
        self.works: deque[Deciding] | None = None
        self.bugs: list[Envelope] | None = None

    @contextmanager
    def outermost(self) -> Iterator[None]:
        """Act at the end of a call from outside: the pipeline calls its own methods too."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
        if not self._depth:
            self.act()

    def submit(
        self, envelope: Envelope, problem: Rejection | None = None, digest: bytes = b""
    ) -> Pending:
        with self.outermost():
            return super().submit(envelope, problem, digest)

    def linearizable_read(self) -> Pending:
        with self.outermost():
            return super().linearizable_read()

    def flush(self) -> None:
        with self.outermost():
            super().flush()

    def on_record(self, offset: int, value: bytes) -> Epoch | None:
        with self.outermost():
            return super().on_record(offset, value)

    def resolve(self) -> None:
        with self.outermost():
            super().resolve()

    def recalled(self, epoch: int, decisions: Decisions | None) -> None:
        with self.outermost():
            super().recalled(epoch, decisions)

    def decided(self, deciding: Deciding, made: Made) -> None:
        with self.outermost():
            super().decided(deciding, made)

    def act(self) -> None:
        ready = self.take_ready()
        for value in ready.records:
            self.append(value)
        for epoch in ready.recalls:
            if self.past is None:
                self.asked.append(epoch)
            else:
                self.recalled(epoch, self.past(epoch))
        for envelope, error in ready.bugs:
            if self.bugs is None:
                raise error
            self.bugs.append(envelope)
        if ready.deciding is not None:
            if self.works is None:
                self.decided(ready.deciding, ready.deciding.decide())
            else:
                self.works.append(ready.deciding)


def tell(pending: Pending, told: Callable[[Outcome], object]) -> None:
    """Call ``told`` with the outcome when it is certain."""
    pending.add_done_callback(lambda ended: told(ended.result()))
