"""Settings of an agent, from STELE_* environment variables; a store's own inherit from them."""

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from stele.domain.names import MAX_SHARDS
from stele.runtime.settings import ServiceSettings


class AgentSettings(ServiceSettings, frozen=True, kw_only=True):
    """The common settings and those of every member; immutable."""

    node_id: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9._-]{0,128}$",
            description="The node's id, for ever; empty: the instance id.",
        ),
    ] = ""
    dc: Annotated[str, Meta(min_length=1, description="Data center of the node.")] = "dc1"
    rack: Annotated[str, Meta(min_length=1, description="Rack of the node.")] = "r1"
    num_tokens: Annotated[
        int,
        Meta(
            ge=0,
            le=1024,
            description="Tokens that the node takes when it joins; 0: it coordinates, and holds no data.",
        ),
    ] = 16
    initial_tokens: Annotated[
        str,
        Meta(
            pattern=r"^(-?[0-9]+(,-?[0-9]+)*)?$",
            description="Tokens that the node asks for when it joins, separated by commas, in place of"
            " num_tokens; empty: the cluster chooses.",
        ),
    ] = ""
    shards: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_SHARDS,
            description="Places for tablets within the node, one for each core say; for ever.",
        ),
    ] = 1
    replace_node: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9._-]{0,128}$",
            description="A dead node whose place, tokens and data this node takes when it joins.",
        ),
    ] = ""
    join: Annotated[
        Literal["auto", "no"],
        Meta(
            description="auto: ask to join when the cluster does not know the node. no: wait for `stele join`."
        ),
    ] = "auto"
    accept_lost_epochs: Annotated[
        str,
        Meta(
            pattern=r"^([0-9a-f]{32})?$",
            description="Id of a log that was recovered without epochs which this node acknowledged: go on all"
            " the same.",
        ),
    ] = ""
    accept_older_copy: Annotated[
        str,
        Meta(
            pattern=r"^[0-9]{0,18}$",
            description="How many heartbeats the cluster has heard of this node, of which its directory"
            " is an older copy: go on without what it acknowledged since.",
        ),
    ] = ""
    claim_host_id: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9._:-]{0,128}$",
            description="Host id of a place that waits for its node since the cluster began with a dump:"
            " this empty folder takes it.",
        ),
    ] = ""
    data_dir: Annotated[Path, Meta(description="Folder of the node's data and identity.")] = Path(
        ".stele/node"
    )
    address: Annotated[
        str,
        Meta(
            description="URL that others reach the node by; empty: where it listens, and 127.0.0.1 where that"
            " is 0.0.0.0."
        ),
    ] = ""
    heartbeat_interval_s: Annotated[
        float, Meta(gt=0, le=60, description="Time between two heartbeats; seconds.")
    ] = 0.5
    load_interval_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="Time between two reports of what tablets and disk hold; seconds. Sooner if it moves.",
        ),
    ] = 60.0
    data_file_capacity: Annotated[
        int,
        Meta(
            ge=0,
            description="Bytes that tablets may take on the node's disk; 0: as many as its file system has.",
        ),
    ] = 0

    def called(self) -> str:
        return self.own_id()

    def own_id(self) -> str:
        return self.node_id or self.instance_id

    def chosen_tokens(self) -> tuple[int, ...]:
        return tuple(int(token) for token in self.initial_tokens.split(",") if token)
