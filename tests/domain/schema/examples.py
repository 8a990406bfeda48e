"""One fact and one change of each kind with all fields set, and a cluster for schema changes."""

from stele.domain.commands import AlterSchema, Rejection
from stele.domain.ddl.schema import SCHEMA_OBJECTS
from stele.domain.image import Image
from stele.domain.model import schema as c
from stele.domain.model.schema import (
    AggregateChanged,
    AggregateDropped,
    FunctionChanged,
    FunctionDropped,
    SchemaVersioned,
    TableOptions,
    TableSchemaChanged,
    TypeChanged,
    TypeDropped,
)
from stele.domain.model.schema_objects import (
    Aggregate,
    ClusteringOrder,
    Column,
    ColumnKind,
    DroppedColumn,
    Function,
    Index,
    IndexTarget,
    SchemaVersion,
    TableSchema,
    TypeField,
    UserType,
    ViewDefinition,
    ViewRestriction,
)
from tests.domain.history import World, three_nodes

PK, CK, STATIC = ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING, ColumnKind.STATIC
FIELD = TypeField("street", "text")
OPTIONS = TableOptions(min_tablet_count=2)

SCHEMA_FACTS = (
    TableSchemaChanged(
        TableSchema(
            table_id="t",
            version=7,
            columns=(
                Column(column_id=1, name="id", type="uuid", kind=PK),
                Column(column_id=2, name="at", type="int", kind=CK, order=ClusteringOrder.DESC),
            ),
            next_column_id=4,
            dropped_columns=(
                DroppedColumn(
                    column_id=3,
                    name="x",
                    type="text",
                    kind=STATIC,
                    dropped_us=2**50,
                    dropped_epoch=6,
                ),
            ),
            parameters={"comment": "c"},
            indexes=(
                Index(
                    index_id="i",
                    name="t_x",
                    column_id=3,
                    target=IndexTarget.KEYS,
                    using="sai",
                    options={"a": "b"},
                ),
            ),
            view=ViewDefinition(
                base_table_id="b",
                all_columns=True,
                restrictions=(ViewRestriction(column_id=1, operator="=", value="1"),),
            ),
        )
    ),
    TableSchemaChanged(TableSchema(table_id="t", version=1, columns=(), next_column_id=1)),
    TypeChanged(UserType(type_id="y", keyspace_id="k", name="n", fields=(FIELD,), version=3)),
    TypeDropped("y"),
    FunctionChanged(
        Function(
            function_id="f",
            keyspace_id="k",
            name="n",
            arguments=(FIELD,),
            return_type="int",
            language="lua",
            body="return 1",
            called_on_null_input=True,
            version=3,
        )
    ),
    FunctionDropped("f"),
    AggregateChanged(
        Aggregate(
            aggregate_id="a",
            keyspace_id="k",
            name="n",
            argument_types=("int",),
            state_function_id="f",
            state_type="int",
            final_function_id="g",
            initial_condition="0",
            version=3,
        )
    ),
    AggregateDropped("a"),
    SchemaVersioned(SchemaVersion(9, "ab" * 16)),
)

CHANGES: tuple[c.AnyChange, ...] = (
    c.KeyspaceCreation(
        name="k",
        replication={"dc1": 3},
        tablets=True,
        initial_tablets=4,
        racks={"dc1": ("r1", "r2")},
        if_not_exists=True,
    ),
    c.KeyspaceRemoval(name="k", if_exists=True),
    c.TableCreation(
        name="k.t",
        columns=(c.ColumnDefinition(name="id", type="int", kind=CK, order=ClusteringOrder.DESC),),
        parameters={"comment": "c"},
        options=OPTIONS,
        colocated_with="k.b",
        if_not_exists=True,
    ),
    c.TableAlteration(
        name="k.t",
        add=(c.ColumnDefinition(name="a", type="int"),),
        drop=("b",),
        rename={"c": "d"},
        types={"e": "text"},
        parameters={"comment": ""},
        if_exists=True,
        add_if_not_exists=True,
        drop_if_exists=True,
    ),
    c.TableRemoval(name="k.t", if_exists=True),
    c.TypeCreation(name="k.y", fields=(FIELD,), if_not_exists=True),
    c.TypeAlteration(
        name="k.y", add=(FIELD,), rename={"a": "b"}, types={"c": "int"}, if_exists=True
    ),
    c.TypeRemoval(name="k.y", if_exists=True),
    c.FunctionCreation(
        name="k.f",
        arguments=(FIELD,),
        return_type="int",
        language="lua",
        body="return 1",
        called_on_null_input=True,
        or_replace=True,
        if_not_exists=True,
    ),
    c.FunctionRemoval(name="k.f", argument_types=("int",), if_exists=True),
    c.FunctionRemoval(name="k.f"),
    c.AggregateCreation(
        name="k.a",
        argument_types=("int",),
        state_function="f",
        state_type="int",
        final_function="g",
        initial_condition="0",
        or_replace=True,
        if_not_exists=True,
    ),
    c.AggregateRemoval(name="k.a", argument_types=("int",), if_exists=True),
    c.IndexCreation(
        table="k.t",
        column="a",
        name="i",
        target=IndexTarget.KEYS,
        using="sai",
        options={"a": "b"},
        if_not_exists=True,
    ),
    c.IndexRemoval(name="k.i", if_exists=True),
    c.ViewCreation(
        name="k.v",
        base="k.t",
        columns=("a",),
        where=(c.ViewCondition("a", "=", "1"),),
        partition_key=("a",),
        clustering=(c.ViewKey("b", ClusteringOrder.DESC),),
        parameters={"comment": "c"},
        options=OPTIONS,
        if_not_exists=True,
    ),
    c.ViewAlteration(name="k.v", parameters={"comment": "c"}, if_exists=True),
    c.ViewRemoval(name="k.v", if_exists=True),
)


def cluster() -> World:
    """Return a cluster of three with keyspace ``library`` on the ring and the feature of this domain."""
    history, world = three_nodes()
    history.enable(SCHEMA_OBJECTS)
    return world


def alter(world: World, *changes: c.AnyChange) -> Rejection | None:
    """Send one batch."""
    return world.history.apply(AlterSchema(changes))


def column(name: str, type_: str, kind: ColumnKind = ColumnKind.REGULAR) -> c.ColumnDefinition:
    return c.ColumnDefinition(name=name, type=type_, kind=kind)


def table(name: str, *columns: c.ColumnDefinition, **others: object) -> c.TableCreation:
    """Return a table of ``library`` with the key ``id`` and these columns."""
    return c.TableCreation(
        name=f"library.{name}",
        columns=(column("id", "uuid", PK), *columns),
        **others,  # type: ignore[arg-type]
    )


def user_type(name: str, /, **fields: str) -> c.TypeCreation:
    given = tuple(TypeField(field, type_) for field, type_ in fields.items())
    return c.TypeCreation(name=f"library.{name}", fields=given)


def function(name: str, returns: str, *types: str, on_null: bool = True) -> c.FunctionCreation:
    return c.FunctionCreation(
        name=f"library.{name}",
        arguments=tuple(TypeField(f"a{n}", type_) for n, type_ in enumerate(types)),
        return_type=returns,
        language="lua",
        body="return 1",
        called_on_null_input=on_null,
    )


def schema_of(image: Image, name: str) -> TableSchema:
    table_id = image.schema.table_ids[f"library.{name}"]
    return image.schema.schemas[table_id]
