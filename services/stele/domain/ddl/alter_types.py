"""Changes of user-defined types in a batch: create, alter and drop."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from stele.domain.base import Rejected, required
from stele.domain.context import Context
from stele.domain.facts import AnyFact
from stele.domain.image import Image
from stele.domain.model.schema import (
    AggregateChanged,
    AggregateCreation,
    AggregateDropped,
    AggregateRemoval,
    FunctionChanged,
    FunctionCreation,
    FunctionDropped,
    FunctionRemoval,
    Keyspace,
    SchemaImage,
    TableSchemaChanged,
    TypeAlteration,
    TypeChanged,
    TypeCreation,
    TypeDropped,
    TypeRemoval,
)
from stele.domain.model.schema_objects import (
    PRIMARY_KEY,
    RESERVED,
    Aggregate,
    CqlType,
    Function,
    TypeField,
    UserType,
    signature,
    user_types_in,
)
from stele.domain.rules.schema import (
    aggregates_using_function,
    check_column_name,
    check_once,
    check_type_size,
    checked_name,
    keyspace_of,
    name_is_taken,
    resolved_argument,
    resolved_type,
    tables_using,
    types_affected,
    using_type,
)
from stele.domain.rules.table_parameters import is_literal

replace = msgspec.structs.replace

MAX_FIELDS: Final = 4096


def create_type(context: Context, change: TypeCreation) -> Iterable[AnyFact]:
    image, keyspace = context.image, keyspace_of(context, change.name)
    name = checked_name("type", change.name)
    if change.name in image.schema.type_ids:
        if change.if_not_exists:
            return ()
        required(name_is_taken("type", change.name))
    if name.lower() in RESERVED:
        raise Rejected("bad_name", f"A user type cannot be named '{name}'.", "Choose another name.")
    if not change.fields:
        raise Rejected("no_fields", f"Type {change.name} has no fields.", "Give it some.")
    created = UserType(
        type_id=context.unique(f"type {change.name}"),
        keyspace_id=keyspace.keyspace_id,
        name=name,
        fields=_fields(image, keyspace, change.fields),
        version=context.epoch,
    )
    _check_fields(change.name, created.fields)
    check_type_size(image.schema, keyspace, CqlType(name, user=True), created)
    return (TypeChanged(created),)


def _fields(
    image: Image, keyspace: Keyspace, given: tuple[TypeField, ...]
) -> tuple[TypeField, ...]:
    """Return the fields with canonical types. Raises Rejected."""
    found = list[TypeField]()
    for field in given:
        check_column_name(field.name)
        type_ = resolved_type(image, keyspace, field.type)
        if type_.is_counter:
            raise Rejected(
                "bad_type",
                f"Field {field.name} is a counter: a user type cannot contain counters.",
                "Use bigint.",
            )
        if type_.user and type_.is_multi_cell:
            raise Rejected(
                "bad_type",
                f"Field {field.name} has the non-frozen user type {type_.text()}.",
                f"Use frozen<{type_.text()}>.",
            )
        found.append(TypeField(field.name, type_.text()))
    return tuple(found)


def _check_fields(name: str, fields: tuple[TypeField, ...]) -> None:
    check_once("field", [field.name for field in fields])
    if len(fields) > MAX_FIELDS:
        raise Rejected(
            "too_many_fields",
            f"Type {name} would have {len(fields)} fields; the limit is {MAX_FIELDS}.",
            "Use several types.",
        )


def _existing(context: Context, name: str, *, if_exists: bool) -> UserType | None:
    """Return the type, or None if it need not exist. Raises Rejected."""
    found = context.image.schema.type_named(name)
    if found is None and not if_exists:
        raise Rejected(
            "unknown_type",
            f"There is no type '{name[:130]}'.",
            "`stele schema show` lists the types.",
        )
    if found is not None:
        keyspace_of(context, name)  # a keyspace that is being dropped
    return found


def alter_type(context: Context, change: TypeAlteration) -> Iterable[AnyFact]:
    """Rename fields and add fields. All types and tables that use the type get a new version."""
    before = _existing(context, change.name, if_exists=change.if_exists)
    if before is None:
        return
    image, schema = context.image, context.image.schema
    keyspace = schema.by_id[before.keyspace_id]
    _check_types(image, keyspace, change, before)
    fields = _renamed(change, before.fields)
    added = _fields(image, keyspace, change.add)
    for field in added:
        _check_added(image, keyspace, change.name, before, field)
    after = replace(before, fields=(*fields, *added), version=context.epoch)
    _check_fields(change.name, after.fields)
    if after.fields == before.fields:
        return
    _check_initial_conditions(image, change.name, before)
    affected = types_affected(schema, before)
    names = frozenset({before.name, *(user_type.name for user_type in affected)})
    tables = [columns for _, columns in tables_using(schema, before.keyspace_id, names)]
    larger = [CqlType(name, user=True) for name in sorted(names)]
    for type_ in (*larger, *(c.parsed for columns in tables for c in columns.columns)):
        check_type_size(schema, keyspace, type_, after)
    yield TypeChanged(after)
    for user_type in affected:
        yield TypeChanged(replace(user_type, version=context.epoch))
    for columns in tables:
        yield TableSchemaChanged(replace(columns, version=context.epoch))


def _check_types(
    image: Image, keyspace: Keyspace, change: TypeAlteration, before: UserType
) -> None:
    now = {field.name: field.type for field in before.fields}
    for name, text in change.types.items():
        if name not in now:
            raise _no_field(change.name, name)
        wanted = resolved_type(image, keyspace, text).text()
        if wanted != now[name]:
            raise Rejected(
                "incompatible_type",
                f"Cannot alter field {name} of type {change.name} from {now[name]} to {wanted}:"
                " altering field types is not supported.",
                "Add a field of the new type.",
                field=name,
            )


def _no_field(type_name: str, name: str) -> Rejected:
    return Rejected(
        "unknown_field",
        f"Type {type_name} has no field '{name[:80]}'.",
        "`stele schema show` lists the fields.",
        field=name[:80],
    )


def _renamed(change: TypeAlteration, fields: tuple[TypeField, ...]) -> tuple[TypeField, ...]:
    names = [field.name for field in fields]
    for old, new in change.rename.items():
        if old not in names:
            raise _no_field(change.name, old)
        check_column_name(new)
        if new in names:
            raise Rejected(
                "field_exists",
                f"Cannot rename field {old} of type {change.name} to {new}: it has a field of that name.",
                "Choose another name.",
                field=new,
            )
        names[names.index(old)] = new
    return tuple(replace(field, name=name) for field, name in zip(fields, names, strict=True))


def _check_added(
    image: Image, keyspace: Keyspace, name: str, before: UserType, field: TypeField
) -> None:
    what = f"Cannot add field {field.name} to type {name}"
    containing = {before.name, *(t.name for t in types_affected(image.schema, before))}
    circular = containing & user_types_in(field.type)
    if circular:
        raise Rejected(
            "circular_type",
            f"{what}: its type {field.type} contains {name}, a circular reference.",
            "Use a type that does not contain it.",
            field=field.name,
        )
    # A stored key would get another form: a row would not be found under its own key any more.
    names = frozenset(containing)
    in_keys = sorted(
        f"{keyspace.name}.{table.name}"
        for table, columns in tables_using(image.schema, before.keyspace_id, names)
        if any(names & user_types_in(c.type) for c in columns.of_kind(*PRIMARY_KEY))
    )
    if in_keys:
        raise Rejected(
            "type_in_primary_key",
            f"{what}: the primary key of {', '.join(in_keys)} has this type.",
            "Create another type.",
            tables=",".join(in_keys),
        )


def _check_initial_conditions(image: Image, name: str, before: UserType) -> None:
    users = using_type(image.schema.aggregates, before.keyspace_id, before.name)
    aggregates = sorted(each.signature for each in users if each.initial_condition)
    if aggregates:
        raise Rejected(
            "type_in_use",
            f"Cannot alter type {name}: it is used in INITCOND by the aggregates {', '.join(aggregates)}.",
            "Drop these aggregates first, and create them again afterwards.",
            aggregates=",".join(aggregates),
        )


def drop_type(context: Context, change: TypeRemoval) -> Iterable[AnyFact]:
    """Drop a type that no function, aggregate, type or table uses."""
    dropped = _existing(context, change.name, if_exists=change.if_exists)
    if dropped is None:
        return ()
    schema, of, name = context.image.schema, dropped.keyspace_id, dropped.name
    users = {
        "functions": sorted(f.signature for f in using_type(schema.functions, of, name)),
        "aggregates": sorted(a.signature for a in using_type(schema.aggregates, of, name)),
        "types": sorted(t.name for t in using_type(schema.types, of, name)),
        "tables": sorted(t.name for t, _ in tables_using(schema, of, frozenset({name}))),
    }
    for what, names in users.items():
        if names:
            raise Rejected(
                "type_in_use",
                f"Cannot drop type {change.name}: the {what} {', '.join(names)} use it.",
                f"Drop or alter these {what} first.",
                **{what: ",".join(names)},
            )
    return (TypeDropped(dropped.type_id),)


# Changes of user-defined functions and aggregates in a batch.
#
# The rules are those of Cassandra (``CreateFunctionStatement``, ``CreateAggregateStatement``).
# Bodies and literals are not compiled here: nodes do that.


R = TypeVar("R", Function, Aggregate)

MAX_BODY_CHARS: Final = 65_536
LANGUAGE: Final = re.compile("[A-Za-z][A-Za-z0-9_]*")
"""Languages of functions: the names that CQL writes without quotes."""


def create_function(context: Context, change: FunctionCreation) -> Iterable[AnyFact]:
    """Create a function, or replace one of the same signature, which keeps its id."""
    _check_flags(change)
    schema, keyspace = context.image.schema, keyspace_of(context, change.name)
    name = checked_name("function", change.name)
    check_once("argument", [argument.name for argument in change.arguments])
    for argument in change.arguments:
        check_column_name(argument.name)
    _check_body(change)
    types = _types(context, keyspace, [argument.type for argument in change.arguments])
    known = _same_signature(schema, keyspace, name, types)
    if isinstance(known, Aggregate):
        raise Rejected(
            "aggregate_exists",
            f"Function {known.signature} cannot replace an aggregate.",
            "Choose another name.",
        )
    if known is not None and change.if_not_exists:
        return ()
    (return_type,) = _types(context, keyspace, [change.return_type])
    function = Function(
        function_id=context.unique(f"function {keyspace.name}.{signature(name, types)}"),
        keyspace_id=keyspace.keyspace_id,
        name=name,
        arguments=tuple(
            TypeField(given.name, type_)
            for given, type_ in zip(change.arguments, types, strict=True)
        ),
        return_type=return_type,
        language=change.language.lower(),
        body=change.body,
        called_on_null_input=change.called_on_null_input,
        version=context.epoch,
    )
    if known is not None:
        _check_replaces(known, function, or_replace=change.or_replace)
        function = msgspec.structs.replace(function, function_id=known.function_id)
    return (FunctionChanged(function),)


def _check_flags(change: FunctionCreation | AggregateCreation) -> None:
    if change.or_replace and change.if_not_exists:
        raise Rejected(
            "contradiction",
            f"{change.name} is created with both OR REPLACE and IF NOT EXISTS.",
            "Use one of them.",
        )


def _check_body(change: FunctionCreation) -> None:
    if not LANGUAGE.fullmatch(change.language) or len(change.body) > MAX_BODY_CHARS:
        raise Rejected(
            "bad_function",
            f"The language of function {change.name} is no name, or its body has more than"
            f" {MAX_BODY_CHARS} characters.",
            "Use a language such as java, lua or wasm, and a shorter body.",
        )


def _check_replaces(known: Function, new: Function, *, or_replace: bool) -> None:
    if not or_replace:
        raise Rejected(
            "function_exists",
            f"Function {known.signature} exists already.",
            "Use OR REPLACE, or choose another name.",
        )
    if known.called_on_null_input != new.called_on_null_input:
        how = "CALLED" if known.called_on_null_input else "RETURNS NULL"
        raise Rejected(
            "incompatible_function",
            f"Cannot replace function {known.signature}: it is declared {how} ON NULL INPUT.",
            "Keep that, or drop the function first.",
        )
    if known.return_type != new.return_type:
        raise Rejected(
            "incompatible_type",
            f"Cannot replace function {known.signature}: it returns {known.return_type}, and"
            f" {new.return_type} is not compatible.",
            "Keep the return type, or drop the function first.",
        )


def _types(context: Context, keyspace: Keyspace, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the canonical texts of argument or return types. Raises Rejected."""
    found = [resolved_argument(context.image, keyspace, text) for text in texts]
    if any(type_.is_counter for type_ in found):
        raise Rejected(
            "bad_type", "Functions have no counters as arguments or results.", "Use bigint."
        )
    return tuple(type_.text() for type_ in found)


