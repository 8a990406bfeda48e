"""CQL types: parse their text, write their canonical text, and check the rules for nesting them.

The rules are those of Cassandra (``CQL3Type``, ``CollectionType``, ``UserType``). The canonical text
is that of ``system_schema.columns``: ``frozen`` stands before each frozen collection, tuple and
user-defined type, also inside another type. User-defined types are written by name. They have no
keyspace, because a column can use only the types of its keyspace.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import lru_cache
from typing import Final

import msgspec

NATIVE: Final = frozenset(
    {
        *("ascii", "bigint", "blob", "boolean", "counter", "date", "decimal", "double"),
        *("duration", "float", "inet", "int", "smallint", "text", "time", "timestamp"),
        *("timeuuid", "tinyint", "uuid", "varint"),
    }
)
COUNTER: Final = "counter"
DURATION: Final = "duration"
COLLECTIONS: Final[dict[str, int]] = {"list": 1, "set": 1, "map": 2}
"""Number of arguments by kind of collection."""
FROZEN: Final = "frozen"
TUPLE: Final = "tuple"
VECTOR: Final = "vector"
RESERVED: Final = frozenset({*NATIVE, *COLLECTIONS, FROZEN, TUPLE, VECTOR, "varchar", "empty"})
"""Names that no user-defined type can have."""
MAX_DEPTH: Final = 16
MAX_PARTS: Final = 8192
"""Largest number of types in a type when all user-defined types in it are expanded.

