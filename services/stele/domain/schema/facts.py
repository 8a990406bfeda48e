"""Keyspaces: each has an id, and a name used again is another keyspace."""

import msgspec
from immutables import Map

from stele.domain.base import Command, Fact


class Keyspace(msgspec.Struct, frozen=True, kw_only=True):
    """A keyspace. Those with equal replication share one placement, named by ``placement``.

    While its replication changes it has a placement of its own. ``placed_version`` is the topology version
    of the newest change that took it to another placement: the rows there do not know of it, so requests of
    older versions are refused by the keyspace (``domain.fencing``).
    ``dropped_version`` is the topology version that dropped it, 0 while it stands. The row goes, and the
    name is free, once that version's fence is known: until then a late coordinator may still serve it.
    ``truncated_version`` is the one that truncated it last, 0 if none has: what older versions wrote does not
    count.
    """

    keyspace_id: str
    name: str
    replication: dict[str, int]
    placement: str
    placed_version: int = 0
    dropped_version: int = 0
    truncated_version: int = 0

    @property
    def data_id(self) -> str:
        """Its data is stored, asked for and streamed by this id. Each truncation gives it another."""
        return (
            f"{self.keyspace_id}@{self.truncated_version}"
            if self.truncated_version
            else self.keyspace_id
        )


def keyspace_of(data_id: str) -> str:
    """The id of the keyspace whose data this is or was."""
    return data_id.partition("@")[0]


class KeyspaceChanged(Fact, frozen=True):
    keyspace: Keyspace


class KeyspaceDropped(Fact, frozen=True):
    keyspace_id: str


SchemaFact = KeyspaceChanged | KeyspaceDropped


class CreateKeyspace(Command, frozen=True, tag="create_keyspace"):
    """NetworkTopologyStrategy with a replication factor for each dc."""

    name: str
    replication: dict[str, int]


class SchemaImage(msgspec.Struct, frozen=True):
    """Keyspaces by id, and the ids of those that stand or are being dropped by name."""

    by_id: Map[str, Keyspace] = Map()
    ids: Map[str, str] = Map()

    def named(self, name: str) -> Keyspace | None:
        """The keyspace of this name, also while it is being dropped."""
        keyspace_id = self.ids.get(name)
        return None if keyspace_id is None else self.by_id[keyspace_id]

    def serving(self, name: str) -> Keyspace | None:
        """The keyspace of this name that serves requests."""
        keyspace = self.named(name)
        return keyspace if keyspace is not None and not keyspace.dropped_version else None

    def of_data(self, data_id: str) -> Keyspace | None:
        """The keyspace whose data this is; None when it was dropped or truncated away, or is not known yet."""
        keyspace = self.by_id.get(keyspace_of(data_id))
        return keyspace if keyspace is not None and keyspace.data_id == data_id else None

    def using(self, placement: str) -> list[Keyspace]:
        """Keyspaces of a placement by name, those being dropped too."""
        users = (k for k in self.by_id.values() if k.placement == placement)
        return sorted(users, key=lambda k: k.name)

    def replications(self) -> dict[str, dict[str, int]]:
        """Placement name -> dc -> replication factor, for all placements in use, sorted."""
        used = {k.placement: k.replication for k in self.by_id.values()}
        return dict(sorted(used.items()))


def placement_name(replication: dict[str, int]) -> str:
    """Name of the placement that keyspaces of this replication share, e.g. ``dc1:3,dc2:2``."""
    return ",".join(f"{dc}:{rf}" for dc, rf in sorted(replication.items()))
