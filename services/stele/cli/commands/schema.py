"""``stele schema show|export|diff|history|plan|apply|agreement``: columns, types and versions."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from cyclopts import App, Parameter

from stele.cli.client import Client
from stele.cli.commands.epochs import by, newest_such
from stele.cli.commands.topology import GUARD, await_agreement
from stele.cli.errors import CliError, Exit, UsageError
from stele.cli.history import HistoryWords
from stele.cli.options import FROM_ONE, AgreedChange, Change, Format, Json, ReadPoint, Where
from stele.cli.output import clock, console, counted, print_line, print_value_as_json, styled, table
from stele.domain.commands import AlterSchema, Envelope, Rejection
from stele.domain.json_documents import JsonDocumentError, decode_document
from stele.domain.model.requests import Request
from stele.domain.model.schema import AnyChange, placement_name
from stele.domain.names import RequestStatus
from stele.domain.rules.table_parameters import map_literal
from stele.runtime.answers.metadata_log import SchemaAnswer
from stele.runtime.answers.session_guard import AGREEMENT_PATH, SchemaAgreement
from stele.words.cql import Statement, statements
from stele.words.cql_parser import CqlError, parse_cql
from stele.words.facts import EpochRow

if TYPE_CHECKING:
    from stele.domain.image import Image

app = App(
    name="schema",
    help="Columns, types, functions and versions: show, export, diff, history, plan, apply, agreement.",
)

SERVICE: Final = "metadata-log"
DEFAULT_LAST: Final = 20
FACTS: Final = (
    *("KeyspaceChanged", "KeyspaceDropped", "TableChanged", "TableDropped", "TableSchemaChanged"),
    *("TypeChanged", "TypeDropped", "FunctionChanged", "FunctionDropped"),
    *("AggregateChanged", "AggregateDropped"),
)
"""Facts of epochs that changed the schema."""


NOT_DONE: Final = (RequestStatus.FAILED, RequestStatus.CANCELLED)


class ChangesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of changes. ``schema_version`` is the epoch of the schema that they were made for."""

    changes: tuple[AnyChange, ...]
    schema_version: int = 0


def _read(client: Client, epoch: int | None, level: str = "barrier") -> SchemaAnswer:
    return client.get(SERVICE, "/v1/schema", SchemaAnswer, epoch=epoch, level=level)


def _chosen(answer: SchemaAnswer, name: str) -> list[Statement]:
    """Return the statements of a keyspace or of one object; all for an empty name."""
    found = _named(answer, name)
    if not found and name:
        raise CliError(
            f"The schema of epoch {answer.epoch} has no '{name}'.",
            "`stele schema show` lists all; names are KEYSPACE or KEYSPACE.OBJECT.",
        )
    return found


@app.command
def show(
    name: str = "",
    /,
    *,
    read: ReadPoint = ReadPoint(),
    json: Json = Json(),
    where: Where = Where(),
) -> None:
    """Show the schema as CQL: keyspaces, tables with columns, types, functions, indexes and views.

    Args:
        name: Only this keyspace, or this table, type or function, as KEYSPACE.NAME.
    """
    with where.client() as client:
        answer = _read(client, read.epoch, read.level)
    if json.as_json:
        print_value_as_json(answer)
        return
    out, version = console(), answer.schema_version
    since = (
        f"version {version.state_id} since epoch {version.epoch}" if version.epoch else "no version"
    )
    print_line(f"-- schema at epoch {answer.epoch}: {since}", out)
    versions = _versions(answer)
    for each in _chosen(answer, name):
        version_of = versions.pop(each.name, None)  # not again for the table's indexes
        note = "" if version_of is None else f"\n-- version {version_of}"
        print_line(f"{note}\n{each.text}", out)


def _versions(answer: SchemaAnswer) -> dict[str, int]:
    """Return the versions of tables by full name."""
    keyspaces = {keyspace.keyspace_id: keyspace.name for keyspace in answer.keyspaces}
    names = {t.table_id: f"{keyspaces[t.keyspace_id]}.{t.name}" for t in answer.tables}
    return {names[schema.table_id]: schema.version for schema in answer.table_schemas}


@app.command
def export(
    name: str = "",
    /,
    *,
    epoch: Annotated[int | None, Parameter(name="--epoch", validator=FROM_ONE)] = None,
    where: Where = Where(),
) -> None:
    """Print CQL statements that create the same schema, for `stele schema apply` or cqlsh.

    Opaque tables are comments, because CQL has no tables without columns.

    Args:
        name: Only this keyspace, or this table, type or function, as KEYSPACE.NAME.
        epoch: The schema at this epoch; default: the newest.
    """
    with where.client() as client:
        answer = _read(client, epoch)
    for each in _chosen(answer, name):
        print_line(each.text)


