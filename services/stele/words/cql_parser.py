"""Parse CQL statements that change the schema. A text of several statements is one batch.

The grammar is that of Cassandra's ``Parser.g`` for CREATE, ALTER and DROP. Names without quotes are
in lower case. ``USE`` names the keyspace of the names that have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final, NamedTuple, TypeVar

import msgspec
from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedInput

from stele.domain.model import schema as c
from stele.domain.model.schema import TableOptions
from stele.domain.model.schema_objects import ClusteringOrder, ColumnKind, IndexTarget, TypeField
from stele.domain.rules.table_parameters import map_literal

GRAMMAR: Final = r"""
start: (_statement? ";")* _statement?
_statement: use | create_keyspace | drop_keyspace | create_table | alter_table | drop_table
    | create_type | alter_type | drop_type | create_function | drop_function
    | create_aggregate | drop_aggregate | create_index | drop_index
    | create_view | alter_view | drop_view

use: "USE"i name

create_keyspace: "CREATE"i "KEYSPACE"i if_not_exists? name options
drop_keyspace: "DROP"i "KEYSPACE"i if_exists? name

create_table: "CREATE"i _TABLE if_not_exists? full_name "(" _element ("," _element)* ")" options?
_element: column | primary_key
column: name type static? is_key?
static: "STATIC"i
is_key: "PRIMARY"i "KEY"i
primary_key: "PRIMARY"i "KEY"i "(" (partition_key | name) ("," name)* ")"
partition_key: "(" name ("," name)* ")"

alter_table: "ALTER"i _TABLE if_exists? full_name _table_change
_table_change: add | drop | rename | retype | options
add: "ADD"i if_not_exists? (_new_columns | "(" _new_columns ")")
_new_columns: new_column ("," new_column)*
new_column: name type static?
drop: "DROP"i if_exists? (name | "(" name ("," name)* ")")
rename: "RENAME"i renamed ("AND"i renamed)*
renamed: name "TO"i name
retype: "ALTER"i name "TYPE"i type
drop_table: "DROP"i _TABLE if_exists? full_name

create_type: "CREATE"i "TYPE"i if_not_exists? full_name "(" field ("," field)* ")"
field: name type
alter_type: "ALTER"i "TYPE"i if_exists? full_name (add_field | rename | retype)
add_field: "ADD"i field
drop_type: "DROP"i "TYPE"i if_exists? full_name

create_function: "CREATE"i or_replace? "FUNCTION"i if_not_exists? full_name _arguments _body
_arguments: "(" (field ("," field)*)? ")"
_body: (called | not_called) _ON_NULL "RETURNS"i type "LANGUAGE"i name "AS"i (STRING | BODY)
called: "CALLED"i
not_called: "RETURNS"i "NULL"i
drop_function: "DROP"i "FUNCTION"i if_exists? full_name types?
create_aggregate: "CREATE"i or_replace? "AGGREGATE"i if_not_exists? full_name types _state
_state: "SFUNC"i name "STYPE"i type final? initial?
final: "FINALFUNC"i name
initial: "INITCOND"i term
drop_aggregate: "DROP"i "AGGREGATE"i if_exists? full_name types?
types: "(" (type ("," type)*)? ")"

create_index: "CREATE"i "CUSTOM"i? "INDEX"i if_not_exists? index_name? _indexed
_indexed: "ON"i full_name "(" target ")" using? index_options?
index_name: name
target: (name "(" name ")") | name
using: "USING"i STRING
index_options: "WITH"i "OPTIONS"i "=" map
drop_index: "DROP"i "INDEX"i if_exists? full_name

create_view: "CREATE"i "MATERIALIZED"i "VIEW"i if_not_exists? full_name "AS"i _select
_select: "SELECT"i (all | names) "FROM"i full_name "WHERE"i _conditions primary_key options?
_conditions: condition ("AND"i condition)*
all: "*"
names: name ("," name)*
condition: name ("IS"i "NOT"i "NULL"i | operator term | "IN"i term_list)
!operator: "=" | "<=" | ">=" | "<" | ">"
alter_view: "ALTER"i "MATERIALIZED"i "VIEW"i if_exists? full_name options
drop_view: "DROP"i "MATERIALIZED"i "VIEW"i if_exists? full_name

