"""What of a log's past is with the catch-up replicas, for those whose topic does not hold it any more."""

from collections.abc import Callable
from typing import Final

from stele.log.archive.container import DamagedFileError
from stele.log.archive.spans import NotArchivedError
from stele.log.history import EpochNotFoundError, Winner
from stele.log.start import BEGINNING_FOR_FOLLOWERS, Start
from stele.runtime.catch_up import CatchUp, CatchUpUnavailable
from stele.runtime.logs import get_logger

NOBODY: Final = "no catch-up replica gives it now"

log = get_logger(__name__)


class RemoteArchive:
    """The archive of whichever replica is near and has it, and follows the log of this id now."""

    def __init__(self, catch_up: CatchUp, log_id: Callable[[], str]) -> None:
        self._catch_up = catch_up
        self._log_id = log_id

    async def winners(self, first: int, last: int) -> list[Winner]:
        """Epochs from ``first`` on, at least one and at most up to ``last``.

        Raises EpochNotFoundError, TimeoutError.
        """
        try:
            found = await self._catch_up.records(first, last, self._log_id())
        except NotArchivedError as error:
            raise EpochNotFoundError(first, 0, last) from error
        except CatchUpUnavailable as error:
            raise TimeoutError(f"{error}") from error
        return [Winner(record.epoch, record.offset, record.value) for record in found]

    async def start(self, epoch: int) -> Start:
        """The newest snapshot not after ``epoch`` that a replica gives, or the beginning of the log."""
        for url, answer in await self._catch_up.starts(at_most=epoch, tail=0):
            if answer.snapshot is None or answer.log_id != self._log_id():
                continue
            try:
                return await self._catch_up.load(url, answer.snapshot, decided=False)
            except (CatchUpUnavailable, DamagedFileError) as error:
                log.warning("a snapshot was not got", url=url, why=str(error))
        return BEGINNING_FOR_FOLLOWERS