def _same_signature(
    schema: SchemaImage, keyspace: Keyspace, name: str, types: tuple[str, ...]
) -> Function | Aggregate | None:
    id_ = schema.routine_ids.get(f"{keyspace.name}.{signature(name, types)}")
    if id_ is None:
        return None
    return schema.functions.get(id_) or schema.aggregates[id_]


def drop_function(context: Context, change: FunctionRemoval) -> Iterable[AnyFact]:
    """Drop a function that no aggregate uses."""
    schema = context.image.schema
    found = _named(context, change, "function", schema.functions.values())
    if found is None:
        return ()
    users = [a.signature for a in aggregates_using_function(schema, found.function_id)]
    if users:
        raise Rejected(
            "function_in_use",
            f"Cannot drop function {found.signature}: the aggregates {', '.join(users)} use it.",
            "Drop these aggregates first.",
            aggregates=",".join(users),
        )
    return (FunctionDropped(found.function_id),)


def _named(
    context: Context, change: FunctionRemoval | AggregateRemoval, what: str, all_: Iterable[R]
) -> R | None:
    """Return the function or aggregate that a removal names, or None if it need not exist."""
    keyspace_name, _, name = change.name.partition(".")
    if change.if_exists and context.image.schema.named(keyspace_name) is None:
        return None
    keyspace = keyspace_of(context, change.name)
    found = [r for r in all_ if r.keyspace_id == keyspace.keyspace_id and r.name == name]
    if change.argument_types is not None:
        wanted = signature(name, _types(context, keyspace, change.argument_types))
        found = [routine for routine in found if routine.signature == wanted]
    if len(found) > 1:
        signatures = ", ".join(sorted(routine.signature for routine in found))
        raise Rejected(
            f"ambiguous_{what}",
            f"{change.name} matches several {what}s: {signatures}.",
            "Specify the types of the arguments.",
        )
    if not found and not change.if_exists:
        raise Rejected(
            f"unknown_{what}",
            f"There is no {what} '{change.name[:130]}' with these arguments.",
            f"`stele schema show` lists the {what}s.",
        )
    return found[0] if found else None


