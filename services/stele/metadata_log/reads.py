"""Chooses the image of a query: by level, epoch or cursor."""

from collections import OrderedDict
from typing import Final

from starlette.requests import Request

from stele.domain.image import Image
from stele.metadata_log.questions import PageCursor, level_of, number
from stele.metadata_log.writer import Writer
from stele.runtime.http import HttpError

KEPT_IMAGES: Final = 16
"""States kept while their pages are read. Images share their structure, so each is cheap."""


class ImageReads:
    """Finds images, and keeps those whose pages were served recently."""

    def __init__(self, writer: Writer, timeout_s: float) -> None:
        self._writer = writer
        self._timeout_s = timeout_s
        self._kept: OrderedDict[int, Image] = OrderedDict()

    async def image(self, request: Request) -> Image:
        """Return the image for ``level`` and ``epoch``.

        Raises the errors of the writer and its history.
        """
        image = await self._at_level(level_of(request))
        epoch = number(request, "epoch", -1)
        return image if epoch < 0 else await self.image_at(epoch)

    async def image_of(self, request: Request, cursor: PageCursor | None) -> Image:
        """Return the image of the cursor: the state of its first page."""
        if cursor is None:
            return await self.image(request)
        image = await self.image_at(cursor.epoch)
        if image.state_id.hex() != cursor.state_id:
            raise HttpError(
                410,
                "cursor_expired",
                f"Epoch {cursor.epoch} of this log is not the state that the cursor is of.",
                hint="Begin again with the first page.",
            )
        return image

    async def image_at(self, epoch: int) -> Image:
        kept = self._kept.get(epoch)
        return await self._writer.history.image_at(epoch) if kept is None else kept

    def keep(self, image: Image) -> None:
        """Keep an image, because the next page will need it."""
        self._kept[image.epoch] = image
        self._kept.move_to_end(image.epoch)
        if len(self._kept) > KEPT_IMAGES:
            self._kept.popitem(last=False)

    async def _at_level(self, level: str) -> Image:
        match level:
            case "barrier":
                return await self._writer.barrier(self._timeout_s)
            case "linearizable":
                return await self._writer.linearizable(self._timeout_s)
            case _:
                return self._writer.image
