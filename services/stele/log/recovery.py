"""Functions for the recovery of a log (docs/decisions/027-recovery.md).

The caller performs these steps:

1. Choose a history (``domain.recovery.choose``) and load its image.
2. Search the topic for an existing recovery (``first_recovery``), and use it if there is one.
3. Otherwise append the record (``domain.recovery.recovered``). Search again, from the offset at which
   the topic ended before. The first recovery in the log counts, whichever process wrote it.
4. Derive the ``Start`` of all readers from it and the image (``start_after``). Write it into the
   snapshot that readers start from.

No running reader crosses a recovery.
"""

from collections.abc import Iterable

from stele.domain.image import Image
from stele.log.chain import FROZEN, LOG_ID
from stele.log.errors import CorruptRecordError, LaterLogError
from stele.log.fold import Fold, Start, is_of_later_log, recovered_from
from stele.log.port import Record


def first_recovery(records: Iterable[Record], log_id: bytes) -> Record | None:
    """Return the first record that recovers log ``log_id`` or a later log; None if there is none.

    Raises UnknownSchemaError for a record of a later log that this build cannot read. Raises
    LaterLogError for a record of a later log without a recovery before it.
    """
    for record in records:
        if recovered_from(log_id, *record) is not None:
            return record
        if is_of_later_log(log_id, record.value):
            raise LaterLogError(record.offset, _later_log(log_id, record.value[LOG_ID]))
    return None


def _later_log(log_id: bytes, later: bytes) -> str:
    return (
        f"log {later.hex()} is written here, which is later than {log_id.hex()}; a recovery of that would be a"
        " second history. Recover from a replica that knows the later one; or stop its processes, and delete"
        " the topic, if it is to be given up."
    )


def start_after(image: Image, recovery: Record) -> Start:
    """Return the start of readers of the recovered log: the image after its first epoch.

    ``image`` is that of the last epoch before. Raises RecoveredError when the record continues
    another epoch or another log than the image's, and ValueError when it is not a recovery.
    """
    fold = Fold(image, recovery.offset, across_recoveries=True)
    epoch = fold.offer(*recovery)
    if epoch is None or epoch.log_id == image.log_id:
        raise ValueError(f"the record at offset {recovery.offset} is no recovery of this log")
    return Start(fold.image, fold.next_offset, fold.chain.anchor)


def states_of(winners: Iterable[Record]) -> dict[int, bytes]:
    """Return state ids by epoch from consecutive winners, including the epoch before the first.

    Raises CorruptRecordError when a winner does not follow the one before it.
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
