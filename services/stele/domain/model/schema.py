"""Keyspaces and tables. Each has an id; a name that is used again belongs to a new object.

A keyspace with tablets has its data in tables. Each of these has its own placement, which is its
tablet map. A keyspace without tablets has data itself. Data of its tables is in the same
places.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol, get_args

import msgspec
from immutables import Map

from stele.domain.base import Command, Fact
from stele.domain.model.schema_objects import (
    Aggregate,
    ClusteringOrder,
    ColumnKind,
    FieldsOf,
    Function,
    IndexTarget,
    SchemaVersion,
    TableSchema,
    TypeField,
    UserType,
    expanded,
)
from stele.domain.names import TABLET_MAP


class Balancing(msgspec.Struct, frozen=True, kw_only=True):
    """The switch of the balancer for a table, a keyspace or the cluster.

    While it is on, the balancer may move, split and merge tablets. ``off_since`` is the epoch of
    the command that switched it off, 0 while it is on. From ``until_ms`` on the balancer treats it
    as on, and switches it on. From ``abort_at_ms`` on the balancer cancels work that it had begun.
    Both are times of the command, in milliseconds since 1970; 0 means never.
    """

    off_since: int = 0
    until_ms: int = 0
    abort_at_ms: int = 0
    actor: str = ""
    reason: str = ""


class Off(NamedTuple):
    """A switch that is off: that of the keyspace or table ``name``; '' is the cluster."""

    name: str
    balancing: Balancing

    def expired(self, now_ms: int) -> bool:
        return 0 < self.balancing.until_ms <= now_ms

    def words(self) -> str:
        return f"balancing of {self.name} is off" if self.name else "balancing is off"

    def remedy(self) -> str:
        """Return the command that switches it on, for people."""
        return f"`stele balance on{' ' if self.name else ''}{self.name}`"


class Replication(NamedTuple):
    """Replicas and rack lists by dc. A dc that is not named has no replicas.

    A listed rack has one replica of each tablet (Scylla's rack lists). Dcs without a list are not
    in ``racks``.
    """

    copies: Mapping[str, int]
    racks: Mapping[str, tuple[str, ...]] = {}

    def words(self) -> str:
        """Return the replication as written on the command line: ``dc1=r1,r2, dc2=2``."""
        return ", ".join(f"{dc}={self._of(dc)}" for dc in sorted(self.copies))

    def _of(self, dc: str) -> str:
        racks = self.racks.get(dc, ())
        # A single rack named by digits needs a comma, or it would read as a number of replicas.
        one_number = len(racks) == 1 and racks[0].isdigit()
        return f"{','.join(racks)}{',' if one_number else ''}" if racks else str(self.copies[dc])


class Keyspace(msgspec.Struct, frozen=True, kw_only=True):
    """A keyspace. Keyspaces with equal replication share one placement, named by ``placement``.

    While its replication changes it has its own placement. ``placed_version`` is the topology
    version of the newest change that took it to another placement. The rows there do not have that
    version, so the keyspace refuses requests of older versions (``domain.fencing``).

    ``dropped_version`` is the topology version that dropped it, 0 while it exists. The row
    disappears, and the name is free, once that version's fence is known. Until then a node that
    lags may still serve it.

    ``truncated_version`` is the version that truncated it last, 0 if none has. Writes of older
    versions do not count.

    With ``tablets`` it has no placement, and only its tables have data. ``initial_tablets`` is the
    number of tablets of a new table. With 0 the number follows from its replicas
    (``domain.tablets.sizing``). ``racks`` are its rack lists by dc. Each listed rack has one
    replica of each tablet, and ``replication`` holds their number.
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
        """Id under which its data is stored, requested and streamed.

        Each truncation creates a new one.
        """
        return _data_id(self.keyspace_id, self.truncated_version)


class TableOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options for the number of a table's tablets and for their repairs (Scylla's names).

    An option of 0 or '' is not set. ``min_per_shard_tablet_count`` counts replicas, on average over
    the shards of a dc. ``auto_repair_enabled`` is on or off. ``auto_repair_threshold`` is in
    seconds. ``cdc`` is the parameter of this name for a table without columns, as a CQL map.
    """

    min_tablet_count: int = 0
    max_tablet_count: int = 0
    min_per_shard_tablet_count: int = 0
    expected_data_size_in_gb: int = 0
    auto_repair_enabled: str = ""
    auto_repair_threshold: int = 0
    cdc: str = ""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table.

    ``placement`` is its tablet map; if it is empty, the data is in the keyspace's places.

    A co-located table has the map of its base: its tablets are in the same places. The versions are
    those of ``Keyspace``.
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
        """Id of the table that it is co-located with; empty if it has its own map, or none."""
        owner_id = self.placement.removeprefix(TABLET_MAP)
        return "" if owner_id == self.table_id else owner_id


class Data(Protocol):
    """An owner of data: a table, or a keyspace without tablets."""

    @property
    def data_id(self) -> str: ...
    @property
    def name(self) -> str:
        """Name of the owner; that of a table is ``keyspace.table``."""
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
    """A table with the properties that it inherits from its keyspace."""

    data_id: str
    name: str
    placement: str
    placed_version: int
    dropped_version: int
    truncated_version: int


def _data_id(owner_id: str, truncated_version: int) -> str:
    return f"{owner_id}@{truncated_version}" if truncated_version else owner_id


def owner_of(data_id: str) -> str:
    """Return the id of the table or keyspace that has, or had, this data or its change log."""
    return data_id.removesuffix(CHANGE_LOG).partition("@")[0]


CHANGE_LOG: Final = "+cdc"
"""Ends the id of a table's change log. No other data id contains it."""


