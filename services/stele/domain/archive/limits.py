"""When snapshots are taken, who keeps the archive, and when the log is truncated: settings of the log; and
bounds of what is kept about it.
"""

from typing import Final

from stele.domain.features.counts import Copies, Count

MAX_REPLICAS: Final = 64
"""Far more than a cluster runs; who restarts under ever new names must not fill the state."""
MAX_READERS: Final = 64
SNAPSHOTS_KEPT: Final = 16
"""Announced snapshots of a replica, the newest: one that lags behind the others by no more can still agree with
them.
"""

SNAPSHOT_EPOCHS: Final = Count(
    name="snapshot_epochs",
    counts="epochs after which catch-up replicas take the next snapshot",
    default=10_000,
    most=10_000_000,
)
SNAPSHOT_MB: Final = Count(
    name="snapshot_mb",
    counts="MB of records after which catch-up replicas take the next snapshot, if that is sooner",
    default=64,
    most=65_536,
)
ARCHIVE_REPLICATION: Final = Copies(
    name="archive_replication",
    counts="catch-up replicas that are members: so many, or so many of each dc",
    default="3",
    most=32,
)
"""As far as there are so many: the only replica is the only member, and three are three."""
TRUNCATE_BEHIND: Final = Count(
    name="truncate_behind",
    counts="snapshots that the log goes back behind; older records are deleted; 0: only when asked to",
    default=0,
    least=0,
    most=8,
)
"""Off: whoever runs no replicas, or has not seen that they work, loses nothing."""
ARCHIVE_DEAD_AFTER_S: Final = Count(
    name="archive_dead_after_s",
    counts="seconds without a sign of life after which a member is replaced; 0: never by itself",
    default=600,
    least=0,
    most=31_536_000,
)
"""Longer than a machine takes to restart; as Ceph waits before it copies what a dead disk had."""
READER_LOST_AFTER_S: Final = Count(
    name="reader_lost_after_s",
    counts="seconds after which a reader that has not moved holds up truncation no more",
    default=604_800,
    most=31_536_000,
)
"""A week, as long as Kafka keeps records when nobody says otherwise."""
ARCHIVE_KEEP_DAYS: Final = Count(
    name="archive_keep_days",
    counts="days that epochs are kept in the archive at least, while old ones are deleted; 0: for ever",
    default=0,
    least=0,
    most=36_500,
)
ARCHIVE_KEEP_EPOCHS: Final = Count(
    name="archive_keep_epochs",
    counts="newest epochs that are kept in the archive at least, while old ones are deleted; 0: all",
    default=0,
    least=0,
    most=1 << 53,
)
"""With both settings an epoch goes once neither keeps it."""

LIMITS: Final = (
    SNAPSHOT_EPOCHS,
    SNAPSHOT_MB,
    ARCHIVE_REPLICATION,
    TRUNCATE_BEHIND,
    ARCHIVE_DEAD_AFTER_S,
    READER_LOST_AFTER_S,
    ARCHIVE_KEEP_DAYS,
    ARCHIVE_KEEP_EPOCHS,
)
PROPOSAL_LASTS_S: Final = 3600
"""Where the archive is to begin is not proposed anew sooner: replicas may have to fold up to there first."""
UPKEEP: Final = "archive_upkeep"
"""The feature by which the archive is trimmed, and members that diverge are told apart."""
EXPLICIT_BEHIND: Final = 2
"""Snapshots that the log goes back behind when a person asks, and the setting says nothing."""
