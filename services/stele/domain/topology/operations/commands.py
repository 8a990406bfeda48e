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


class Replace(Command, frozen=True, tag="replace", kw_only=True):
    """A join that takes the place, the tokens and the data of ``replaced_id``, which is dead for good.

    ``ignore_nodes`` are others that are. With ``force`` what only dead nodes have is given up.
    """

    node_id: str
    replaced_id: str
    cluster: str
    address: str
    dc: str
    rack: str
    ignore_nodes: tuple[str, ...] = ()
    force: bool = False
    supported_features: tuple[str, ...] = ()
    release_version: str = ""
    partitioner: str = "Murmur3Partitioner"
    host_id: str = ""


class Leave(Command, frozen=True, tag="leave"):
    """Decommission: the node streams its data to those who take over, then leaves."""

    node_id: str


class Remove(Command, frozen=True, tag="remove", kw_only=True):
    """removenode: a node that is dead for good leaves; those who take over stream from who is left.

    ``ignore_nodes`` are others that are dead for good. With ``force`` what only dead nodes have is given up.
    """

    node_id: str
    ignore_nodes: tuple[str, ...] = ()
    force: bool = False


class Exclude(Command, frozen=True, tag="exclude"):
    """excludenode: these nodes are dead for good. Nobody waits for them any more, or serves them again."""

    node_ids: tuple[str, ...]


class DropKeyspace(Command, frozen=True, tag="drop_keyspace"):
    """Drop a keyspace. Its name is free once every late coordinator of it is fenced out."""

    name: str


class EnableFeatures(Command, frozen=True, tag="enable_features"):
    """Switch on semantics that every node and service supports, for ever."""

    features: tuple[str, ...]


OperationCommand = Join | Replace | Leave | Remove | Exclude | DropKeyspace | EnableFeatures