def create_aggregate(context: Context, change: AggregateCreation) -> Iterable[AnyFact]:
    """Create an aggregate of existing functions, or replace one, which keeps its id."""
    _check_flags(change)
    schema, keyspace = context.image.schema, keyspace_of(context, change.name)
    name = checked_name("aggregate", change.name)
    types = _types(context, keyspace, change.argument_types)
    known = _same_signature(schema, keyspace, name, types)
    if isinstance(known, Function):
        raise Rejected(
            "function_exists",
            f"Aggregate {known.signature} cannot replace a function.",
            "Choose another name.",
        )
    if known is not None and change.if_not_exists:
        return ()
    (state_type,) = _types(context, keyspace, [change.state_type])
    if change.initial_condition and not is_literal(change.initial_condition):
        raise Rejected(
            "bad_initial_condition",
            f"The initial condition '{change.initial_condition[:80]}' of aggregate {change.name} is not a"
            " CQL literal.",
            "Write one value, such as 0, 'text' or (0, 0).",
        )
    state = _state_function(context, keyspace, change, (state_type, *types))
    final = _final_function(context, keyspace, change, state_type)
    aggregate = Aggregate(
        aggregate_id=context.unique(f"aggregate {keyspace.name}.{signature(name, types)}"),
        keyspace_id=keyspace.keyspace_id,
        name=name,
        argument_types=types,
        state_function_id=state.function_id,
        state_type=state_type,
        final_function_id=final.function_id if final else "",
        initial_condition=change.initial_condition,
        version=context.epoch,
    )
    if known is not None:
        _check_replaces_aggregate(schema, known, aggregate, or_replace=change.or_replace)
        aggregate = msgspec.structs.replace(aggregate, aggregate_id=known.aggregate_id)
    return (AggregateChanged(aggregate),)


