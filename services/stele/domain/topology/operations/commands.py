"""The commands by which operations are asked for."""

from stele.domain.base import Command


class Join(Command, frozen=True, tag="join", kw_only=True):
    """JOIN_NODE_REQUEST: a node asks to become a member (seed 004). It is queued as a request."""

    node_id: str
    cluster: str
    address: str
    dc: str
    rack: str
    num_tokens: int = 16
    initial_tokens: tuple[int, ...] = ()
    supported_features: tuple[str, ...] = ()
    release_version: str = ""
    partitioner: str = "Murmur3Partitioner"
    host_id: str = ""


class Leave(Command, frozen=True, tag="leave"):
    """Decommission: the node streams its data to those who take over, then leaves."""

    node_id: str


class DropKeyspace(Command, frozen=True, tag="drop_keyspace"):
    """Drop a keyspace. Its name is free once every late coordinator of it is fenced out."""

    name: str


OperationCommand = Join | Leave | DropKeyspace
