"""Plan the changes between the present schema and a wanted one (declarative schema changes).

A wanted schema is a batch of creations. Its rows come from deciding this batch on an image without
the managed objects (``without``), so that names, types and defaults are canonical and all rules are
checked. Objects of a keyspace that the wanted schema does not name are dropped. Keyspaces that it
does not name are left alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec

from stele.domain.base import Rejection
from stele.domain.ddl.schema import DOMAIN
from stele.domain.image import Image
from stele.domain.model import schema as c
from stele.domain.model.schema import (
    Keyspace,
    KeyspaceDropped,
    SchemaFact,
    SchemaImage,
    Table,
    TableDropped,
)
from stele.domain.model.schema_objects import (
    Aggregate,
    ClusteringOrder,
    Column,
    Function,
    Index,
    TableSchema,
    UserType,
    ViewRestriction,
    parse_type,
)
from stele.domain.rules.schema import dropped_objects


class Mark(StrEnum):
    """A reason to look at a change before it is applied."""

    DESTRUCTIVE = "destructive"
    INCOMPATIBLE = "incompatible"
    EXPENSIVE = "expensive"


class Planned(NamedTuple):
    """A change, with a mark and its reason; both are empty for a harmless change."""

    change: c.AnyChange
    mark: Mark | None = None
    why: str = ""


class SchemaPlan(NamedTuple):
    """Changes in an order in which they can be applied, and differences that need other commands."""

    changes: tuple[Planned, ...]
    rest: tuple[str, ...]


CREATIONS = (
    c.KeyspaceCreation,
    c.TableCreation,
    c.TypeCreation,
    c.FunctionCreation,
    c.AggregateCreation,
    c.IndexCreation,
    c.ViewCreation,
)


def managed_keyspaces(wanted: Iterable[c.AnyChange]) -> frozenset[str]:
    """Return the keyspaces that a wanted schema names. Raises ValueError for other statements."""
    found = set[str]()
    for change in wanted:
        if not isinstance(change, CREATIONS):
            tag = str(change.__struct_config__.tag).replace("_", " ").upper()
            raise ValueError(f"a wanted schema has CREATE statements only, and not {tag}")
        name = change.table if isinstance(change, c.IndexCreation) else change.name
        found.add(name.partition(".")[0])
    return frozenset(found)


def without(image: Image, wanted: Iterable[c.AnyChange]) -> Image:
    """Return the image without all objects of the keyspaces that the wanted schema names.

    The keyspaces themselves stay if the wanted schema does not create them.
    """
    created = {change.name for change in wanted if isinstance(change, c.KeyspaceCreation)}
    schema = image.schema
    for name in sorted(managed_keyspaces(wanted)):
        keyspace = schema.named(name)
        if keyspace is not None:
            for fact in _drops(schema, keyspace, with_keyspace=name in created):
                schema = DOMAIN.apply[type(fact)](schema, fact)
    return msgspec.structs.replace(image, schema=schema)


def _drops(schema: SchemaImage, keyspace: Keyspace, *, with_keyspace: bool) -> Iterator[SchemaFact]:
    yield from (TableDropped(table.table_id) for table in schema.tables_of(keyspace))
    yield from dropped_objects(schema, keyspace)
    if with_keyspace:
        yield KeyspaceDropped(keyspace.keyspace_id)


def plan_schema(before: SchemaImage, after: SchemaImage, managed: Iterable[str]) -> SchemaPlan:
    """Return the changes from the present schema to the wanted one, for these keyspaces."""
    plans = [_Keyspace(before, after, name) for name in sorted(managed)]
    steps = [step for plan in plans for step in plan.steps()]
    return SchemaPlan(
        tuple(change for _, change in sorted(steps, key=lambda step: step[0])),
        tuple(text for plan in plans for text in plan.rest),
    )


def only_accepted(
    plan: SchemaPlan, image: Image, decided: Callable[[Image, c.AlterSchema], Image | Rejection]
) -> SchemaPlan:
    """Return the plan with its rejected changes as differences that it cannot make.

    Each change is decided on the state that the accepted ones before it make, so a change that
    depends on a rejected one is rejected too. ``decided`` returns the image after a command.
    """
    changes, rest = list[Planned](), [*plan.rest]
    for each in plan.changes:
        after = decided(image, c.AlterSchema((each.change,)))
        if isinstance(after, Rejection):
            rest.append(f"{after.message} {after.hint}".strip())
        else:
            image = after
            changes.append(each)
    return SchemaPlan(tuple(changes), tuple(dict.fromkeys(rest)))


class _Keyspace:
    """The plan of one keyspace. ``rest`` has the differences that need other commands."""

    def __init__(self, before: SchemaImage, after: SchemaImage, name: str) -> None:
        self.rest: list[str] = []
        self._before, self._after, self._name = before, after, name
        self._old, self._new = before.named(name), after.named(name)
        self._gone = {
            table.table_id
            for name, table in _tables(before, self._old).items()
            if name not in _tables(after, self._new) and not _is_opaque(table, before)
        }

    def steps(self) -> Iterator[tuple[int, Planned]]:
        """Yield changes, each with its place in the order of the batch."""
        if self._new is not None:
            yield from self._keyspace(self._new)
        yield from self._types()
        yield from self._all_tables()
        yield from self._routines()

    def _full(self, name: str) -> str:
        return f"{self._name}.{name}"

    def _keyspace(self, new: Keyspace) -> Iterator[tuple[int, Planned]]:
        old = self._old
        if old is None:
            creation = c.KeyspaceCreation(
                name=new.name,
                replication={dc: n for dc, n in new.replication.items() if dc not in new.racks},
                racks=new.racks,
                tablets=new.tablets,
                initial_tablets=new.initial_tablets,
            )
            yield 0, Planned(creation)
        elif old.wanted != new.wanted:
            self.rest.append(
                f"Keyspace {new.name} is replicated {old.wanted.words()}, wanted {new.wanted.words()}:"
                f" `stele keyspace alter`."
            )
        elif old.tablets is not new.tablets:
            self.rest.append(
                f"Keyspace {new.name}: a keyspace cannot change between ring and tablets."
            )

    def _types(self) -> Iterator[tuple[int, Planned]]:
        old = {t.name: t for t in self._before.types.values() if _is_of(t, self._old)}
        new = {t.name: t for t in self._after.types.values() if _is_of(t, self._new)}
        for user_type in _in_order(new):
            if user_type.name not in old:
                name = self._full(user_type.name)
                yield 3, Planned(c.TypeCreation(name=name, fields=user_type.fields))
        for name in sorted(old.keys() & new.keys()):
            if old[name].fields != new[name].fields:
                yield from self._altered_type(old[name], new[name])
        for user_type in reversed(_in_order({n: t for n, t in old.items() if n not in new})):
            if any(user_type.name in self._used(table_id) for table_id in self._gone):
                self.rest.append(
                    f"Type {self._full(user_type.name)} can be dropped when the tables that use it are gone:"
                    " plan again then."
                )
            else:
                yield 8, Planned(c.TypeRemoval(name=self._full(user_type.name)), Mark.DESTRUCTIVE)

    def _used(self, table_id: str) -> frozenset[str]:
        """Return the types that a table uses, directly or through other types."""
        schema = self._before.schemas.get(table_id)
        names = set(schema.user_types()) if schema else set[str]()
        types = {t.name: t for t in self._before.types.values() if _is_of(t, self._old)}
        todo = [*names]
        while todo:
            inner = types[name].user_types() if (name := todo.pop()) in types else frozenset()
            todo += inner - names
            names |= inner
        return frozenset(names)

    def _altered_type(self, old: UserType, new: UserType) -> Iterator[tuple[int, Planned]]:
        kept, added = new.fields[: len(old.fields)], new.fields[len(old.fields) :]
        rename = {
            a.name: b.name for a, b in zip(old.fields, kept, strict=False) if a.name != b.name
        }
        same = [a.type for a in old.fields] == [b.type for b in kept]
        if not same:
            self.rest.append(
                f"Type {self._full(new.name)}: fields cannot be dropped, and their types cannot change."
                " Create another type."
            )
            return
        alteration = c.TypeAlteration(name=self._full(new.name), add=added, rename=rename)
        mark, why = (
            (Mark.INCOMPATIBLE, f"clients use the old names of {', '.join(sorted(rename))}")
            if rename
            else (None, "")
        )
        yield 4, Planned(alteration, mark, why)

    def _all_tables(self) -> Iterator[tuple[int, Planned]]:
        old, new = _tables(self._before, self._old), _tables(self._after, self._new)
        for name in sorted(old.keys() - new.keys()):
            if not _is_opaque(old[name], self._before):
                yield from self._dropped(old[name])
        added = [new[name] for name in sorted(new.keys() - old.keys())]
        # The base of co-located tables is created before them.
        for table in sorted(added, key=lambda table: bool(table.base_table_id)):
            yield from self._created(table)
        for name in sorted(old.keys() & new.keys()):
            yield from self._altered(old[name], new[name])

    def _dropped(self, table: Table) -> Iterator[tuple[int, Planned]]:
        name, schema = self._full(table.name), self._before.schemas.get(table.table_id)
        if schema is not None and schema.view is not None:
            yield 1, Planned(c.ViewRemoval(name=name))
        elif self._before.views_of(table.table_id):
            self.rest.append(
                f"Table {name} can be dropped when its views are gone: plan again then."
            )
        else:
            yield 7, Planned(c.TableRemoval(name=name), Mark.DESTRUCTIVE, "its rows are deleted")

    def _created(self, table: Table) -> Iterator[tuple[int, Planned]]:
        schema = self._after.schemas.get(table.table_id)
        if schema is not None and schema.view is not None:
            base = self._after.tables[schema.view.base_table_id]
            view = self._view(table, schema)
            if self._before.table_named(self._full(base.name)) is None:
                yield 12, Planned(view)
            else:
                yield 12, Planned(view, Mark.EXPENSIVE, "it is built from all rows of its base")
            return
        yield (
            5,
            Planned(
                c.TableCreation(
                    name=self._full(table.name),
                    columns=tuple(map(_definition, schema.columns)) if schema else (),
                    parameters=schema.parameters if schema else {},
                    options=table.options,
                    colocated_with=_base_name(table, self._after),
                )
            ),
        )
        if schema is not None:
            for index in schema.indexes:
                yield 11, Planned(self._index(table, schema, index))

    def _altered(self, old: Table, new: Table) -> Iterator[tuple[int, Planned]]:
        name, after = self._full(new.name), self._after.schemas.get(new.table_id)
        before = self._before.schemas.get(old.table_id)
        if (before is None) is not (after is None):
            now = "no columns" if before is None else "columns"
            self.rest.append(f"Table {name} has {now} now: create it under another name.")
            return
        if old.options != new.options:
            self.rest.append(f"Table {name} has other tablet options: `stele table alter`.")
        base = _base_name(new, self._after)
        # CQL cannot say that a table is co-located, so a table that is may stay so.
        if base and base != _base_name(old, self._before):
            self.rest.append(
                f"Table {name} is not co-located with {base}: create it under another name."
            )
        if before is None or after is None:
            return
        parameters = {n: after.parameters.get(n, "") for n in before.parameters | after.parameters}
        parameters = {n: v for n, v in parameters.items() if before.parameters.get(n, "") != v}
        if before.view is not None or after.view is not None:
            if self._view_shape(before, self._before) != self._view_shape(after, self._after):
                yield 1, Planned(c.ViewRemoval(name=name))
                self.rest.append(
                    f"View {name} can be created again when the old one is gone: plan again then."
                )
            elif parameters:
                yield 6, Planned(c.ViewAlteration(name=name, parameters=parameters))
            return
        yield from self._columns(name, before, after, parameters)
        old_indexes = {index.name: index for index in before.indexes}
        new_indexes = {index.name: index for index in after.indexes}
        for index, row in new_indexes.items():
            was = old_indexes.pop(index, None)
            wanted = self._index(new, after, row)
            if was is not None and self._index(old, before, was) != wanted:
                yield 2, Planned(c.IndexRemoval(name=self._full(index)))
                was = None
            if was is None:
                yield 11, Planned(wanted, Mark.EXPENSIVE, "it is built from all rows of its table")
        for index in old_indexes:
            yield 2, Planned(c.IndexRemoval(name=self._full(index)))

    def _columns(
        self, name: str, before: TableSchema, after: TableSchema, parameters: Mapping[str, str]
    ) -> Iterator[tuple[int, Planned]]:
        old_key, new_key = (
            [column for column in schema.columns if column.in_primary_key]
            for schema in (before, after)
        )
        if list(map(_shape, old_key)) != list(map(_shape, new_key)):
            self.rest.append(f"Table {name} has another primary key: create it under another name.")
            return
        rename = {a.name: b.name for a, b in zip(old_key, new_key, strict=True) if a.name != b.name}
        old = {column.name: column for column in before.columns if not column.in_primary_key}
        new = {column.name: column for column in after.columns if not column.in_primary_key}
        changed = [n for n in old.keys() & new.keys() if _shape(old[n]) != _shape(new[n])]
        if changed:
            self.rest.append(
                f"Table {name}: the type and kind of {', '.join(sorted(changed))} cannot change."
                " Add another column."
            )
        drop = tuple(n for n in old if n not in new)
        alteration = c.TableAlteration(
            name=name,
            add=tuple(_definition(column) for n, column in new.items() if n not in old),
            drop=drop,
            rename=rename,
            parameters={**parameters},
        )
        if alteration == c.TableAlteration(name=name):
            return
        mark, why = None, ""
        if drop:
            mark, why = Mark.DESTRUCTIVE, f"the values of {', '.join(drop)} are deleted"
        elif rename:
            mark, why = Mark.INCOMPATIBLE, f"clients use the old names of {', '.join(rename)}"
        yield 6, Planned(alteration, mark, why)

    def _index(self, table: Table, schema: TableSchema, index: Index) -> c.IndexCreation:
        return c.IndexCreation(
            table=self._full(table.name),
            column=schema.column_by_id(index.column_id).name,
            name=index.name,
            target=index.target,
            using=index.using,
            options=index.options,
        )

    def _view(self, table: Table, schema: TableSchema) -> c.ViewCreation:
        assert schema.view is not None
        base = self._after.tables[schema.view.base_table_id]
        columns, where = _columns_and_conditions(schema, self._after)
        return c.ViewCreation(
            name=self._full(table.name),
            base=self._full(base.name),
            columns=columns,
            where=where,
            partition_key=tuple(n for n, kind, _ in _key(schema) if kind == "partition_key"),
            clustering=tuple(
                c.ViewKey(n, order) for n, kind, order in _key(schema) if kind == "clustering"
            ),
            parameters=schema.parameters,
            options=table.options,
        )

    @staticmethod
    def _view_shape(schema: TableSchema, image: SchemaImage) -> object:
        if schema.view is None:
            return None
        base = image.tables[schema.view.base_table_id].name
        columns, where = _columns_and_conditions(schema, image)
        return base, _key(schema), frozenset(columns), frozenset(where)

    def _routines(self) -> Iterator[tuple[int, Planned]]:
        for place, drop_place, rows in ((9, 2, "functions"), (10, 1, "aggregates")):
            old, new = (
                {r.signature: r for r in getattr(image, rows).values() if _is_of(r, keyspace)}
                for image, keyspace in ((self._before, self._old), (self._after, self._new))
            )
            for signature, routine in new.items():
                wanted = self._routine(routine, self._after)
                if signature not in old:
                    yield place, Planned(wanted)
                elif self._routine(old[signature], self._before) != wanted:
                    yield place, Planned(msgspec.structs.replace(wanted, or_replace=True))
            for signature in sorted(old.keys() - new.keys()):
                yield drop_place, Planned(self._removal(old[signature]))

    def _routine(
        self, routine: Function | Aggregate, image: SchemaImage
    ) -> c.FunctionCreation | c.AggregateCreation:
        name = self._full(routine.name)
        if isinstance(routine, Function):
            return c.FunctionCreation(
                name=name,
                arguments=routine.arguments,
                return_type=routine.return_type,
                language=routine.language,
                body=routine.body,
                called_on_null_input=routine.called_on_null_input,
            )
        final = image.functions.get(routine.final_function_id)
        return c.AggregateCreation(
            name=name,
            argument_types=routine.argument_types,
            state_function=image.functions[routine.state_function_id].name,
            state_type=routine.state_type,
            final_function=final.name if final else "",
            initial_condition=routine.initial_condition,
        )

    def _removal(self, routine: Function | Aggregate) -> c.FunctionRemoval | c.AggregateRemoval:
        kind = c.FunctionRemoval if isinstance(routine, Function) else c.AggregateRemoval
        return kind(name=self._full(routine.name), argument_types=routine.argument_types)


def _is_of(row: UserType | Function | Aggregate, keyspace: Keyspace | None) -> bool:
    return keyspace is not None and row.keyspace_id == keyspace.keyspace_id


def _tables(schema: SchemaImage, keyspace: Keyspace | None) -> dict[str, Table]:
    """Return a keyspace's tables by name, without those that are being dropped."""
    found = schema.tables_of(keyspace) if keyspace is not None else []
    return {t.name: t for t in found if not schema.data_of(t).dropped_version}


