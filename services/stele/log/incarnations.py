"""What a record of a later log means to a reader (docs/decisions/027-recovery.md).

Ids of logs are ordered by time, so a log that goes on from this one has a greater id. By its first 90 bytes its
first record is one of another log, which readers skip; only what it says inside tells that the reader's own log
ended there.
"""

from typing import Final

from stele.domain.cluster.facts import LogRecovered
from stele.domain.facts import Epoch
from stele.domain.recovery.record import recovery_of
from stele.log.chain import FROZEN, Chain
from stele.log.codec import DecodeError, decode_epoch
from stele.log.errors import RecoveredError, UnknownSchemaError

FOUNDING_EPOCH: Final = 1


def check_stray(chain: Chain, offset: int, value: bytes) -> None:
    """Return when a record of another log may be skipped; it was judged a stray.

    Raises RecoveredError when the reader's log goes on as another one from here, or went on before; and
    UnknownSchemaError when this build cannot tell.
    """
    fact = recovered_from(chain.log_id, offset, value)
    if fact is not None:
        raise RecoveredError(offset, fact, _what_it_means(chain, fact))


def crossing(chain: Chain, offset: int, value: bytes) -> Epoch | None:
    """The epoch that goes on under another log id right where the chain stands; None for any other stray.

    Raises as ``check_stray`` does, but for what the chain's own state leads to.
    """
    fact = recovered_from(chain.log_id, offset, value)
    if fact is None:
        return None
    here = chain.log_id.hex(), chain.epoch, chain.state_id.hex()
    if (fact.from_log_id, fact.last_epoch, fact.state_id) != here:
        raise RecoveredError(offset, fact, _what_it_means(chain, fact))
    return decode_epoch(value)


def recovered_from(log_id: bytes, offset: int, value: bytes) -> LogRecovered | None:
    """What a record says of a recovery of this log, or of one that came after it; None for any other record.

    Raises UnknownSchemaError for a record of a later log that this build cannot read: it may be one.
    """
    _, _, other, _, epoch, _ = FROZEN.unpack_from(value)
    if other <= log_id or epoch <= FOUNDING_EPOCH:
        return None  # of an older log, or the founding of one that lost the race
    try:
        fact = recovery_of(decode_epoch(value))
    except DecodeError as error:
        if not error.unknown_schema:
            return None
        text = f"it is of log {other.hex()}, a later one, and unreadable: {error}. Upgrade this process."
        raise UnknownSchemaError(offset, text) from error
    return fact if fact is not None and fact.from_log_id >= log_id.hex() else None


def goes_on_later(log_id: bytes, value: bytes) -> bool:
    """Whether a record shows that a later log is written here: one that is neither its beginning nor a recovery
    that came too late.
    """
    _, _, other, _, epoch, _ = FROZEN.unpack_from(value)
    if other <= log_id or epoch <= FOUNDING_EPOCH:
        return False
    try:
        return recovery_of(decode_epoch(value)) is None
    except DecodeError:
        return True


def _what_it_means(chain: Chain, fact: LogRecovered) -> str:
    own = chain.epoch
    if fact.from_log_id != chain.log_id.hex():
        lost = ""
    elif own > fact.last_epoch:
        lost = (
            f" Epochs {fact.last_epoch + 1} to {own}, which this process had read, are not in it."
        )
    elif own == fact.last_epoch and chain.state_id.hex() != fact.state_id:
        lost = f" Its epoch {own} is another one than this process had read."
    else:
        lost = ""
    return (
        f"log {fact.from_log_id} was recovered here, and goes on after epoch {fact.last_epoch} as log"
        f" {fact.log_id}.{lost} Readers of that begin with a snapshot: start this process again."
    )