def change_log_of(data_id: str) -> str:
    """Return the id under which the change log of this data is stored and streamed.

    Its rows have the tokens of the changed keys. They are on the same replicas as the data, in each
    state of a move, a split or a merge.
    """
    return f"{data_id}{CHANGE_LOG}"


def tablet_map(table_id: str) -> str:
    """Return the name of the placement that is this table's tablet map."""
    return f"{TABLET_MAP}{table_id}"


class KeyspaceChanged(Fact, frozen=True):
    keyspace: Keyspace


class KeyspaceDropped(Fact, frozen=True):
    keyspace_id: str


class TableChanged(Fact, frozen=True):
    table: Table


class TableDropped(Fact, frozen=True):
    table_id: str


class BalancingSwitched(Fact, frozen=True):
    """A changed switch. ``of`` is the id of a keyspace or table, empty for the cluster."""

    of: str
    balancing: Balancing


class TableSchemaChanged(Fact, frozen=True):
    """New columns, parameters or indexes of a table. The row ends with the table's row."""

    schema: TableSchema


class TypeChanged(Fact, frozen=True):
    user_type: UserType


class TypeDropped(Fact, frozen=True):
    type_id: str


class FunctionChanged(Fact, frozen=True):
    function: Function


class FunctionDropped(Fact, frozen=True):
    function_id: str


class AggregateChanged(Fact, frozen=True):
    aggregate: Aggregate


class AggregateDropped(Fact, frozen=True):
    aggregate_id: str


class SchemaVersioned(Fact, frozen=True):
    """The schema's version. Only snapshots have it: epochs with other schema facts set it too."""

    version: SchemaVersion


SchemaFact = (
    KeyspaceChanged
    | KeyspaceDropped
    | TableChanged
    | TableDropped
    | BalancingSwitched
    | TableSchemaChanged
    | TypeChanged
    | TypeDropped
    | FunctionChanged
    | FunctionDropped
    | AggregateChanged
    | AggregateDropped
    | SchemaVersioned
)


class CreateKeyspace(Command, frozen=True, tag="create_keyspace"):
    """Create a keyspace with a replication factor for each dc, as in NetworkTopologyStrategy.

    With ``tablets`` it may list ``racks`` instead. See ``Keyspace``.
    """

    name: str
    replication: dict[str, int]
    tablets: bool = False
    initial_tablets: int = 0
    racks: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


class CreateTable(Command, frozen=True, tag="create_table"):
    """Create a table of a keyspace; ``name`` is ``keyspace.table``.

    ``colocated_with`` is the name of another table of the keyspace whose tablet map is shared. If
    it is empty, the table gets its own map.
    """

    name: str
    options: TableOptions = TableOptions()
    colocated_with: str = ""


