"""The plan of a schema change in CQL, for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from stele.domain.ddl.plan import SchemaPlan
from stele.domain.model import schema as c
from stele.domain.model.schema_objects import ColumnKind, quoted
from stele.words.cql import Statement, parameter

_DROPPED = {
    c.KeyspaceRemoval: "KEYSPACE",
    c.TableRemoval: "TABLE",
    c.TypeRemoval: "TYPE",
    c.FunctionRemoval: "FUNCTION",
    c.AggregateRemoval: "AGGREGATE",
    c.IndexRemoval: "INDEX",
    c.ViewRemoval: "MATERIALIZED VIEW",
}


def plan_lines(plan: SchemaPlan, wanted: Iterable[Statement]) -> Iterator[str]:
    """Yield the lines of a plan: new objects with ``+``, changed ones with ``~``, dropped ones with ``-``.

    ``wanted`` are the statements of the wanted schema.
    """
    texts = [*wanted]
    for change, mark, why in plan.changes:
        sign, lines = _statements(change, texts)
        yield from (f"{sign} {line}" for line in lines)
        if mark:
            yield f"    {mark}: {why}" if why else f"    {mark}"
    yield from (f"! {text}" for text in plan.rest)


def _statements(change: c.AnyChange, wanted: list[Statement]) -> tuple[str, list[str]]:
    if isinstance(change, c.TableAlteration):
        return "~", [*_altered_table(change)]
    if isinstance(change, c.TypeAlteration):
        return "~", [*_altered_type(change)]
    if isinstance(change, c.ViewAlteration):
        head = f"ALTER MATERIALIZED VIEW {_name(change.name)}"
        return "~", [f"{head} WITH {_parameters(change.parameters)};"]
    kind = _DROPPED.get(type(change))
    if kind is not None:
        types = getattr(change, "argument_types", None)
        arguments = "" if types is None else f" ({', '.join(types)})"
        return "-", [f"DROP {kind} {_name(getattr(change, 'name', ''))}{arguments};"]
    return "~" if getattr(change, "or_replace", False) else "+", _created(change, wanted)


def _created(change: c.AnyChange, wanted: list[Statement]) -> list[str]:
    """Return the wanted statement of a creation."""
    tag = str(change.__struct_config__.tag).replace("_", " ").upper()
    name = change.table if isinstance(change, c.IndexCreation) else getattr(change, "name", "")
    heads = {f"{tag} {_name(name)} ", f"{tag} {quoted(name)} "}
    if isinstance(change, c.IndexCreation):
        heads = {f"CREATE {custom}INDEX {quoted(change.name)} " for custom in ("", "CUSTOM ")}
    types = getattr(change, "argument_types", None)
    for each in wanted:
        if each.name == name and each.text.startswith(tuple(heads)):
            first = each.text.splitlines()[0]
            if types and f"({', '.join(types)})" not in first:
                continue
            return each.text.splitlines()
    return [f"{tag} {_name(name)};"]


def _name(full: str) -> str:
    return ".".join(map(quoted, full.split(".")))


def _altered_table(change: c.TableAlteration) -> Iterator[str]:
    head = f"ALTER TABLE {_name(change.name)}"
    if change.drop:
        yield f"{head} DROP ({', '.join(map(quoted, change.drop))});"
    if change.rename:
        yield f"{head} RENAME {_renamed(change.rename)};"
    if change.add:
        columns = (
            f"{quoted(col.name)} {col.type}{' STATIC' * (col.kind is ColumnKind.STATIC)}"
            for col in change.add
        )
        yield f"{head} ADD ({', '.join(columns)});"
    if change.parameters:
        yield f"{head} WITH {_parameters(change.parameters)};"


def _altered_type(change: c.TypeAlteration) -> Iterator[str]:
    head = f"ALTER TYPE {_name(change.name)}"
    if change.rename:
        yield f"{head} RENAME {_renamed(change.rename)};"
    for field in change.add:
        yield f"{head} ADD {quoted(field.name)} {field.type};"


def _renamed(names: Mapping[str, str]) -> str:
    return " AND ".join(f"{quoted(old)} TO {quoted(new)}" for old, new in names.items())


def _parameters(values: Mapping[str, str]) -> str:
    """Return parameters as CQL. An empty value is the default."""
    return " AND ".join(
        parameter(name, value) if value else f"{name} = default" for name, value in values.items()
    )
