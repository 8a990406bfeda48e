"""Settings of a node, from STELE_* environment variables, and the limits that are not settings."""

from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta

from stele.agent.settings import AgentSettings

DATA_TIMEOUT_S: Final = 5.0
MAX_VALUE_BYTES: Final = 64 * 1024 * 1024
"""A value is held in memory once for each replica that it goes to."""
MAX_KEY_BYTES: Final = 1024
MAX_COLUMN_BYTES: Final = 1024 * 1024
"""Columns of a row are written one by one and stored together: 64 of this size fit into a value."""
MAX_BODY_BYTES: Final = MAX_VALUE_BYTES + 64 * 1024
"""A value and what stands around it in a call between nodes."""


class NodeSettings(AgentSettings, frozen=True, kw_only=True):
    """The agent's settings and those of the store for trials; immutable."""

    data_timeout_s: Annotated[
        float, Meta(gt=0, le=300, description="A read or write is given up after this; seconds.")
    ] = DATA_TIMEOUT_S
    rate_half_life_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86400,
            description="Time after which a read or write counts half in its tablet's rate; seconds.",
        ),
    ] = 300.0  # CockroachDB splits by the rate of five minutes: a burst is over by then
    backup_dir: Annotated[
        str,
        Meta(
            description="Folder of snapshots of tables; nodes may share it. Empty: `backups` in data_dir."
        ),
    ] = ""

    def backup_folder(self) -> Path:
        return Path(self.backup_dir) if self.backup_dir else self.data_dir / "backups"