@app.command
def diff(
    before: Annotated[int, Parameter(validator=FROM_ONE)],
    after: Annotated[int | None, Parameter(validator=FROM_ONE)] = None,
    /,
    *,
    name: Annotated[str, Parameter(name="--name")] = "",
    json: Json = Json(),
    where: Where = Where(),
) -> None:
    """Compare the schemas at two epochs, as lines of CQL.

    Args:
        before: The first epoch.
        after: The second epoch; default: the newest.
        name: Only this keyspace, or this table, type or function, as KEYSPACE.NAME.
    """
    with where.client() as client:
        one, other = _read(client, before), _read(client, after)
    lines = list(_diff_lines(_named(one, name), _named(other, name)))
    if json.as_json:
        print_value_as_json({"from_epoch": one.epoch, "to_epoch": other.epoch, "lines": lines})
        return
    _print_diff(lines, f"The schemas of epochs {one.epoch} and {other.epoch} are equal.")


def _named(answer: SchemaAnswer, name: str) -> list[Statement]:
    """Return the statements of a name, which only one of two schemas may have."""
    return [
        each
        for each in statements(answer)
        if not name or each.name == name or each.name.startswith(f"{name}.")
    ]


def _diff_lines(before: list[Statement], after: list[Statement]) -> list[str]:
    """Return the objects that differ with all of their lines, signed where these differ."""
    old, new = _by_object(before), _by_object(after)
    found = list[str]()
    for each in dict.fromkeys((*old, *new)):
        one, two = old.get(each, []), new.get(each, [])
        diff = difflib.unified_diff(one, two, lineterm="", n=len(one))
        found += [*diff][3:]  # without the names of files and the numbers of lines
    return found


def _by_object(found: list[Statement]) -> dict[tuple[str, str], list[str]]:
    """Return lines by name and kind: overloads of a function and indexes of a table are one object."""
    lines = defaultdict[tuple[str, str], list[str]](list)
    for each in found:
        lines[each.name, " ".join(each.text.split()[:2])] += each.text.splitlines()
    return lines


def _print_diff(lines: list[str], equal: str) -> None:
    out = console()
    styles = {"+": "green", "-": "red"}
    for line in lines:
        out.print(
            line, soft_wrap=True, markup=False, highlight=False, style=styles.get(line[:1], "")
        )
    if not lines:
        print_line(equal, out)


@app.command
def history(
    name: str = "",
    /,
    *,
    last: Annotated[int, Parameter(name=("--limit", "--last"), validator=FROM_ONE)] = DEFAULT_LAST,
    epoch: Annotated[int | None, Parameter(name="--epoch", validator=FROM_ONE)] = None,
    json: Json = Json(),
    where: Where = Where(),
) -> None:
    """List the epochs that changed the schema: what changed, who asked and why.

    Args:
        name: Only changes of this keyspace or KEYSPACE.TABLE.
        last: Most epochs that are shown.
        epoch: End with this epoch instead of the newest.
    """
    asked: dict[str, object] = {"facts": ",".join(FACTS)}
    if name:
        asked["about"] = name
    with where.client() as client:
        end = _read(client, epoch).epoch
        rows = newest_such(client, asked, last, end, lambda raw: _schema_facts(raw["facts"]))
        shown = [] if json.as_json else [_as_requested(raw) for raw in rows]
        # One row for each fact, because each is printed on a separate line.
        single = [
            (number, msgspec.structs.replace(row, facts=(fact,)))
            for number, row in enumerate(shown)
            for fact in _schema_facts(row.facts)
        ]
        words = HistoryWords(client, shown[-1].epoch) if shown else None
        lines = words.summaries([row for _, row in single]) if words else []
    if json.as_json:
        print_value_as_json(rows)
        return
    for number, row in enumerate(shown):
        head = f"epoch {row.epoch}  {clock(row.at_ms)}  {row.command} by {by(row)}"
        own = [line for (of, _), line in zip(single, lines, strict=True) if of == number]
        text = "\n    ".join([head, *own])
        print_line(text)
    if not shown:
        print_line(f"No epoch up to {end} changed the schema.")


