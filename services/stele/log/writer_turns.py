"""Turns of the writers of one log: a writer that wins pauses so that a losing writer can win.

Safety does not depend on it. A writer that always has records in flight wins all epochs. A record
of another writer follows a state that the next record in the log has already replaced. Therefore a
writer that wins and reads the loser of another writer appends nothing for a short time. The other
writer's next record is then the only one that follows the newest state. See docs/design.md, rule 9,
and docs/decisions/068-writers-take-turns.md.
"""

from typing import Final

from stele.log.chain import STATE_ID

MOST_OWN: Final = 65_536
"""Own records to remember until they are read. The oldest is dropped: lost records never come."""


class WriterTurns:
    """The turns of one writer. Call it for every record that the writer appends or reads."""

    def __init__(self) -> None:
        self.may_pause = False
        """True while this writer may pause. The owner must call ``resume`` if no other one wins."""
        self.is_paused = False
        """True while the writer is paused: it must append nothing."""
        self._own: dict[bytes, None] = {}
        self._won_last = False

    def appended(self, value: bytes) -> None:
        """Remember a record that this writer appends."""
        self._own[value[STATE_ID]] = None
        if len(self._own) > MOST_OWN:
            del self._own[next(iter(self._own))]

    def won(self, value: bytes) -> None:
        """Note that a record of this writer has won."""
        self._own.pop(value[STATE_ID], None)
        self._won_last = True

    def other_writer_won(self) -> None:
        """Note that a record of another writer has won, which ends the pause."""
        self._won_last = self.is_paused = False

    def read_loser(self, value: bytes) -> None:
        """Note a loser, and begin a pause if it is another writer's and this writer won last."""
        state_id = value[STATE_ID]
        if state_id in self._own:
            del self._own[state_id]
        elif self._won_last and self.may_pause:
            self.is_paused = True

    def resume(self) -> None:
        """End the pause although no other writer has won."""
        self.is_paused = False
