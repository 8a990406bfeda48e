"""Why a reader of the log must stop. None of these is ever skipped: a skipped epoch is a wrong image."""

from stele.domain.cluster.facts import LogRecovered


class LogError(Exception):
    """A reader met a record that it must not go past."""

    def __init__(self, offset: int, message: str) -> None:
        self.offset = offset
        super().__init__(f"At offset {offset} of the log: {message}")


class CorruptRecordError(LogError):
    """The bytes are no record of this log. Restore the topic, or recover from a snapshot."""


class UnknownSchemaError(LogError):
    """A winner was written with a schema that this build does not have. Upgrade this process."""


class UnknownFeatureError(LogError):
    """The record needs semantics that this build does not know. Upgrade this process."""


class OffsetGoneError(LogError):
    """The topic does not hold this offset any more: begin with a snapshot."""


class TruncatedError(OffsetGoneError):
    """The topic was truncated behind the last winner that was read: begin with a snapshot."""


class MissedRecordsError(LogError):
    """Records before this offset were not offered. A reader that can must read them again."""


class LostWinnersError(LogError):
    """A record proves that winners of this log are gone."""


class AnchorLostError(LogError):
    """The last winner that was read is not in the topic any more: it is another history by now."""


class OtherHistoryError(LogError):
    """An epoch that was in the log for certain has another state id in the one that is read now.

    ``epoch`` is its number where it is known; 0: not known.
    """

    def __init__(self, offset: int, message: str, epoch: int = 0) -> None:
        self.epoch = epoch
        super().__init__(offset, message)


class NoBeginningError(LogError):
    """A reader that knows nothing met a later epoch first: begin with a snapshot."""


class LaterLogError(LogError):
    """The log is not recovered into a topic in which a later one goes on."""


class RecoveredError(LogError):
    """The log that was read goes on as another one from here: begin with a snapshot of that.

    ``recovered`` says which, and after which epoch.
    """

    def __init__(self, offset: int, recovered: LogRecovered, message: str) -> None:
        self.recovered = recovered
        super().__init__(offset, message)
