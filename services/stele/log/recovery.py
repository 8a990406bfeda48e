"""For whoever recovers a log: what winners tell, whether it was done already, and where readers begin.

The steps, which are the caller's: choose a history (``domain.recovery.histories``) and have its image; look
through the topic for a recovery that is there (``first_recovery``) and take that one, if there is one; else
append the record (``domain.recovery.record``) and look again, from the offset where the topic ended before. The
first one in the log counts, whoever wrote it. From it and the image comes the ``Start`` of all readers
(``start_after``), which goes into the snapshot that they begin with. No running reader crosses a recovery.
"""

from collections.abc import Iterable

from stele.domain.image import Image
from stele.log.chain import FROZEN, LOG_ID
from stele.log.errors import CorruptRecordError, LaterLogError
from stele.log.fold import Fold
from stele.log.incarnations import goes_on_later, recovered_from
from stele.log.port import Record
from stele.log.start import Start


def first_recovery(records: Iterable[Record], log_id: bytes) -> Record | None:
    """The first record by which log ``log_id``, or one that came from it, goes on as another; None: not yet.

    Raises UnknownSchemaError for a record of a later log that this build cannot read, LaterLogError for one
    before which no recovery is found.
    """
    for record in records:
        if recovered_from(log_id, *record) is not None:
            return record
        if goes_on_later(log_id, record.value):
            raise LaterLogError(record.offset, _later_log(log_id, record.value[LOG_ID]))
    return None


def _later_log(log_id: bytes, later: bytes) -> str:
    return (
        f"log {later.hex()} is written here, which is later than {log_id.hex()}; a recovery of that would be a"
        " second history. Recover from a replica that knows the later one; or stop its processes, and delete"
        " the topic, if it is to be given up."
    )


def start_after(image: Image, recovery: Record) -> Start:
    """Where readers of the recovered log begin: at its first epoch, made from the image of the last one before.

    Raises RecoveredError when the record goes on from another epoch than the image's, or from another log, and
    ValueError when it is no recovery.
    """
    fold = Fold(image, recovery.offset, across_recoveries=True)
    epoch = fold.offer(*recovery)
    if epoch is None or epoch.log_id == image.log_id:
        raise ValueError(f"the record at offset {recovery.offset} is no recovery of this log")
    return Start(fold.image, fold.next_offset, fold.chain.anchor)


def states_of(winners: Iterable[Record]) -> dict[int, bytes]:
    """State ids by epoch, as winners that follow each other tell them, the epoch before the first included.

    Raises CorruptRecordError where one does not follow the one before it.
    """
    states: dict[int, bytes] = {}
    newest = 0
    for offset, value in winners:
        previous, state_id, _, _, epoch, _ = FROZEN.unpack_from(value)
        if states and (newest, states[newest]) != (epoch - 1, previous):
            raise CorruptRecordError(offset, f"epoch {epoch} does not follow the one before it")
        states[epoch - 1], states[epoch] = previous, state_id
        newest = epoch
    return states
