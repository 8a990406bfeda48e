"""Planted bugs of a log that is frozen, or of one actor."""
# ruff: noqa: SLF001 - bugs are planted in private places too

from collections.abc import Set
from typing import Final

from stele.domain.commands import Envelope, Rejection
from stele.domain.commits.facts import Commits
from stele.domain.commits.restricted import restricted
from stele.domain.context import Decision, WorkedOut
from stele.domain.decide import decide
from stele.domain.image import Image
from stele.log.flight import Waiting
from stele.log.pipeline import CommitPipeline
from stele.sim.patching import Patch


def frozen_log_refuses(patch: Patch) -> None:
    """What a frozen log does not take is refused by decision, and so for ever."""
    judge, plain = restricted, decide

    def refuse(
        image: Image,
        envelope: Envelope,
        at_ms: int,
        worked_out: WorkedOut | None = None,
        supported: Set[str] | None = None,
    ) -> Decision:
        refused = judge(image.commits, envelope)
        return refused or plain(image, envelope, at_ms, worked_out, supported)

    def never(commits: Commits, envelope: Envelope) -> Rejection | None:
        return None

    patch.function(decide, refuse)
    patch.function(restricted, never)


def frozen_by_what_was_read(patch: Patch) -> None:
    """Whether the log is frozen is looked up in what was read of it, not in what is on its way."""
    submit = CommitPipeline._submit

    def by_what_was_read(
        self: CommitPipeline, waiting: Waiting, unrelated: frozenset[int] = frozenset()
    ) -> None:
        tip, known = self.tip, waiting.envelope.request_id in self._by_request
        read = restricted(self.fold.image.commits, waiting.envelope)
        if read is None and restricted(tip.commits, waiting.envelope) and not known:
            self._decide(waiting, tip)
        else:
            submit(self, waiting, unrelated)

    patch.attribute(CommitPipeline, "_submit", by_what_was_read)


def frozen_is_told_before_it_is_certain(patch: Patch) -> None:
    """Callers are told that the log is frozen while the freeze is on its way, and may lose."""
    submit = CommitPipeline._submit

    def at_once(
        self: CommitPipeline, waiting: Waiting, unrelated: frozenset[int] = frozenset()
    ) -> None:
        why = restricted(self.tip.commits, waiting.envelope)
        if why is None or waiting.envelope.request_id in self._by_request:
            submit(self, waiting, unrelated)
        else:
            waiting.reply(self._not_taken(waiting.envelope, why))

    patch.attribute(CommitPipeline, "_submit", at_once)


FREEZING_MUTANTS: Final = (
    frozen_log_refuses,
    frozen_by_what_was_read,
    frozen_is_told_before_it_is_certain,
)