Types that contain others several times would otherwise grow exponentially with each level.
"""
MAX_DIMENSION: Final = 8192
"""Largest number of elements of a vector (Cassandra's guardrail ``vector_dimensions``)."""

_TOKEN: Final = re.compile(r'\s*("(?:[^"]|"")+"|[A-Za-z0-9_]+|[<>,.])')
KEYWORDS: Final = frozenset(
    {
        *("add", "allow", "alter", "and", "apply", "asc", "authorize", "batch", "begin", "by"),
        *("columnfamily", "create", "default", "delete", "desc", "describe", "drop", "entries"),
        *("execute", "from", "full", "grant", "if", "in", "index", "infinity", "insert", "into"),
        *("is", "keyspace", "limit", "materialized", "modify", "nan", "norecursive", "not"),
        *("null", "of", "on", "or", "order", "primary", "rename", "replace", "revoke", "schema"),
        *("select", "set", "table", "to", "token", "truncate", "unlogged", "unset", "update"),
        *("use", "using", "view", "where", "with"),
    }
)
"""Reserved words of CQL: names that are equal to them are quoted."""
_PLAIN_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_WIDER: Final[dict[str, frozenset[str]]] = {
    "text": frozenset({"ascii"}),
    "varint": frozenset({"int", "bigint", "timestamp"}),
    "bigint": frozenset({"timestamp"}),
    "timestamp": frozenset({"bigint"}),
    "uuid": frozenset({"timeuuid"}),
}
"""Native types whose values each type can read (Cassandra's ``isValueCompatibleWith``)."""


class CqlType(msgspec.Struct, frozen=True):
    """A parsed type. ``dimension`` is the length of a vector; ``user`` marks a user-defined type."""

    name: str
    arguments: tuple[CqlType, ...] = ()
    frozen: bool = False
    dimension: int = 0
    user: bool = False

    @property
    def is_counter(self) -> bool:
        return self.name == COUNTER and not self.user

    @property
    def is_duration(self) -> bool:
        return self.name == DURATION and not self.user

    @property
    def is_collection(self) -> bool:
        return self.name in COLLECTIONS and not self.user

    @property
    def is_multi_cell(self) -> bool:
        """True if each element or field is a separate cell."""
        return not self.frozen and (self.user or self.is_collection)

    def text(self) -> str:
        """Return the canonical text."""
        if self.user:
            inner = quoted(self.name)
        elif self.name == VECTOR:
            inner = f"vector<{self.arguments[0].text()}, {self.dimension}>"
        elif self.arguments:
            inner = f"{self.name}<{', '.join(each.text() for each in self.arguments)}>"
        else:
            inner = self.name
        return f"frozen<{inner}>" if self.frozen else inner

    def user_types(self) -> Iterator[str]:
        """Yield the names of the user-defined types in this type."""
        if self.user:
            yield self.name
        for each in self.arguments:
            yield from each.user_types()

    def freeze(self) -> CqlType:
        """Return the frozen form. All that is inside is frozen too."""
        inner = tuple(each.freeze() for each in self.arguments)
        frozen = self.user or self.is_collection or self.name == TUPLE
        return msgspec.structs.replace(self, arguments=inner, frozen=frozen)


class TypeTextError(ValueError):
    """The text is no CQL type, or breaks a rule for nested types."""


def quoted(name: str) -> str:
    """Return a name as CQL writes it: in double quotes unless it is plain and no reserved word."""
    if _PLAIN_NAME.fullmatch(name) and name not in KEYWORDS:
        return name
    return '"' + name.replace('"', '""') + '"'


@lru_cache(maxsize=16_384)
def parse_type(text: str, keyspace: str = "") -> CqlType:
    """Return the type of a column or field. Raises TypeTextError.

    ``keyspace`` may stand before the name of a user-defined type; another keyspace is an error.
    """
    found = _Parser(text, keyspace).whole()
    _check_nested(found)
    return found


@lru_cache(maxsize=16_384)
def parse_argument(text: str, keyspace: str = "") -> CqlType:
    """Return the type of a function's argument or result. Raises TypeTextError.

    Functions get and return whole values. So all that is inside is frozen (Cassandra's ``UDFunction``).
    The type itself must not be frozen, except a tuple, which always is.
    """
    parser = _Parser(text, keyspace)
    found = parser.whole()
    is_tuple = found.name == TUPLE and not found.user
    if parser.tokens[:1] == [FROZEN] and not is_tuple:
        raise TypeTextError(f"'{text}' cannot be frozen; remove the frozen<> modifier")
    _check_nested(found.freeze())
    return msgspec.structs.replace(found.freeze(), frozen=is_tuple)


def user_types_in(text: str) -> frozenset[str]:
    """Return the names of the user-defined types in the canonical text of a type."""
    return frozenset(parse_type(text).user_types())


FieldsOf = Callable[[str], tuple[str, ...]]
"""A function from the name of a user-defined type to the types of its fields."""


def expanded(type_: CqlType, fields_of: FieldsOf) -> CqlType:
    """Return the type with each user-defined type replaced by the tuple of its fields.

    A dropped column keeps its type in this form, so that the user-defined type can be dropped too
    (Cassandra's ``expandUserTypes``). ``fields_of`` returns the field types of a user-defined type.
    """
    if type_.user:
        fields = (expanded(parse_type(field), fields_of) for field in fields_of(type_.name))
        return CqlType(TUPLE, tuple(fields)).freeze()
    inner = tuple(expanded(each, fields_of) for each in type_.arguments)
    return msgspec.structs.replace(type_, arguments=inner)


def check_size(type_: CqlType, fields_of: FieldsOf) -> None:
    """Check that the type is small enough after ``expanded``. Raises TypeTextError."""
    parts, left = 0, [(type_, 0)]
    while left:
        part, depth = left.pop()
        parts += 1
        # ``frozen`` counts too: the text of the expanded type must be one that can be parsed.
        inside = depth + (part.frozen or part.user)
        if inside > MAX_DEPTH:
            raise TypeTextError(f"'{type_.text()[:80]}' is nested deeper than {MAX_DEPTH} types")
        if parts > MAX_PARTS:
            raise TypeTextError(f"'{type_.text()[:80]}' has more than {MAX_PARTS} types inside")
        arguments = map(parse_type, fields_of(part.name)) if part.user else part.arguments
        left.extend((each, inside + 1) for each in arguments)


def can_read(new: CqlType, old: CqlType) -> bool:
    """Return True if values that were written as ``old`` are valid values of ``new``."""
    if new == old:
        return True
    if new.is_multi_cell or old.is_multi_cell:
        same_kind = (new.name, new.frozen, new.user) == (old.name, old.frozen, old.user)
        pairs = zip(new.arguments, old.arguments, strict=False)
        return same_kind and not new.user and all(can_read(*pair) for pair in pairs)
    if new.name == "blob":
        return not old.is_counter
    return old.name in _WIDER.get(new.name, frozenset())


class _Parser:
    """A recursive-descent parser of one type."""

    def __init__(self, text: str, keyspace: str) -> None:
        self.text = text
        self.keyspace = keyspace
        self.tokens = list[str]()
        self.at = 0
        position = 0
        while text[position:].strip():
            token = _TOKEN.match(text, position)
            if token is None:
                raise TypeTextError(
                    f"'{text[:80]}' is no CQL type: unexpected character at {position}"
                )
            found = token.group(1)
            self.tokens.append(found if found.startswith('"') else found.lower())
            position = token.end()

    def whole(self) -> CqlType:
        found = self.type(0)
        if self.at < len(self.tokens):
            raise self.unexpected("the end")
        return found

    def type(self, depth: int) -> CqlType:
        if depth > MAX_DEPTH:
            raise TypeTextError(f"'{self.text[:80]}' is nested deeper than {MAX_DEPTH} types")
        name = self.name()
        if name.startswith('"'):
            return self.user_type(name[1:-1].replace('""', '"'))
        if name == FROZEN:
            (inner,) = self.arguments(depth, 1)
            if not (inner.user or inner.arguments):
                raise TypeTextError(
                    "frozen<> is only allowed on collections, tuples and user-defined types"
                    f" (got {inner.text()})"
                )
            return inner.freeze()
        if name in COLLECTIONS:
            return CqlType(name, self.arguments(depth, COLLECTIONS[name]))
        if name == TUPLE:
            return CqlType(name, self.arguments(depth, 0)).freeze()
        if name == VECTOR:
            return self.vector(depth)
        name = "text" if name == "varchar" else name
        return CqlType(name) if name in NATIVE else self.user_type(name)

    def user_type(self, name: str) -> CqlType:
        if self.next_is("."):
            self.at += 1
            keyspace, name = name, self.name().strip('"')
            if self.keyspace and keyspace != self.keyspace:
                raise TypeTextError(
                    f"a column of keyspace {self.keyspace} cannot refer to the user type {keyspace}.{name};"
                    " user types can only be used in the keyspace they are defined in"
                )
        return CqlType(name, user=True)

    def vector(self, depth: int) -> CqlType:
        self.expect("<")
        element = self.type(depth + 1).freeze()
        self.expect(",")
        size = self.name()
        if not (size.isdigit() and len(size) <= 5 and 1 <= int(size) <= MAX_DIMENSION):
            raise TypeTextError(f"a vector has 1 to {MAX_DIMENSION} elements, and not {size[:20]}")
        self.expect(">")
        return CqlType(VECTOR, (element,), dimension=int(size))

    def arguments(self, depth: int, count: int) -> tuple[CqlType, ...]:
        """Parse ``<...>`` with ``count`` types; 0 means one or more."""
        self.expect("<")
        found = [self.type(depth + 1)]
        while self.next_is(","):
            self.at += 1
            found.append(self.type(depth + 1))
        if count and len(found) != count:
            raise self.unexpected(f"{count} types")
        self.expect(">")
        return tuple(found)

    def name(self) -> str:
        if self.at >= len(self.tokens) or self.tokens[self.at] in "<>,.":
            raise self.unexpected("the name of a type")
        self.at += 1
        return self.tokens[self.at - 1]

    def expect(self, token: str) -> None:
        if not self.next_is(token):
            raise self.unexpected(f"'{token}'")
        self.at += 1

    def next_is(self, token: str) -> bool:
        return self.at < len(self.tokens) and self.tokens[self.at] == token

    def unexpected(self, wanted: str) -> TypeTextError:
        found = f"'{self.tokens[self.at]}'" if self.at < len(self.tokens) else "the end"
        return TypeTextError(f"'{self.text[:80]}' is no CQL type: expected {wanted}, found {found}")


def _check_nested(type_: CqlType) -> None:
    text = type_.text()
    for position, inner in enumerate(type_.arguments):
        if inner.is_counter:
            raise TypeTextError(f"counters are not allowed inside other types: {text}")
        if inner.is_duration and type_.name == "set":
            raise TypeTextError(f"durations are not allowed inside sets: {text}")
        if inner.is_duration and type_.name == "map" and position == 0:
            raise TypeTextError(f"durations are not allowed as map keys: {text}")
        if inner.is_multi_cell:
            kind = "user types" if inner.user else "collections"
            raise TypeTextError(f"non-frozen {kind} are not allowed inside collections: {text}")
        _check_nested(inner)


# Rows of schema objects: columns and parameters of tables, types, functions and aggregates.
#
# Names are those of CQL. A column has an id that no other column of its table ever gets. So a
# renamed column keeps its cells, and a new column never has the cells of a dropped one. ``version``
# is the epoch of the last change of the object, or of a type that it uses.


class ColumnKind(StrEnum):
    """Kinds of columns (Cassandra's ``ColumnMetadata.Kind``)."""

    PARTITION_KEY = "partition_key"
    CLUSTERING = "clustering"
    STATIC = "static"
    REGULAR = "regular"


PRIMARY_KEY = frozenset({ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING})


class ClusteringOrder(StrEnum):
    ASC = "asc"
    DESC = "desc"


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """A column. ``type`` is the canonical text of its type; ``order`` is that of a clustering
    column.
    """

    column_id: int
    name: str
    type: str
    kind: ColumnKind = ColumnKind.REGULAR
    order: ClusteringOrder = ClusteringOrder.ASC

    @property
    def in_primary_key(self) -> bool:
        return self.kind in PRIMARY_KEY

    @property
    def parsed(self) -> CqlType:
        return parse_type(self.type)


class DroppedColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A dropped column. Cells written at or before ``dropped_us`` do not exist any more.

    ``dropped_us`` is the log's time of the epoch ``dropped_epoch``, in microseconds since 1970.
    ``type`` has tuples instead of user-defined types.
    """

    column_id: int
    name: str
    type: str
    kind: ColumnKind
    dropped_us: int
    dropped_epoch: int


class IndexTarget(StrEnum):
    """The indexed part of a column (Cassandra's ``IndexTarget.Type``)."""

    SIMPLE = "simple"
    VALUES = "values"
    KEYS = "keys"
    ENTRIES = "entries"
    FULL = "full"


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """A secondary index. ``using`` is the name of its implementation; empty for the default."""

    index_id: str
    name: str
    column_id: int
    target: IndexTarget = IndexTarget.SIMPLE
    using: str = ""
    options: dict[str, str] = {}


class ViewRestriction(msgspec.Struct, frozen=True, kw_only=True):
    """A condition of a view's rows. ``value`` is a CQL literal, empty for IS NOT NULL."""

    column_id: int
    operator: str
    value: str = ""


class ViewDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """The base table and the conditions of a materialized view.

    The view's columns have the ids of the base's columns. With ``all_columns`` a column that is
    added to the base is added to the view.
    """

    base_table_id: str
    all_columns: bool = False
    restrictions: tuple[ViewRestriction, ...] = ()


class TableSchema(msgspec.Struct, frozen=True, kw_only=True):
    """Columns, parameters and indexes of a table. A table without this row is opaque.

    Columns are in the order partition key, clustering, static, regular. ``next_column_id`` is above
    all ids that columns of the table ever had. ``parameters`` are those that are set, as CQL
    literals without the quotes of a text.
    """

    table_id: str
    version: int
    columns: tuple[Column, ...]
    next_column_id: int
    dropped_columns: tuple[DroppedColumn, ...] = ()
    parameters: dict[str, str] = {}
    indexes: tuple[Index, ...] = ()
    view: ViewDefinition | None = None

    def column(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name == name), None)

    def column_by_id(self, column_id: int) -> Column:
        return next(column for column in self.columns if column.column_id == column_id)

    def of_kind(self, *kinds: ColumnKind) -> Iterator[Column]:
        return (column for column in self.columns if column.kind in kinds)

    @property
    def is_counter(self) -> bool:
        return any(column.parsed.is_counter for column in self.columns)

    def user_types(self) -> frozenset[str]:
        """Return the names of the user-defined types that columns name."""
        return frozenset().union(*(user_types_in(column.type) for column in self.columns))


class TypeField(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A field of a user-defined type, or an argument of a function."""

    name: str
    type: str


class UserType(msgspec.Struct, frozen=True, kw_only=True):
    type_id: str
    keyspace_id: str
    name: str
    fields: tuple[TypeField, ...]
    version: int

    def user_types(self) -> frozenset[str]:
        return frozenset().union(*(user_types_in(field.type) for field in self.fields))


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """A user-defined function. Functions of one name differ in the types of their arguments."""

    function_id: str
    keyspace_id: str
    name: str
    arguments: tuple[TypeField, ...]
    return_type: str
    language: str
    body: str
    called_on_null_input: bool
    version: int

    @property
    def argument_types(self) -> tuple[str, ...]:
        return tuple(argument.type for argument in self.arguments)

    @property
    def signature(self) -> str:
        return signature(self.name, self.argument_types)

    def user_types(self) -> frozenset[str]:
        return frozenset().union(*map(user_types_in, (*self.argument_types, self.return_type)))


class Aggregate(msgspec.Struct, frozen=True, kw_only=True):
    """A user-defined aggregate.

    ``initial_condition`` is a CQL literal; empty for none. ``final_function_id`` is empty if the
    state is the result.
    """

    aggregate_id: str
    keyspace_id: str
    name: str
    argument_types: tuple[str, ...]
    state_function_id: str
    state_type: str
    final_function_id: str = ""
    initial_condition: str = ""
    version: int

    @property
    def signature(self) -> str:
        return signature(self.name, self.argument_types)

    def user_types(self) -> frozenset[str]:
        return frozenset().union(*map(user_types_in, (*self.argument_types, self.state_type)))


class SchemaVersion(msgspec.Struct, frozen=True):
    """The version of the cluster's schema: epoch and state id of the last schema change, in hex.

    Epoch 0 means that the schema has not changed since its versions are counted.
    """

    epoch: int = 0
    state_id: str = ""


def signature(name: str, argument_types: tuple[str, ...]) -> str:
    """Return the text that identifies a function or aggregate of a keyspace."""
    return f"{name}({', '.join(argument_types)})"