def _function(
    context: Context, keyspace: Keyspace, name: str, types: tuple[str, ...], what: str
) -> Function:
    name = name.removeprefix(f"{keyspace.name}.")
    found = _same_signature(context.image.schema, keyspace, name, types)
    if not isinstance(found, Function):
        raise Rejected(
            "unknown_function",
            f"The {what} function {signature(name, types)[:200]} does not exist in keyspace"
            f" {keyspace.name}.",
            "Create it first: it gets the state, then the arguments.",
        )
    return found


def _state_function(
    context: Context, keyspace: Keyspace, change: AggregateCreation, types: tuple[str, ...]
) -> Function:
    found = _function(context, keyspace, change.state_function, types, "state")
    if found.return_type != types[0]:
        raise Rejected(
            "incompatible_type",
            f"State function {found.signature} returns {found.return_type}; it must return the state"
            f" type {types[0]}.",
            "Use another function or state type.",
        )
    if not change.initial_condition and not found.called_on_null_input:
        raise Rejected(
            "no_initial_condition",
            f"Cannot create aggregate {change.name} without INITCOND: state function"
            f" {found.signature} does not accept null.",
            "Give an initial condition, or declare the function CALLED ON NULL INPUT.",
        )
    return found


def _final_function(
    context: Context, keyspace: Keyspace, change: AggregateCreation, state_type: str
) -> Function | None:
    if not change.final_function:
        return None
    return _function(context, keyspace, change.final_function, (state_type,), "final")


def _result(schema: SchemaImage, aggregate: Aggregate) -> str:
    final = aggregate.final_function_id
    return schema.functions[final].return_type if final else aggregate.state_type


def _check_replaces_aggregate(
    schema: SchemaImage, known: Aggregate, new: Aggregate, *, or_replace: bool
) -> None:
    if not or_replace:
        raise Rejected(
            "aggregate_exists",
            f"Aggregate {known.signature} exists already.",
            "Use OR REPLACE, or choose another name.",
        )
    if _result(schema, known) != _result(schema, new):
        raise Rejected(
            "incompatible_type",
            f"Cannot replace aggregate {known.signature}: it returns {_result(schema, known)}, and"
            f" {_result(schema, new)} is not compatible.",
            "Keep the result's type, or drop the aggregate first.",
        )


def drop_aggregate(context: Context, change: AggregateRemoval) -> Iterable[AnyFact]:
    found = _named(context, change, "aggregate", context.image.schema.aggregates.values())
    return () if found is None else (AggregateDropped(found.aggregate_id),)
