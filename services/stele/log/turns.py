"""Turns among writers of one log: who has been winning lets others win who have been losing.

Safety needs none of this. But a writer that always has records in flight wins all epochs: what others append
follows a state that this one's next record, which is in the log by then, has left behind. So whoever wins and
meets a loser of somebody else appends nothing for a moment: then the other's record is the only one that
follows the newest state.
"""

from typing import Final

from stele.log.chain import STATE_ID

MOST_OWN: Final = 65_536
"""Records of this writer that were appended and not met yet; those that never come are forgotten by and by."""


class Turns:
    """One writer's. It is told of all that the writer appends and meets."""

    def __init__(self) -> None:
        self.may_give_way = False
        """Whoever sets it has to end it too where nobody else wins, by ``go_on``."""
        self.gives_way = False
        """Nothing is to be appended now."""
        self._own: dict[bytes, None] = {}
        self._won_last = False

    def appended(self, value: bytes) -> None:
        self._own[value[STATE_ID]] = None
        if len(self._own) > MOST_OWN:
            del self._own[next(iter(self._own))]

    def won(self, value: bytes) -> None:
        """A record of this writer has won."""
        self._own.pop(value[STATE_ID], None)
        self._won_last = True

    def another_won(self) -> None:
        self._won_last = self.gives_way = False

    def met_loser(self, value: bytes) -> None:
        """Of this writer or of another."""
        state_id = value[STATE_ID]
        if state_id in self._own:
            del self._own[state_id]
        elif self._won_last and self.may_give_way:
            self.gives_way = True

    def go_on(self) -> None:
        """Nobody else has won meanwhile."""
        self.gives_way = False
