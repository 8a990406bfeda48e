"""Keyspaces and tables: each has an id, and a name used again is another thing.

A keyspace with tablets has its data in tables, each with a placement of its own, which is its tablet map. One
without has data itself; its tables' data is where the keyspace's is.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, Protocol

import msgspec
from immutables import Map

from stele.domain.base import Command, Fact


class Balancing(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the balancer may move, split and merge tablets of a table, a keyspace or the whole cluster.

    ``off_since`` is the epoch of the command that switched it off, 0: it is on. From ``until_ms`` on the
    balancer takes it for on, and switches it on; from ``abort_at_ms`` on it cancels what it had begun. Both are
    times of the command, in milliseconds since 1970, and 0 is never.
    """

    off_since: int = 0
    until_ms: int = 0
    abort_at_ms: int = 0
    actor: str = ""
    reason: str = ""


class Off(NamedTuple):
    """A switch that is off: of the keyspace or table ``name``, or, without one, of the cluster."""

    name: str
    balancing: Balancing

    def expired(self, now_ms: int) -> bool:
        return 0 < self.balancing.until_ms <= now_ms

    def words(self) -> str:
        return f"balancing of {self.name} is off" if self.name else "balancing is off"

    def remedy(self) -> str:
        """What switches it on, for people."""
        return f"`stele balance on{' ' if self.name else ''}{self.name}`"


class Replication(NamedTuple):
    """Replicas by dc; who is not named has none. And by dc the racks that have one of each tablet each
    (Scylla's rack lists), of those dcs for which they are named.
    """

    copies: Mapping[str, int]
    racks: Mapping[str, tuple[str, ...]] = {}

    def words(self) -> str:
        """As it is given on the command line: ``dc1=r1,r2, dc2=2``."""
        return ", ".join(f"{dc}={self._of(dc)}" for dc in sorted(self.copies))

    def _of(self, dc: str) -> str:
        racks = self.racks.get(dc, ())
        one_number = len(racks) == 1 and racks[0].isdigit()
        return f"{','.join(racks)}{',' if one_number else ''}" if racks else str(self.copies[dc])


class Keyspace(msgspec.Struct, frozen=True, kw_only=True):
    """A keyspace. Those with equal replication share one placement, named by ``placement``.

    While its replication changes it has a placement of its own. ``placed_version`` is the topology version
    of the newest change that took it to another placement: the rows there do not know of it, so requests of
    older versions are refused by the keyspace (``domain.fencing``).
    ``dropped_version`` is the topology version that dropped it, 0 while it stands. The row goes, and the
    name is free, once that version's fence is known: until then a late coordinator may still serve it.
    ``truncated_version`` is the one that truncated it last, 0 if none has: what older versions wrote does not
    count. With ``tablets`` it has no placement, and no data but its tables'; ``initial_tablets`` is how many a
    new table has, 0: as many as its replicas ask for (``domain.tablets.sizing``). ``racks`` are its rack lists,
    by dc: there each of them has one replica of each tablet, and ``replication`` says how many these are.
    """

    keyspace_id: str
    name: str
    replication: dict[str, int]
    placement: str
    placed_version: int = 0
    dropped_version: int = 0
    truncated_version: int = 0
    tablets: bool = False
    initial_tablets: int = 0
    balancing: Balancing = Balancing()
    racks: dict[str, tuple[str, ...]] = {}

    @property
    def wanted(self) -> Replication:
        return Replication(self.replication, self.racks)

    @property
    def data_id(self) -> str:
        """Its data is stored, asked for and streamed by this id. Each truncation gives it another."""
        return _data_id(self.keyspace_id, self.truncated_version)


class TableOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many tablets a table is to have, and how often they are repaired (Scylla's words). 0, or nothing:
    nothing is said.

    ``min_per_shard_tablet_count`` counts replicas, on average of the shards of a dc. ``auto_repair_enabled`` is
    on or off, ``auto_repair_threshold`` in seconds.
    """

    min_tablet_count: int = 0
    max_tablet_count: int = 0
    min_per_shard_tablet_count: int = 0
    expected_data_size_in_gb: int = 0
    auto_repair_enabled: str = ""
    auto_repair_threshold: int = 0


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table. ``placement`` is its tablet map; empty: its data is where its keyspace's is.

    A table that is co-located with another has that one's map: its tablets are where those of its base are.
    The versions are those of ``Keyspace``.
    """

    table_id: str
    keyspace_id: str
    name: str
    placement: str = ""
    options: TableOptions = TableOptions()
    dropped_version: int = 0
    truncated_version: int = 0
    balancing: Balancing = Balancing()

    @property
    def data_id(self) -> str:
        return _data_id(self.table_id, self.truncated_version)

    @property
    def base_table_id(self) -> str:
        """The id of the table that it is co-located with; empty: it has a map of its own, or none."""
        owner_id = self.placement.removeprefix(TABLET_MAP)
        return "" if owner_id == self.table_id else owner_id


class Data(Protocol):
    """What has data: a table, or a keyspace without tablets."""

    @property
    def data_id(self) -> str: ...
    @property
    def name(self) -> str:
        """Of a table: ``keyspace.table``."""
        ...

    @property
    def placement(self) -> str: ...
    @property
    def placed_version(self) -> int: ...
    @property
    def dropped_version(self) -> int: ...
    @property
    def truncated_version(self) -> int: ...


class TableData(msgspec.Struct, frozen=True):
    """A table with all that it takes from its keyspace."""

    data_id: str
    name: str
    placement: str
    placed_version: int
    dropped_version: int
    truncated_version: int


def _data_id(owner_id: str, truncated_version: int) -> str:
    return f"{owner_id}@{truncated_version}" if truncated_version else owner_id


def owner_of(data_id: str) -> str:
    """The id of the table or keyspace whose data this is or was."""
    return data_id.partition("@")[0]


def tablet_map(table_id: str) -> str:
    """Name of the placement that is this table's tablet map."""
    return f"{TABLET_MAP}{table_id}"


TABLET_MAP: Final = "tablets:"
"""Names of placements begin so when they are tablet maps."""


class KeyspaceChanged(Fact, frozen=True):
    keyspace: Keyspace


class KeyspaceDropped(Fact, frozen=True):
    keyspace_id: str


class TableChanged(Fact, frozen=True):
    table: Table


class TableDropped(Fact, frozen=True):
    table_id: str


class BalancingSwitched(Fact, frozen=True):
    """``of`` is the id of a keyspace or table; empty: it is of the cluster."""

    of: str
    balancing: Balancing


SchemaFact = KeyspaceChanged | KeyspaceDropped | TableChanged | TableDropped | BalancingSwitched


class CreateKeyspace(Command, frozen=True, tag="create_keyspace"):
    """NetworkTopologyStrategy with a replication factor for each dc, or, with ``tablets``, its ``racks``. See
    ``Keyspace``.
    """

    name: str
    replication: dict[str, int]
    tablets: bool = False
    initial_tablets: int = 0
    racks: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


class CreateTable(Command, frozen=True, tag="create_table"):
    """A table of a keyspace; ``name`` is ``keyspace.table``.

    ``colocated_with`` is the name of another table of the keyspace, whose tablet map it has; empty: its own.
    """

    name: str
    options: TableOptions = TableOptions()
    colocated_with: str = ""


class AlterTable(Command, frozen=True, tag="alter_table"):
    """Other options for a table; all of them are replaced."""

    name: str
    options: TableOptions


class SwitchBalancingOff(Command, frozen=True, tag="switch_balancing_off"):
    """The balancer leaves the tablets of a table (``keyspace.table``) or a keyspace where they are; without a
    name all of them. See ``Balancing`` for the times.
    """

    name: str = ""
    until_ms: int = 0
    abort_at_ms: int = 0


class SwitchBalancingOn(Command, frozen=True, tag="switch_balancing_on"):
    """Undo ``SwitchBalancingOff`` of the same name, that of epoch ``off_since``; 0: whichever is in force."""

    name: str = ""
    off_since: int = 0


SchemaCommand = CreateKeyspace | CreateTable | AlterTable | SwitchBalancingOff | SwitchBalancingOn


class SchemaImage(msgspec.Struct, frozen=True):
    """Keyspaces and tables by id, and the ids of those that stand or are being dropped by name.

    A table's name is ``keyspace.table``; names of neither have a dot in them. ``balancing`` is that of the
    cluster. ``colocated`` are the ids of tables, sorted, by the id of the table that they are co-located with.
    """

    by_id: Map[str, Keyspace] = Map()
    ids: Map[str, str] = Map()
    tables: Map[str, Table] = Map()
    table_ids: Map[str, str] = Map()
    balancing: Balancing = Balancing()
    colocated: Map[str, tuple[str, ...]] = Map()

    def named(self, name: str) -> Keyspace | None:
        """The keyspace of this name, also while it is being dropped."""
        keyspace_id = self.ids.get(name)
        return None if keyspace_id is None else self.by_id[keyspace_id]

    def table_named(self, name: str) -> Table | None:
        """The table of this name, also while it is being dropped."""
        table_id = self.table_ids.get(name)
        return None if table_id is None else self.tables[table_id]

    def serving(self, name: str) -> Data | None:
        """What serves requests under this name."""
        keyspace = self.named(name)
        if keyspace is not None:
            return None if keyspace.dropped_version or keyspace.tablets else keyspace
        table = self.table_named(name)
        data = None if table is None else self.data_of(table)
        return None if data is None or data.dropped_version else data

    def of_data(self, data_id: str) -> Data | None:
        """Whose data this is; None when it was dropped or truncated away, or is not known yet."""
        owner_id = owner_of(data_id)
        keyspace = self.by_id.get(owner_id)
        if keyspace is not None:
            return keyspace if keyspace.data_id == data_id and not keyspace.tablets else None
        table = self.tables.get(owner_id)
        return self.data_of(table) if table is not None and table.data_id == data_id else None

    def all_data(self) -> Iterator[Data]:
        """All that has data, what is being dropped too."""
        yield from (keyspace for keyspace in self.by_id.values() if not keyspace.tablets)
        yield from map(self.data_of, self.tables.values())

    def data_of(self, table: Table) -> TableData:
        keyspace = self.by_id[table.keyspace_id]
        return TableData(
            data_id=table.data_id,
            name=self.full_name(table),
            placement=table.placement or keyspace.placement,
            placed_version=0 if table.placement else keyspace.placed_version,
            dropped_version=max(table.dropped_version, keyspace.dropped_version),
            truncated_version=table.truncated_version,
        )

    def full_name(self, table: Table) -> str:
        return f"{self.by_id[table.keyspace_id].name}.{table.name}"

    def using(self, placement: str) -> list[Data]:
        """Whose data a placement places, what is being dropped too: by name, but a tablet map's owner first."""
        if placement.startswith(TABLET_MAP):
            table = self.tables.get(placement.removeprefix(TABLET_MAP))
            return [] if table is None else [*map(self.data_of, self.group_of(table))]
        keyspaces = {k.keyspace_id: k for k in self.by_id.values() if k.placement == placement}
        tables = (t for t in self.tables.values() if t.keyspace_id in keyspaces and not t.placement)
        return sorted((*keyspaces.values(), *map(self.data_of, tables)), key=lambda k: k.name)

    def tables_of(self, keyspace: Keyspace) -> list[Table]:
        """By name, those being dropped too."""
        found = (t for t in self.tables.values() if t.keyspace_id == keyspace.keyspace_id)
        return sorted(found, key=lambda table: table.name)

    def with_tablets(self) -> list[Table]:
        """All tables that have tablets, by id."""
        return [self.tables[name] for name in sorted(self.tables) if self.tables[name].placement]

    def map_owners(self) -> list[Table]:
        """The tables that have a tablet map of their own, by id."""
        return [table for table in self.with_tablets() if not table.base_table_id]

    def map_owner(self, table: Table) -> Table:
        """The table whose map a table has: the one that it is co-located with, or itself."""
        return self.tables[table.base_table_id or table.table_id]

    def group_of(self, table: Table) -> list[Table]:
        """All tables that have the same tablet map as this one: its owner, then the others by name."""
        owner = self.map_owner(table)
        others = (self.tables[table_id] for table_id in self.colocated.get(owner.table_id, ()))
        return [owner, *sorted(others, key=lambda other: other.name)]

    def standing_map_owner(self, name: str) -> Table | None:
        """Whose tablet map is meant by the name of a table that stands, and is not being dropped."""
        table = self.table_named(name)
        if table is None or self.data_of(table).dropped_version:
            return None
        return self.map_owner(table)

    def replications(self) -> dict[str, dict[str, int]]:
        """Placement name -> dc -> replication factor, for all placements of the ring in use, sorted."""
        used = {k.placement: k.replication for k in self.by_id.values() if not k.tablets}
        return dict(sorted(used.items()))


def placement_name(replication: dict[str, int]) -> str:
    """Name of the placement that keyspaces of this replication share, e.g. ``dc1:3,dc2:2``."""
    return ",".join(f"{dc}:{rf}" for dc, rf in sorted(replication.items()))
