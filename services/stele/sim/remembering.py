"""What a writer remembers of request ids: a stand-in for the log's memory of outcomes.

One id takes effect once, whoever sends it again and through whichever writer.
"""

from stele.domain.commands import Outcome
from stele.domain.facts import Epoch
from stele.domain.image import EMPTY, ZERO_STATE, Image
from stele.log.chain import Anchor
from stele.log.codec import decode_epoch
from stele.log.fold import Fold
from stele.log.pipeline import CommitPipeline, Waiting


class RememberingFold(Fold):
    """A fold that knows the epoch of each request id that took effect."""

    def __init__(
        self,
        image: Image = EMPTY,
        next_offset: int = 0,
        anchor: Anchor | None = None,
        epoch_of: dict[str, int] | None = None,
    ) -> None:
        super().__init__(image, next_offset, anchor)
        self.epoch_of: dict[str, int] = {} if epoch_of is None else dict(epoch_of)

    def offer(self, offset: int, value: bytes) -> Epoch | None:
        epoch = super().offer(offset, value)
        if epoch is not None:
            self.epoch_of[epoch.request_id] = epoch.epoch
        return epoch

    def adopt(self, offset: int, value: bytes, image: Image) -> None:
        super().adopt(offset, value, image)
        self.epoch_of[decode_epoch(value).request_id] = image.epoch


class RememberingPipeline(CommitPipeline):
    """A pipeline that answers what took effect already instead of deciding it again."""

    fold: RememberingFold

    def _submit(self, waiting: Waiting) -> None:
        request_id = waiting.envelope.request_id
        epoch = self.known_epoch(request_id)
        if epoch is None:
            super()._submit(waiting)
            return
        outcome = Outcome(
            request_id=request_id,
            applied=True,
            epoch=epoch,
            state_id=ZERO_STATE,
            log_id=self.fold.image.log_id,
        )
        waiting.reply(outcome)

    def known_epoch(self, request_id: str) -> int | None:
        return self.fold.epoch_of.get(request_id)
