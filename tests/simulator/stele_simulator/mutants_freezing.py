"""Planted bugs of a log that is frozen, or of one actor."""

from collections.abc import Set

from stele.domain.commands import Envelope, Rejection
from stele.domain.context import Decision, WorkedOut
from stele.domain.decide import decide
from stele.domain.image import Image
from stele.domain.model.commits import Commits
from stele.domain.not_taken import restricted
from stele.log.pipeline import CommitPipeline
from stele.log.record_builder import Waiting, settle
from stele_simulator.patching import Patch
from stele_simulator.planting import RUN, planted


@planted(RUN)
def frozen_log_refuses(patch: Patch) -> None:
    """A frozen log rejects commands by a recorded decision, so their ids stay rejected."""
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


@planted(RUN)
def frozen_by_what_was_read(patch: Patch) -> None:
    """The check for a frozen log ignores records in flight."""
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


@planted(RUN)
def frozen_is_told_before_it_is_certain(patch: Patch) -> None:
    """Callers learn of a freeze while its record is in flight and may lose."""
    submit = CommitPipeline._submit

    def at_once(
        self: CommitPipeline, waiting: Waiting, unrelated: frozenset[int] = frozenset()
    ) -> None:
        why = restricted(self.tip.commits, waiting.envelope)
        if why is None or waiting.envelope.request_id in self._by_request:
            submit(self, waiting, unrelated)
        else:
            settle(waiting.pending, self._not_taken(waiting.envelope, why))

    patch.attribute(CommitPipeline, "_submit", at_once)