options: "WITH"i _option ("AND"i _option)*
_option: option | clustering_order
option: name "=" _option_value
_option_value: STRING | SIGNED_NUMBER | WORD | map
clustering_order: "CLUSTERING"i "ORDER"i "BY"i "(" order ("," order)* ")"
order: name (asc | desc)?
asc: "ASC"i
desc: "DESC"i

if_exists: "IF"i "EXISTS"i
if_not_exists: "IF"i "NOT"i "EXISTS"i
or_replace: "OR"i "REPLACE"i

full_name: name ("." name)?
name: WORD | QUOTED
type: name ("." name)? ("<" _type_argument ("," _type_argument)* ">")?
_type_argument: type | SIGNED_NUMBER

map: "{" (_entry ("," _entry)*)? "}"
_entry: entry
entry: STRING ":" (STRING | SIGNED_NUMBER | WORD)
term: STRING | SIGNED_NUMBER | WORD | UUID | HEX | QUOTED | term_list | term_braces | term_brackets
term_list: "(" _terms? ")"
term_brackets: "[" _terms? "]"
term_braces: "{" (_term_entry ("," _term_entry)*)? "}"
_terms: term ("," term)*
_term_entry: term (":" term)?

_TABLE: /TABLE\b|COLUMNFAMILY\b/i
_ON_NULL: /ON\s+NULL\s+INPUT\b/i
UUID.3: /[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}/
HEX.2: /0[xX][0-9a-fA-F]*/
WORD: /[a-z][a-z0-9_]*/i
QUOTED: /"(?:[^"]|"")+"/
STRING: /'(?:[^']|'')*'/
BODY: /\$\$[\s\S]*?\$\$/
COMMENT: /(--|\/\/)[^\n]*/ | /\/\*[\s\S]*?\*\//
%import common.SIGNED_NUMBER
%import common.WS
%ignore WS
%ignore COMMENT
"""

T = TypeVar("T")

MOST_EXPECTED: Final = 8
"""Limit of the expected words that an error lists."""


class CqlError(ValueError):
    """The text is no list of statements. ``line`` and ``column`` count from 1."""

    def __init__(self, line: int, column: int, message: str) -> None:
        super().__init__(f"line {line}, column {column}: {message}")
        self.line = line
        self.column = column


def parse_cql(text: str, keyspace: str = "") -> tuple[c.AnyChange, ...]:
    """Return the changes of all statements. Raises CqlError.

    ``keyspace`` is that of names without one, until the text has ``USE``.
    """
    try:
        tree = _parser().parse(text)
    except UnexpectedInput as error:
        raise _error(error, text) from None
    return tuple(_Statements(text, keyspace).changes(tree))


@cache
def _parser() -> Lark:
    return Lark(GRAMMAR, parser="lalr", propagate_positions=True, maybe_placeholders=False)


def _error(error: UnexpectedInput, text: str) -> CqlError:
    found = "the end" if isinstance(error, UnexpectedEOF) else "an unexpected character"
    token = getattr(error, "token", None)
    line, column = error.line or 1, error.column or 1
    if token is not None and token.type == "$END":
        found, lines = "the end", text.rstrip().split("\n")
        line, column = len(lines), len(lines[-1]) + 1
    elif token is not None:
        found = f"'{str(token)[:40]}'"
    elif isinstance(error, UnexpectedCharacters):
        found = f"'{error.char}'"
    sets = (getattr(error, name, None) for name in ("accepts", "allowed", "expected"))
    names: set[str] = next(filter(None, sets), set())
    words = sorted({_WORDS.get(name, name.lstrip("_").replace("_", " ")) for name in names} - {""})
    shown = " ".join(words[:MOST_EXPECTED]) + (" ..." if len(words) > MOST_EXPECTED else "")
    return CqlError(line, column, f"found {found}, expected one of: {shown}")


_WORDS: Final[dict[str, str]] = {
    "LPAR": "(",
    "RPAR": ")",
    "COMMA": ",",
    "DOT": ".",
    "SEMICOLON": ";",
    "COLON": ":",
    "EQUAL": "=",
    "LESSTHAN": "<",
    "MORETHAN": ">",
    "LBRACE": "{",
    "RBRACE": "}",
    "LSQB": "[",
    "RSQB": "]",
    "STAR": "*",
    "WORD": "<name>",
    "QUOTED": "<name>",
    "STRING": "<string>",
    "SIGNED_NUMBER": "<number>",
    "BODY": "$$",
    "$END": "<end>",
    "WS": "",
    "COMMENT": "",
    "UUID": "<value>",
    "HEX": "<value>",
}


def _string(token: str) -> str:
    return token[1:-1].replace("''", "'")


def _scalar(token: Token) -> str:
    if token.type == "BODY":
        return str(token[2:-2])
    return _string(token) if token.type == "STRING" else str(token)


class _Statements:
    """Turns trees of statements into changes."""

    def __init__(self, text: str, keyspace: str) -> None:
        self._text = text
        self._keyspace = keyspace

    def changes(self, tree: Tree[Token]) -> Iterator[c.AnyChange]:
        for statement in _trees(tree):
            if statement.data == "use":
                self._keyspace = _name(statement.children[0])
            else:
                yield getattr(self, f"_{statement.data}")(statement)

    # Parts of statements.

    def _full(self, tree: Tree[Token]) -> str:
        """Return ``keyspace.name`` of a tree ``full_name``."""
        names = [_name(each) for each in tree.children]
        if len(names) == 2:
            return ".".join(names)
        if not self._keyspace:
            meta = tree.meta
            message = f"{names[0]} has no keyspace: write KEYSPACE.{names[0]}, or USE before it"
            raise CqlError(meta.line, meta.column, message)
        return f"{self._keyspace}.{names[0]}"

    def _raw(self, tree: Tree[Token]) -> str:
        """Return the text of a tree as it was written."""
        return self._text[tree.meta.start_pos : tree.meta.end_pos]

    def _object(self, tree: Tree[Token]) -> str:
        return self._full(_one(tree, "full_name"))

    def _field(self, tree: Tree[Token]) -> TypeField:
        name, type_ = _trees(tree)
        return TypeField(_name(name), self._raw(type_))

    def _fields(self, tree: Tree[Token]) -> tuple[TypeField, ...]:
        return tuple(map(self._field, _all(tree, "field")))

    def _types(self, tree: Tree[Token]) -> tuple[str, ...] | None:
        found = _maybe(tree, "types")
        return None if found is None else tuple(map(self._raw, _trees(found)))

    def _options(self, tree: Tree[Token]) -> _Options:
        options = _maybe(tree, "options")
        if options is None:
            return _Options({}, {}, tree)
        orders = (o for each in _all(options, "clustering_order") for o in _trees(each))
        return _Options(
            _once(map(_option, _all(options, "option"))),
            _once((each, _name(each.children[0]), _order(each)) for each in orders),
            tree,
        )

    def _map_of(self, tree: Tree[Token], name: str) -> dict[str, str]:
        found = _maybe(tree, name)
        return {} if found is None else _map(_one(found, "map"))

    # Keyspaces, tables and types.

    def _create_keyspace(self, tree: Tree[Token]) -> c.KeyspaceCreation:
        options = self._options(tree)
        replication = options.map("replication")
        tablets = options.map("tablets")
        kind = replication.pop("class", "NetworkTopologyStrategy").rpartition(".")[2]
        if kind != "NetworkTopologyStrategy":
            raise options.error(
                f"replication has class {kind}; only NetworkTopologyStrategy is known"
            )
        options.check_known("replication", "tablets", "durable_writes")
        return c.KeyspaceCreation(
            name=_name(_one(tree, "name")),
            replication={
                dc: options.number(f"replication of {dc}", text)
                for dc, text in replication.items()
                if text.isdigit()
            },
            racks={dc: _racks(text) for dc, text in replication.items() if not text.isdigit()},
            tablets=tablets.get("enabled", "true" if tablets else "false") == "true",
            initial_tablets=options.number("initial", tablets.get("initial", "0")),
            if_not_exists=_has(tree, "if_not_exists"),
        )

    def _drop_keyspace(self, tree: Tree[Token]) -> c.KeyspaceRemoval:
        return c.KeyspaceRemoval(name=_name(_one(tree, "name")), if_exists=_has(tree, "if_exists"))

    def _create_table(self, tree: Tree[Token]) -> c.TableCreation:
        options = self._options(tree)
        keys = [
            *_all(tree, "primary_key"),
            *(column for column in _all(tree, "column") if _has(column, "is_key")),
        ]
        if len(keys) != 1:
            wrong = "no PRIMARY KEY" if not keys else "more than one PRIMARY KEY"
            raise options.error(f"table {self._object(tree)} has {wrong}")
        partition, clustering = (
            ([_name(_one(keys[0], "name"))], [])
            if keys[0].data == "column"
            else _key_columns(keys[0])
        )
        columns = _once((each, _name(_one(each, "name")), each) for each in _all(tree, "column"))
        unknown = [name for name in (*partition, *clustering) if name not in columns]
        if unknown:
            raise CqlError(
                keys[0].meta.line,
                keys[0].meta.column,
                f"unknown column {unknown[0]} in PRIMARY KEY of {self._object(tree)}",
            )
        unordered = [name for name in options.order if name not in clustering]
        if unordered:
            raise options.error(f"{unordered[0]} in CLUSTERING ORDER BY is not a clustering column")
        kinds = dict.fromkeys(partition, ColumnKind.PARTITION_KEY)
        kinds |= dict.fromkeys(clustering, ColumnKind.CLUSTERING)
        others = [name for name in columns if name not in kinds]
        return c.TableCreation(
            name=self._object(tree),
            columns=tuple(
                self._column(columns[name], kinds.get(name), options.order.get(name))
                for name in (*partition, *clustering, *others)
            ),
            parameters=options.parameters(),
            options=options.table_options(),
            if_not_exists=_has(tree, "if_not_exists"),
        )

    def _column(
        self,
        tree: Tree[Token],
        kind: ColumnKind | None = None,
        order: ClusteringOrder | None = None,
    ) -> c.ColumnDefinition:
        plain = ColumnKind.STATIC if _has(tree, "static") else ColumnKind.REGULAR
        if kind is not None and plain is ColumnKind.STATIC:
            name = _name(_one(tree, "name"))
            raise CqlError(
                tree.meta.line, tree.meta.column, f"static column {name} is in the PRIMARY KEY"
            )
        return c.ColumnDefinition(
            name=_name(_one(tree, "name")),
            type=self._raw(_one(tree, "type")),
            kind=kind or plain,
            order=order or ClusteringOrder.ASC,
        )

    def _alter_table(self, tree: Tree[Token]) -> c.TableAlteration:
        add, drop, retype = (_maybe(tree, name) for name in ("add", "drop", "retype"))
        options = self._options(tree)
        if options.table_options() != TableOptions():
            raise options.error("use `stele table alter` for the options of tablets")
        return c.TableAlteration(
            name=self._object(tree),
            add=tuple(map(self._column, _all(add, "new_column"))) if add else (),
            drop=tuple(map(_name, _all(drop, "name"))) if drop else (),
            rename=_renamed(tree),
            types={_name(_one(retype, "name")): self._raw(_one(retype, "type"))} if retype else {},
            parameters=options.parameters(),
            if_exists=_has(tree, "if_exists"),
            add_if_not_exists=add is not None and _has(add, "if_not_exists"),
            drop_if_exists=drop is not None and _has(drop, "if_exists"),
        )

    def _drop_table(self, tree: Tree[Token]) -> c.TableRemoval:
        return c.TableRemoval(name=self._object(tree), if_exists=_has(tree, "if_exists"))

    def _create_type(self, tree: Tree[Token]) -> c.TypeCreation:
        return c.TypeCreation(
            name=self._object(tree),
            fields=self._fields(tree),
            if_not_exists=_has(tree, "if_not_exists"),
        )

    def _alter_type(self, tree: Tree[Token]) -> c.TypeAlteration:
        add, retype = _maybe(tree, "add_field"), _maybe(tree, "retype")
        return c.TypeAlteration(
            name=self._object(tree),
            add=self._fields(add) if add else (),
            rename=_renamed(tree),
            types={_name(_one(retype, "name")): self._raw(_one(retype, "type"))} if retype else {},
            if_exists=_has(tree, "if_exists"),
        )

    def _drop_type(self, tree: Tree[Token]) -> c.TypeRemoval:
        return c.TypeRemoval(name=self._object(tree), if_exists=_has(tree, "if_exists"))

    # Functions and aggregates.

    def _create_function(self, tree: Tree[Token]) -> c.FunctionCreation:
        (body,) = (each for each in tree.children if isinstance(each, Token))
        return c.FunctionCreation(
            name=self._object(tree),
            arguments=self._fields(tree),
            return_type=self._raw(_one(tree, "type")),
            language=_name(_one(tree, "name")),
            body=_scalar(body),
            called_on_null_input=_has(tree, "called"),
            or_replace=_has(tree, "or_replace"),
            if_not_exists=_has(tree, "if_not_exists"),
        )

    def _drop_function(self, tree: Tree[Token]) -> c.FunctionRemoval:
        return c.FunctionRemoval(
            name=self._object(tree),
            argument_types=self._types(tree),
            if_exists=_has(tree, "if_exists"),
        )

    def _create_aggregate(self, tree: Tree[Token]) -> c.AggregateCreation:
        final, initial = _maybe(tree, "final"), _maybe(tree, "initial")
        return c.AggregateCreation(
            name=self._object(tree),
            argument_types=self._types(tree) or (),
            state_function=_name(_one(tree, "name")),
            state_type=self._raw(_one(tree, "type")),
            final_function=_name(_one(final, "name")) if final else "",
            initial_condition=self._raw(_one(initial, "term")) if initial else "",
            or_replace=_has(tree, "or_replace"),
            if_not_exists=_has(tree, "if_not_exists"),
        )

    def _drop_aggregate(self, tree: Tree[Token]) -> c.AggregateRemoval:
        return c.AggregateRemoval(
            name=self._object(tree),
            argument_types=self._types(tree),
            if_exists=_has(tree, "if_exists"),
        )

    # Indexes and views.

    def _create_index(self, tree: Tree[Token]) -> c.IndexCreation:
        target = [_name(each) for each in _trees(_one(tree, "target"))]
        name, using = _maybe(tree, "index_name"), _maybe(tree, "using")
        kind = target[0].lower() if len(target) == 2 else IndexTarget.SIMPLE
        if kind not in {*IndexTarget}:
            where = _one(tree, "target").meta
            known = ", ".join(sorted({*IndexTarget} - {IndexTarget.SIMPLE}))
            raise CqlError(where.line, where.column, f"found {kind}, expected {known}")
        return c.IndexCreation(
            table=self._object(tree),
            column=target[-1],
            name=_name(_one(name, "name")) if name else "",
            target=IndexTarget(kind),
            using=_string(str(using.children[0])) if using else "",
            options=self._map_of(tree, "index_options"),
            if_not_exists=_has(tree, "if_not_exists"),
        )

    def _drop_index(self, tree: Tree[Token]) -> c.IndexRemoval:
        return c.IndexRemoval(name=self._object(tree), if_exists=_has(tree, "if_exists"))

    def _create_view(self, tree: Tree[Token]) -> c.ViewCreation:
        view, base = map(self._full, _all(tree, "full_name"))
        options, selected = self._options(tree), _maybe(tree, "names")
        partition, clustering = _key_columns(_one(tree, "primary_key"))
        return c.ViewCreation(
            name=view,
            base=base,
            columns=tuple(map(_name, _trees(selected))) if selected else (),
            where=tuple(map(self._condition, _all(tree, "condition"))),
            partition_key=tuple(partition),
            clustering=tuple(
                c.ViewKey(name, options.order.get(name, ClusteringOrder.ASC)) for name in clustering
            ),
            parameters=options.parameters(),
            options=options.table_options(),
            if_not_exists=_has(tree, "if_not_exists"),
        )

    def _condition(self, tree: Tree[Token]) -> c.ViewCondition:
        name, *rest = tree.children
        if not rest:
            return c.ViewCondition(_name(name))
        operator, value = _maybe(tree, "operator"), rest[-1]
        assert isinstance(value, Tree)
        text = "IN" if operator is None else str(operator.children[0])
        return c.ViewCondition(_name(name), text, self._raw(value))

    def _alter_view(self, tree: Tree[Token]) -> c.ViewAlteration:
        return c.ViewAlteration(
            name=self._object(tree),
            parameters=self._options(tree).parameters(),
            if_exists=_has(tree, "if_exists"),
        )

    def _drop_view(self, tree: Tree[Token]) -> c.ViewRemoval:
        return c.ViewRemoval(name=self._object(tree), if_exists=_has(tree, "if_exists"))


class _Options(NamedTuple):
    """The options of a WITH clause, and the statement that has them."""

    found: dict[str, str | dict[str, str]]
    order: dict[str, ClusteringOrder]
    tree: Tree[Token]

    def error(self, message: str) -> CqlError:
        return CqlError(self.tree.meta.line, self.tree.meta.column, message)

    def map(self, name: str) -> dict[str, str]:
        value = self.found.get(name, {})
        if isinstance(value, str):
            raise self.error(f"{name} is '{value[:40]}', expected a map")
        return {**value}

    def number(self, name: str, text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 9):
            raise self.error(f"{name} is '{text[:40]}', expected a whole number")
        return int(text)

    def check_known(self, *names: str) -> None:
        unknown = sorted({*self.found} - {*names})
        if unknown:
            raise self.error(f"unknown option {unknown[0]}, expected {', '.join(names)}")

    def parameters(self) -> dict[str, str]:
        return {
            name: map_literal(value) if isinstance(value, dict) else value
            for name, value in self.found.items()
            if name != "tablets"
        }

    def table_options(self) -> TableOptions:
        given = self.map("tablets")
        try:
            return msgspec.convert(given, TableOptions, strict=False)
        except msgspec.ValidationError as error:
            raise self.error(f"tablets: {error}") from None


def _trees(tree: Tree[Token]) -> list[Tree[Token]]:
    return [each for each in tree.children if isinstance(each, Tree)]


def _all(tree: Tree[Token], name: str) -> list[Tree[Token]]:
    return [each for each in _trees(tree) if each.data == name]


def _maybe(tree: Tree[Token], name: str) -> Tree[Token] | None:
    return next(iter(_all(tree, name)), None)


def _one(tree: Tree[Token], name: str) -> Tree[Token]:
    return _all(tree, name)[0]


def _has(tree: Tree[Token], name: str) -> bool:
    return bool(_all(tree, name))


def _name(tree: Tree[Token] | Token) -> str:
    """Return the name in a tree ``name``: in lower case unless it is quoted."""
    assert isinstance(tree, Tree)
    (token,) = tree.children
    assert isinstance(token, Token)
    return token[1:-1].replace('""', '"') if token.type == "QUOTED" else token.lower()


def _order(tree: Tree[Token]) -> ClusteringOrder:
    return ClusteringOrder.DESC if _has(tree, "desc") else ClusteringOrder.ASC


def _map(tree: Tree[Token]) -> dict[str, str]:
    return _once(map(_entry, _trees(tree)))


def _entry(tree: Tree[Token]) -> tuple[Tree[Token], str, str]:
    key, value = tree.children
    assert isinstance(key, Token)
    assert isinstance(value, Token)
    return tree, _scalar(key), _scalar(value)


def _option(tree: Tree[Token]) -> tuple[Tree[Token], str, str | dict[str, str]]:
    name, value = tree.children
    return tree, _name(name).lower(), _scalar(value) if isinstance(value, Token) else _map(value)


def _once(named: Iterable[tuple[Tree[Token], str, T]]) -> dict[str, T]:
    """Return values by name. A name that is given twice raises CqlError at the second place."""
    found = dict[str, T]()
    for tree, name, value in named:
        if name in found:
            raise CqlError(tree.meta.line, tree.meta.column, f"'{name}' is given twice")
        found[name] = value
    return found


def _racks(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (rack.strip() for rack in text.split(","))))


def _key_columns(tree: Tree[Token]) -> tuple[list[str], list[str]]:
    """Return the columns of the partition key and the clustering columns."""
    first, *clustering = _trees(tree)
    partition = [first] if first.data == "name" else _trees(first)
    return [_name(each) for each in partition], [_name(each) for each in clustering]


def _renamed(tree: Tree[Token]) -> dict[str, str]:
    rename = _maybe(tree, "rename")
    pairs = [] if rename is None else _trees(rename)
    return _once((each, _name(each.children[0]), _name(each.children[1])) for each in pairs)
