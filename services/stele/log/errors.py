"""Errors at which a reader of the log must stop. Skipping an epoch would make a wrong image."""

from stele.domain.model.cluster import LogRecovered


class LogError(Exception):
    """A reader met a record that it must not skip. ``offset`` is the record's offset."""

    def __init__(self, offset: int, message: str) -> None:
        self.offset = offset
        super().__init__(f"At offset {offset} of the log: {message}")


class CorruptRecordError(LogError):
    """The bytes are not a record of this log. Restore the topic, or recover from a snapshot."""


class UnknownSchemaError(LogError):
    """A winner was written with a schema that this build does not have. Upgrade this process."""


class UnknownFeatureError(LogError):
    """The record needs semantics that this build does not support. Upgrade this process."""


class OffsetGoneError(LogError):
    """The topic no longer holds this offset: begin with a snapshot."""


class TruncatedError(OffsetGoneError):
    """The topic was truncated behind the last winner that was read: begin with a snapshot."""


class MissedRecordsError(LogError):
    """Records before this offset were not offered. The reader must read them again if it can."""


class LostWinnersError(LogError):
    """A record proves that winners of this log are gone."""


class AnchorLostError(LogError):
    """The topic no longer holds the last winner that was read: its history is another one."""


class OtherHistoryError(LogError):
    """An epoch that was certainly in the log has another state id in the log that is read now.

    ``epoch`` is its number; 0 if it is not known.
    """

    def __init__(self, offset: int, message: str, epoch: int = 0) -> None:
        self.epoch = epoch
        super().__init__(offset, message)


class NoBeginningError(LogError):
    """A reader without a snapshot met a later epoch first: begin with a snapshot."""


class LaterLogError(LogError):
    """The topic holds records of a later log, so the log is not recovered into it."""


class RecoveredError(LogError):
    """The log continues as another log from here: begin with a snapshot of that log.

    ``recovered`` holds the other log's id and the last epoch before it.
    """

    def __init__(self, offset: int, recovered: LogRecovered, message: str) -> None:
        self.recovered = recovered
        super().__init__(offset, message)