class AlterTable(Command, frozen=True, tag="alter_table"):
    """Change options of a table.

    The options in ``options`` that are not 0 or '' are set, and those in ``reset`` are unset. All
    other options keep their values.
    """

    name: str
    options: TableOptions = TableOptions()
    reset: tuple[str, ...] = ()


class SwitchBalancingOff(Command, frozen=True, tag="switch_balancing_off"):
    """Switch balancing off for a table (``keyspace.table``) or a keyspace; '' is the cluster.

    The balancer then leaves the tablets in their places. See ``Balancing`` for the times.
    """

    name: str = ""
    until_ms: int = 0
    abort_at_ms: int = 0


class SwitchBalancingOn(Command, frozen=True, tag="switch_balancing_on"):
    """Undo ``SwitchBalancingOff`` of the same name and epoch ``off_since``; 0 is the one in
    force.
    """

    name: str = ""
    off_since: int = 0


SchemaCommand = CreateKeyspace | CreateTable | AlterTable | SwitchBalancingOff | SwitchBalancingOn


class TabletGroup(NamedTuple):
    """The tables that share a tablet map and are not being dropped, the owner first.

    ``data`` is that of the owner.
    """

    owner: Table
    data: TableData
    tables: tuple[Table, ...]


class SchemaImage(msgspec.Struct, frozen=True, dict=True):
    """Keyspaces and tables by id, and ids by name. Objects that are being dropped keep their names.

    A table's name is ``keyspace.table``; neither part has a dot. ``balancing`` is the cluster's
    switch. ``colocated`` holds sorted ids of co-located tables by the id of their base.

    ``schemas`` are the tables' columns by table id; opaque tables have none. ``type_ids`` are by
    ``keyspace.type``, ``routine_ids`` of functions and aggregates by ``keyspace.signature``,
    ``index_tables`` by ``keyspace.index``. ``views`` holds sorted ids of views by the id of their
    base table.
    """

    by_id: Map[str, Keyspace] = Map()
    ids: Map[str, str] = Map()
    tables: Map[str, Table] = Map()
    table_ids: Map[str, str] = Map()
    balancing: Balancing = Balancing()
    colocated: Map[str, tuple[str, ...]] = Map()
    schemas: Map[str, TableSchema] = Map()
    types: Map[str, UserType] = Map()
    type_ids: Map[str, str] = Map()
    functions: Map[str, Function] = Map()
    aggregates: Map[str, Aggregate] = Map()
    routine_ids: Map[str, str] = Map()
    index_tables: Map[str, str] = Map()
    views: Map[str, tuple[str, ...]] = Map()
    version: SchemaVersion = SchemaVersion()

    def named(self, name: str) -> Keyspace | None:
        """Return the keyspace of this name, also while it is being dropped."""
        keyspace_id = self.ids.get(name)
        return None if keyspace_id is None else self.by_id[keyspace_id]

    def table_named(self, name: str) -> Table | None:
        """Return the table of this name, also while it is being dropped."""
        table_id = self.table_ids.get(name)
        return None if table_id is None else self.tables[table_id]

    def type_named(self, name: str) -> UserType | None:
        """Return the user-defined type ``keyspace.type``."""
        type_id = self.type_ids.get(name)
        return None if type_id is None else self.types[type_id]

    def fields_of(self, keyspace: Keyspace) -> FieldsOf:
        """Return a function from the name of a user-defined type to the types of its fields."""

        def fields_of(name: str) -> tuple[str, ...]:
            found = self.type_named(f"{keyspace.name}.{name}")
            assert found is not None, "a type that is used cannot be dropped"
            return tuple(field.type for field in found.fields)

        return fields_of

    def columns_digest(self, table_id: str) -> str:
        """Return a digest of ids, kinds, names and types of a table's columns.

        It is empty for a table without columns. Rows are stored by the ids of columns, so tables
        with one digest can read each other's rows.
        """
        schema = self.schemas.get(table_id)
        if schema is None:
            return ""
        fields_of = self.fields_of(self.by_id[self.tables[table_id].keyspace_id])
        columns = (
            (each.column_id, each.kind, each.name, expanded(each.parsed, fields_of).text())
            for each in schema.columns
        )
        return blake2b(repr(sorted(columns)).encode(), digest_size=16).hexdigest()

    def full_type_name(self, user_type: UserType) -> str:
        return f"{self.by_id[user_type.keyspace_id].name}.{user_type.name}"

    def routine_name(self, routine: Function | Aggregate) -> str:
        """Return ``keyspace.signature`` of a function or aggregate."""
        return f"{self.by_id[routine.keyspace_id].name}.{routine.signature}"

    def views_of(self, table_id: str) -> list[Table]:
        """Return the materialized views of a table by name, including those being dropped."""
        found = (self.tables[view_id] for view_id in self.views.get(table_id, ()))
        return sorted(found, key=lambda view: view.name)

    def serving(self, name: str) -> Data | None:
        """Return the data that serves requests under this name, or None."""
        keyspace = self.named(name)
        if keyspace is not None:
            return None if keyspace.dropped_version or keyspace.tablets else keyspace
        table = self.table_named(name)
        data = None if table is None else self.data_of(table)
        return None if data is None or data.dropped_version else data

    def of_data(self, data_id: str) -> Data | None:
        """Return the owner of this data, or of the data whose change log this is.

        None if it was dropped or truncated, or is not known yet.
        """
        data_id = data_id.removesuffix(CHANGE_LOG)
        owner_id = owner_of(data_id)
        keyspace = self.by_id.get(owner_id)
        if keyspace is not None:
            return keyspace if keyspace.data_id == data_id and not keyspace.tablets else None
        table = self.tables.get(owner_id)
        return self.data_of(table) if table is not None and table.data_id == data_id else None

    def columns_of(self, data_id: str) -> TableSchema | None:
        """Return the columns of the table with this data; None if it has none, or is unknown.

        Data that was truncated, and a change log, have the columns of their table.
        """
        # Data that was never truncated has the id of its table. This is on the path of each request.
        return self.schemas.get(data_id) or self.schemas.get(owner_of(data_id))

    def all_data(self) -> Iterator[Data]:
        """Yield all owners of data, including those that are being dropped."""
        yield from (keyspace for keyspace in self.by_id.values() if not keyspace.tablets)
        yield from map(self.data_of, self.tables.values())

    def data_of(self, table: Table) -> TableData:
        keyspace = self.by_id[table.keyspace_id]
        return TableData(
            data_id=table.data_id,
            name=self.full_name(table),
            placement=table.placement or keyspace.placement,
            # A table with tablets never follows its keyspace to another placement.
            placed_version=0 if table.placement else keyspace.placed_version,
            dropped_version=max(table.dropped_version, keyspace.dropped_version),
            truncated_version=table.truncated_version,
        )

    def names_by_id(self) -> dict[str, str]:
        """Return the names of all keyspaces, and the full names of all tables."""
        keyspaces = {id_: keyspace.name for id_, keyspace in self.by_id.items()}
        return keyspaces | {id_: self.full_name(table) for id_, table in self.tables.items()}

    def full_name(self, table: Table) -> str:
        return f"{self.by_id[table.keyspace_id].name}.{table.name}"

    def using(self, placement: str) -> list[Data]:
        """Return the owners of the data in a placement, including those being dropped.

        They are sorted by name, except that the owner of a tablet map comes first.
        """
        if placement.startswith(TABLET_MAP):
            table = self.tables.get(placement.removeprefix(TABLET_MAP))
            return [] if table is None else [*map(self.data_of, self.group_of(table))]
        keyspaces = {k.keyspace_id: k for k in self.by_id.values() if k.placement == placement}
        tables = (t for t in self.tables.values() if t.keyspace_id in keyspaces and not t.placement)
        return sorted((*keyspaces.values(), *map(self.data_of, tables)), key=lambda k: k.name)

    def tables_of(self, keyspace: Keyspace) -> list[Table]:
        """Return the keyspace's tables by name, including those being dropped."""
        found = (t for t in self.tables.values() if t.keyspace_id == keyspace.keyspace_id)
        return sorted(found, key=lambda table: table.name)

    def with_tablets(self) -> list[Table]:
        """Return all tables that have tablets, by id."""
        return [self.tables[name] for name in sorted(self.tables) if self.tables[name].placement]

    def map_owners(self) -> list[Table]:
        """Return the tables that have a tablet map of their own, by id."""
        return [table for table in self.with_tablets() if not table.base_table_id]

    def map_owner(self, table: Table) -> Table:
        """Return the owner of a table's map: its base, or itself."""
        return self.tables[table.base_table_id or table.table_id]

    def group_of(self, table: Table) -> list[Table]:
        """Return all tables that share this table's map: the owner, then the others by name."""
        owner = self.map_owner(table)
        others = (self.tables[table_id] for table_id in self.colocated.get(owner.table_id, ()))
        return [owner, *sorted(others, key=lambda other: other.name)]

    @cached_property
    def tablet_groups(self) -> tuple[TabletGroup, ...]:
        """All groups whose owner is not being dropped, by the owner's id.

        They are kept, because the balancer reads all of them several times in each look.
        """
        found = list[TabletGroup]()
        for owner in self.map_owners():
            data = self.data_of(owner)
            if not data.dropped_version:
                others = self.group_of(owner)[1:]
                rest = (each for each in others if not self.data_of(each).dropped_version)
                found.append(TabletGroup(owner, data, (owner, *rest)))
        return tuple(found)

    def standing_map_owner(self, name: str) -> Table | None:
        """Return the owner of the map of the table of this name.

        None if there is no such table or it is being dropped.
        """
        table = self.table_named(name)
        if table is None or self.data_of(table).dropped_version:
            return None
        return self.map_owner(table)

    def replications(self) -> dict[str, dict[str, int]]:
        """Return the replication factors by dc of the ring placements in use, sorted by name."""
        used = {k.placement: k.replication for k in self.by_id.values() if not k.tablets}
        return dict(sorted(used.items()))