def _schema_facts(facts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the facts of an epoch about the schema. A table with columns has one of them.

    A replication change counts when it is done: neither its start nor its rollback changes the
    schema.
    """
    if any(request["status"] in NOT_DONE for request in _requests(facts)):
        return []
    with_columns = {
        fact["schema"]["table_id"] for fact in facts if fact["type"] == "TableSchemaChanged"
    }
    return [
        fact
        for fact in facts
        if fact["type"] in FACTS
        and not (fact["type"] == "TableChanged" and fact["table"]["table_id"] in with_columns)
        and not (fact["type"] == "KeyspaceChanged" and _is_moving(fact["keyspace"]))
    ]


def _is_moving(keyspace: dict[str, Any]) -> bool:
    """Return True while the replication of the keyspace is changing."""
    own = keyspace["placement"] != placement_name(keyspace["replication"])
    return own and not keyspace.get("tablets") and not keyspace.get("dropped_version")


def _requests(facts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the requests about keyspaces and tables whose status these facts change."""
    found = (fact["request"] for fact in facts if fact["type"] == "RequestChanged")
    return [each for each in found if each.get("keyspace_id") or each.get("table_id")]


def _as_requested(raw: dict[str, Any]) -> EpochRow:
    """Return the epoch with the operation, actor and reason of the request that it carries out.

    A person requests a drop or a replication change, and the coordinator carries it out.
    """
    row = msgspec.convert(raw, EpochRow)
    requests = _requests(row.facts)
    if not requests:
        return row
    request = msgspec.convert(requests[0], Request)
    return msgspec.structs.replace(
        row, command=request.kind, actor=request.actor, reason=request.reason
    )


@app.command
def plan(
    file: Path,
    /,
    *,
    save: Annotated[Path | None, Parameter(name="--save")] = None,
    where: Where = Where(),
) -> None:
    """Compare a wanted schema with the cluster's, and print the changes between them.

    The file has CREATE statements, as `stele schema export` writes them. Keyspaces that it does not
    name are left alone. In all others, objects that it does not name are dropped, except opaque
    tables. Changes that delete data, break clients, or cost much are marked. A column under another
    name is a drop and an addition, except in a primary key.

    Args:
        file: CQL statements that create the wanted schema.
        save: Write the plan to this file, for `stele schema apply`. Applying it fails if the schema
            has changed in the meantime.
    """
    from stele.cli import dumps  # noqa: PLC0415 - what folds a state takes long to import
    from stele.domain.ddl.plan import (  # noqa: PLC0415
        managed_keyspaces,
        only_accepted,
        plan_schema,
        without,
    )
    from stele.runtime.answers.of_image import schema_answer  # noqa: PLC0415
    from stele.words.schema_plan import plan_lines  # noqa: PLC0415

    wanted = _command(file)
    try:
        managed = managed_keyspaces(wanted.changes)
    except ValueError as error:
        raise UsageError(f"{file}: {error}.", "`stele schema export` writes a schema.") from error
    with where.client() as client:
        image = dumps.of_cluster(client)
    change = Change()
    after = _decided(without(image, wanted.changes), change.envelope(wanted))
    found = only_accepted(
        plan_schema(image.schema, after.schema, managed),
        image,
        lambda before, command: _after(before, change.envelope(command)),
    )
    changes = tuple(each.change for each in found.changes)
    if changes:
        _decided(image, change.envelope(AlterSchema(changes)))
    styles = {"+": "green", "-": "red", "~": "yellow", "!": "magenta"}
    out = console()
    for line in plan_lines(found, statements(schema_answer(after))):
        style = styles.get(line[:1], "bold" if line.startswith("    ") else "")
        out.print(line, soft_wrap=True, markup=False, highlight=False, style=style)
    marked = sum(each.mark is not None for each in found.changes)
    count = counted(len(changes), "change", "changes")
    summary = f"{count}, {marked} marked" if changes else "The schema is as wanted."
    if found.rest and not changes:
        summary = "No change can be made now."
    print_line(summary, out)
    if save is not None:
        saved = ChangesFile(changes, image.schema.version.epoch)
        save.write_bytes(msgspec.json.format(msgspec.json.encode(saved)))
        print_line(f"Apply it: stele schema apply {save}", out)


@app.command
def apply(
    file: Path,
    /,
    *,
    dry_run: Annotated[bool, Parameter(name="--dry-run", negative="")] = False,
    change: AgreedChange = AgreedChange(),
    where: Where = Where(),
) -> None:
    """Apply a file of changes in one epoch, all or none.

    The command then waits until all live members have applied the changes.
    Drops of keyspaces, tables and views are requests, which the coordinator carries out.

    Args:
        file: CQL statements, or JSON: {"changes": [{"type": "create_table", "name": ...}, ...]}.
        dry_run: Show what would change, or why it would be rejected, and change nothing.
    """
    command = _command(file)
    with where.client() as client:
        if dry_run:
            _show_effect(client, change.envelope(command))
            return
        outcome = change.send(client, command)
        answer = _read(client, outcome.epoch)
        count = counted(len(command.changes), "change", "changes")
        version = answer.schema_version.epoch
        print_line(f"{count} in epoch {outcome.epoch}: schema version {version}")
        await_agreement(client, change, outcome.epoch)


@app.command
def agreement(
    *,
    epoch: Annotated[int | None, Parameter(name="--epoch", validator=FROM_ONE)] = None,
    form: Format = Format(),
    where: Where = Where(),
) -> int:
    """Show which members have applied the newest schema. Exit status 0 if all live members have.

    Args:
        epoch: Compare with this epoch instead of the one that changed the schema last.
    """
    with where.client() as client:
        found = client.get(GUARD, AGREEMENT_PATH, SchemaAgreement, epoch=epoch)
    status = Exit.OK if found.agreed else Exit.FAILED
    if form.is_document:
        form.print_document(found)
        return status
    shown = table(
        f"schema of epoch {found.epoch}", "node", "liveness", "epoch", "", right=("epoch",)
    )
    for each in found.members:
        text = each.why or "has applied it"
        shown.add_row(each.node_id, styled(each.liveness), str(each.epoch), text)
    form.print_table(shown)
    behind = f"{counted(len(found.behind), 'live member is', 'live members are')} behind."
    if not found.behind:
        behind = f"The {GUARD} has not read this epoch yet."
    form.note("All live members have applied it." if found.agreed else behind)
    return status


def _command(file: Path) -> AlterSchema:
    """Return the command in a file of CQL or JSON. Raises UsageError."""
    try:
        raw = file.read_bytes()
        if raw.lstrip()[:1] not in (b"{", b"["):
            return AlterSchema(parse_cql(raw.decode()))
        found = decode_document(_with_texts(raw), ChangesFile)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}.") from error
    except (CqlError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: {error}.") from error
    except JsonDocumentError as error:
        hint = "See docs/guides/columns_and_types.md for all changes."
        raise UsageError(f"{file}: {error}.", hint) from error
    return AlterSchema(found.changes, found.schema_version)


def _with_texts(raw: bytes) -> bytes:
    """Return the document with parameters as texts: 5 as '5', and a map as a CQL literal."""
    try:
        document: Any = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return raw  # the caller decodes it again, and reports the error
    if isinstance(document, list):
        document = {"changes": document}
    changes = document.get("changes") if isinstance(document, dict) else None
    for each in changes if isinstance(changes, list) else ():
        parameters = each.get("parameters") if isinstance(each, dict) else None
        if isinstance(parameters, dict):
            each["parameters"] = {name: _as_text(value) for name, value in parameters.items()}
    return msgspec.json.encode(document)


def _as_text(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, dict):
        return map_literal({key: _as_text(each) for key, each in value.items()})
    return value


def _show_effect(client: Client, envelope: Envelope) -> None:
    """Decide the command on the newest state, and print the difference. Raises CliError."""
    from stele.cli import dumps  # noqa: PLC0415 - what folds a state takes long to import
    from stele.runtime.answers.of_image import schema_answer  # noqa: PLC0415

    image = dumps.of_cluster(client)
    after = _decided(image, envelope)
    lines = _diff_lines(
        list(statements(schema_answer(image))), list(statements(schema_answer(after)))
    )
    _print_diff(lines, "Nothing would change.")
    drops = [each for each in after.requests.unfinished() if image.request(each.request_id) is None]
    for request in drops:
        dropped = after.schema.tables.get(request.table_id)
        name = after.schema.full_name(dropped) if dropped else request.keyspace_id
        print_line(f"requested: {request.kind} {name}")


def _decided(image: Image, envelope: Envelope) -> Image:
    """Return the image after a command. Raises CliError for a rejection."""
    after = _after(image, envelope)
    if isinstance(after, Rejection):
        raise CliError(after.message, after.hint)
    return after


def _after(image: Image, envelope: Envelope) -> Image | Rejection:
    from stele.domain.decide import decide  # noqa: PLC0415 - takes long to import
    from stele.domain.evolve import apply_facts  # noqa: PLC0415
    from stele.domain.model.requests import time_ms  # noqa: PLC0415

    decision = decide(image, envelope, time_ms(envelope.request_id))
    return decision if isinstance(decision, Rejection) else apply_facts(image, decision)
