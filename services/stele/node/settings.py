"""Settings of a node, from STELE_* environment variables, and the limits that are not settings."""

from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from stele.domain.ring.shards import MAX_SHARDS
from stele.runtime.settings import ServiceSettings

MAX_VALUE_BYTES: Final = 64 * 1024 * 1024
"""A value is held in memory once for each replica that it goes to."""
MAX_KEY_BYTES: Final = 1024
MAX_BODY_BYTES: Final = MAX_VALUE_BYTES + 64 * 1024
"""A value and what stands around it in a call between nodes."""


class NodeSettings(ServiceSettings):
    """The common settings and those of a node; immutable."""

    node_id: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9._-]{0,128}$",
        description="The node's id, for ever; empty: the instance id.",
    )
    dc: str = Field(default="dc1", min_length=1, description="Data center of the node.")
    rack: str = Field(default="r1", min_length=1, description="Rack of the node.")
    num_tokens: int = Field(
        default=16,
        ge=0,
        le=1024,
        description="Tokens that the node takes when it joins; 0: it coordinates requests and holds no data.",
    )
    shards: int = Field(
        default=1,
        ge=1,
        le=MAX_SHARDS,
        description="Places for tablets within the node, one for each core say; for ever.",
    )
    replace_node: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9._-]{0,128}$",
        description="A dead node whose place, tokens and data this node takes when it joins.",
    )
    join: Literal["auto", "no"] = Field(
        default="auto",
        description="auto: ask to join when the cluster does not know the node. no: wait for `stele join`.",
    )
    data_dir: Path = Field(
        default=Path(".stele/node"), description="Folder of the node's data and identity."
    )
    address: str = Field(
        default="", description="URL that others reach the node by; empty: where it listens."
    )
    data_timeout_s: float = Field(
        default=5.0, gt=0, le=300, description="A read or write is given up after this; seconds."
    )
    heartbeat_interval_s: float = Field(
        default=0.5, gt=0, le=60, description="Time between two heartbeats; seconds."
    )
    load_interval_s: float = Field(
        default=60.0,
        gt=0,
        le=3600,
        description="Time between two reports of what tablets and disk hold; seconds. Sooner if these move.",
    )
    rate_half_life_s: float = Field(
        default=300.0,  # CockroachDB splits by the rate of five minutes: a burst is over by then
        gt=0,
        le=86400,
        description="Time after which a read or write counts half in its tablet's rate; seconds.",
    )
    data_file_capacity: int = Field(
        default=0,
        ge=0,
        description="Bytes that tablets may take on the node's disk; 0: as many as its file system has.",
    )

    backup_dir: str = Field(
        default="",
        description="Folder of snapshots of tables; nodes may share it. Empty: `backups` in the data folder.",
    )

    def own_id(self) -> str:
        return self.node_id or self.instance_id

    def backup_folder(self) -> Path:
        return Path(self.backup_dir) if self.backup_dir else self.data_dir / "backups"
