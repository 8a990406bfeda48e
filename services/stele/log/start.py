"""Where a reader of the log begins: at its first record, or behind a snapshot."""

from typing import Final, NamedTuple

from stele.domain.image import EMPTY, EMPTY_FOR_FOLLOWERS, Image
from stele.log.chain import Anchor


class Start(NamedTuple):
    """An image, the offset of the first record that is not in it, and the winner that it ends with; also some
    winners of this log before that one, oldest first, where they are known.
    """

    image: Image
    next_offset: int = 0
    anchor: Anchor | None = None
    before: tuple[Anchor, ...] = ()


BEGINNING: Final = Start(EMPTY)
BEGINNING_FOR_FOLLOWERS: Final = Start(EMPTY_FOR_FOLLOWERS)