def _is_opaque(table: Table, schema: SchemaImage) -> bool:
    return table.table_id not in schema.schemas


def _base_name(table: Table, schema: SchemaImage) -> str:
    """Return the full name of the table that this one is co-located with, or an empty string."""
    base = schema.tables.get(table.base_table_id)
    return schema.full_name(base) if base else ""


def _in_order(types: Mapping[str, UserType]) -> list[UserType]:
    """Return the types, each after those that it uses."""
    found = dict[str, UserType]()

    def visit(user_type: UserType) -> None:
        for name in sorted(user_type.user_types()):
            if name in types and name not in found:
                visit(types[name])
        found.setdefault(user_type.name, user_type)

    for name in sorted(types):
        visit(types[name])
    return [*found.values()]


def _shape(column: Column) -> tuple[object, ...]:
    return parse_type(column.type), column.kind, column.order


def _definition(column: Column) -> c.ColumnDefinition:
    return c.ColumnDefinition(
        name=column.name, type=column.type, kind=column.kind, order=column.order
    )


def _key(schema: TableSchema) -> list[tuple[str, str, ClusteringOrder]]:
    return [(col.name, col.kind.value, col.order) for col in schema.columns if col.in_primary_key]


def _columns_and_conditions(
    schema: TableSchema, image: SchemaImage
) -> tuple[tuple[str, ...], tuple[c.ViewCondition, ...]]:
    """Return the selected columns of a view, none for all, and its conditions."""
    assert schema.view is not None
    base = image.schemas[schema.view.base_table_id]

    def condition(restriction: ViewRestriction) -> c.ViewCondition:
        column = base.column_by_id(restriction.column_id).name
        return c.ViewCondition(column, restriction.operator, restriction.value)

    columns = () if schema.view.all_columns else tuple(col.name for col in schema.columns)
    return columns, tuple(map(condition, schema.view.restrictions))
