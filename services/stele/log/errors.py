"""Why a reader of the log must stop. None of these is ever skipped: a skipped epoch is a wrong image."""


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


class MissedRecordsError(LogError):
    """Records before this offset were not offered. A reader that can must read them again."""


class LostWinnersError(LogError):
    """A record proves that winners of this log are gone."""


class AnchorLostError(LogError):
    """The last winner that was read is not in the topic any more: it is another history by now."""


class OtherHistoryError(LogError):
    """An epoch that this process acknowledged has another state id in the log that it reads now."""