def placement_name(replication: dict[str, int]) -> str:
    """Return the name of the placement shared by keyspaces of this replication, e.g.

    ``dc1:3,dc2:2``.
    """
    return ",".join(f"{dc}:{rf}" for dc, rf in sorted(replication.items()))


# The command that changes the schema: a batch of changes, applied together or not at all.
#
# The changes of a batch take effect one after the other, in one epoch. Names of tables, types,
# functions and indexes are ``keyspace.name``. Types are CQL texts, such as ``frozen<list<int>>``.


class SchemaChange(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True):
    """Base of all changes of a batch. The tag is the CQL statement's name."""


class KeyspaceCreation(SchemaChange, frozen=True, tag="create_keyspace", kw_only=True):
    """As the command of this name."""

    name: str
    replication: dict[str, int] = {}
    tablets: bool = False
    initial_tablets: int = 0
    racks: dict[str, tuple[str, ...]] = {}
    if_not_exists: bool = False


class KeyspaceRemoval(SchemaChange, frozen=True, tag="drop_keyspace", kw_only=True):
    """Request the drop of a keyspace with all of its objects. The coordinator carries it out."""

    name: str
    if_exists: bool = False


class ColumnDefinition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new column. ``order`` is for clustering columns."""

    name: str
    type: str
    kind: ColumnKind = ColumnKind.REGULAR
    order: ClusteringOrder = ClusteringOrder.ASC


class TableCreation(SchemaChange, frozen=True, tag="create_table", kw_only=True):
    """Create a table. Columns of the primary key are in its order.

    Without columns the table is opaque: it keeps values by key.
    """

    name: str
    columns: tuple[ColumnDefinition, ...] = ()
    parameters: dict[str, str] = {}
    options: TableOptions = TableOptions()
    colocated_with: str = ""
    if_not_exists: bool = False


class TableAlteration(SchemaChange, frozen=True, tag="alter_table", kw_only=True):
    """Change columns and parameters of a table: drop, then rename, then add.

    ``types`` holds new types by column, and ``rename`` new names by old ones. A parameter with an
    empty value gets its default.
    """

    name: str
    add: tuple[ColumnDefinition, ...] = ()
    drop: tuple[str, ...] = ()
    rename: dict[str, str] = {}
    types: dict[str, str] = {}
    parameters: dict[str, str] = {}
    if_exists: bool = False
    add_if_not_exists: bool = False
    drop_if_exists: bool = False


class TableRemoval(SchemaChange, frozen=True, tag="drop_table", kw_only=True):
    """Request the drop of a table. The coordinator carries it out."""

    name: str
    if_exists: bool = False


class TypeCreation(SchemaChange, frozen=True, tag="create_type", kw_only=True):
    name: str
    fields: tuple[TypeField, ...]
    if_not_exists: bool = False


class TypeAlteration(SchemaChange, frozen=True, tag="alter_type", kw_only=True):
    """Rename fields of a type, then add fields. ``types`` holds new types by field."""

    name: str
    add: tuple[TypeField, ...] = ()
    rename: dict[str, str] = {}
    types: dict[str, str] = {}
    if_exists: bool = False


class TypeRemoval(SchemaChange, frozen=True, tag="drop_type", kw_only=True):
    name: str
    if_exists: bool = False


class FunctionCreation(SchemaChange, frozen=True, tag="create_function", kw_only=True):
    name: str
    arguments: tuple[TypeField, ...] = ()
    return_type: str
    language: str
    body: str
    called_on_null_input: bool = False
    or_replace: bool = False
    if_not_exists: bool = False


class FunctionRemoval(SchemaChange, frozen=True, tag="drop_function", kw_only=True):
    """Drop a function. Without ``argument_types`` there must be one function of this name."""

    name: str
    argument_types: tuple[str, ...] | None = None
    if_exists: bool = False


class AggregateCreation(SchemaChange, frozen=True, tag="create_aggregate", kw_only=True):
    """Create an aggregate.

    ``state_function`` and ``final_function`` are names of functions of the same keyspace.
    """

    name: str
    argument_types: tuple[str, ...] = ()
    state_function: str
    state_type: str
    final_function: str = ""
    initial_condition: str = ""
    or_replace: bool = False
    if_not_exists: bool = False


class AggregateRemoval(SchemaChange, frozen=True, tag="drop_aggregate", kw_only=True):
    """Drop an aggregate. Without ``argument_types`` there must be one aggregate of this name."""

    name: str
    argument_types: tuple[str, ...] | None = None
    if_exists: bool = False


class IndexCreation(SchemaChange, frozen=True, tag="create_index", kw_only=True):
    """Create a secondary index.

    ``name`` has no keyspace; an empty one becomes ``table_column_idx``.
    """

    table: str
    column: str
    name: str = ""
    target: IndexTarget = IndexTarget.SIMPLE
    using: str = ""
    options: dict[str, str] = {}
    if_not_exists: bool = False


class IndexRemoval(SchemaChange, frozen=True, tag="drop_index", kw_only=True):
    """Drop an index; ``name`` is ``keyspace.index``."""

    name: str
    if_exists: bool = False


class ViewKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A clustering column of a view."""

    name: str
    order: ClusteringOrder = ClusteringOrder.ASC


