"""A legacy cluster as it tells of itself: plain values, whoever read them."""

import msgspec

MURMUR3 = "Murmur3Partitioner"
LOCAL = "LocalStrategy"
SIMPLE = "SimpleStrategy"
NETWORK = "NetworkTopologyStrategy"

UP_AND_NORMAL = "UN"
DOWN_AND_NORMAL = "DN"


class LegacyNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node by its host id. ``status`` is nodetool's: U, D or ?, then N, L, J, M or ?.

    ``release`` is empty where it is not known.
    """

    host_id: str
    address: str
    dc: str
    rack: str
    status: str
    tokens: tuple[int, ...] = ()
    release: str = ""


class LegacyKeyspace(msgspec.Struct, frozen=True, kw_only=True):
    """``strategy`` is the class without its package, ``options`` all else that its replication says."""

    name: str
    strategy: str
    options: dict[str, str]
    tablets: bool = False


class Answer(msgspec.Struct, frozen=True):
    """The replicas of (start, end] by address, as the legacy side says; start >= end wraps around the ring."""

    start: int
    end: int
    replicas: tuple[str, ...]


class Legacy(msgspec.Struct, frozen=True, kw_only=True):
    """A legacy cluster. ``schema_versions`` maps each version to the addresses that have it, and
    ``unreachable`` are those that nobody could ask for theirs. ``answers`` are by keyspace.
    """

    cluster: str
    partitioner: str
    nodes: tuple[LegacyNode, ...]
    keyspaces: tuple[LegacyKeyspace, ...]
    schema_versions: dict[str, tuple[str, ...]]
    unreachable: tuple[str, ...] = ()
    answers: dict[str, tuple[Answer, ...]]


class Problem(msgspec.Struct, frozen=True):
    """Why a cluster cannot be imported as it is: where, what, and what to do."""

    where: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}. {self.remedy}"


def class_name(path: str) -> str:
    """A Java class without its package."""
    return path.rpartition(".")[2]