class ViewCondition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A condition of a view's WHERE. ``value`` is a CQL literal, empty for ``IS NOT NULL``."""

    column: str
    operator: str = "IS NOT NULL"
    value: str = ""


class ViewCreation(SchemaChange, frozen=True, tag="create_materialized_view", kw_only=True):
    """Create a materialized view. Without ``columns`` it has all columns of the base table."""

    name: str
    base: str
    columns: tuple[str, ...] = ()
    where: tuple[ViewCondition, ...] = ()
    partition_key: tuple[str, ...]
    clustering: tuple[ViewKey, ...] = ()
    parameters: dict[str, str] = {}
    options: TableOptions = TableOptions()
    if_not_exists: bool = False


class ViewAlteration(SchemaChange, frozen=True, tag="alter_materialized_view", kw_only=True):
    name: str
    parameters: dict[str, str]
    if_exists: bool = False


class ViewRemoval(SchemaChange, frozen=True, tag="drop_materialized_view", kw_only=True):
    """Request the drop of a materialized view. The coordinator carries it out."""

    name: str
    if_exists: bool = False


AnyChange = (
    KeyspaceCreation
    | KeyspaceRemoval
    | TableCreation
    | TableAlteration
    | TableRemoval
    | TypeCreation
    | TypeAlteration
    | TypeRemoval
    | FunctionCreation
    | FunctionRemoval
    | AggregateCreation
    | AggregateRemoval
    | IndexCreation
    | IndexRemoval
    | ViewCreation
    | ViewAlteration
    | ViewRemoval
)

CHANGES: Final[tuple[type[SchemaChange], ...]] = get_args(AnyChange)


class AlterSchema(Command, frozen=True, tag="alter_schema"):
    """Apply changes of the schema in one epoch, all or none."""

    changes: tuple[AnyChange, ...]
    schema_version: int = 0
    """Epoch of the schema version that the changes were made for; 0 for any."""
