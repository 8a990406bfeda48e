"""The OpenAPI document, built from the types that the service decodes and answers with."""

from functools import cache
from typing import Any, Final

from stele.domain.column import schema_of_column
from stele.domain.registry_entry import Filter
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN
from stele.domain.view import filters
from stele.metadata_log.questions import LEVELS, MAX_NUMBER, MAX_PAGE_ROWS, PAGE_ROWS
from stele.metadata_log.schema_request import SchemaOutcome, SchemaRequest
from stele.runtime.answers import metadata_log as answers
from stele.runtime.answers.common import ErrorBody, Position
from stele.runtime.answers.history import (
    ChangesAnswer,
    DiffAnswer,
    EpochAnswer,
    SearchAnswer,
    StateAnswer,
)
from stele.runtime.answers.metadata_log import CommandRequest, OutcomeAnswer, StatsAnswer
from stele.runtime.http import Health
from stele.words.openapi import Json, Schemas, health_path, response, schemas_of


def _parameter(name: str, kind: str, description: str, most: int = MAX_NUMBER, **more: Any) -> Json:
    """``most`` is the largest number that is taken."""
    shape = {"name": name, "in": "query", "description": description}
    return {**shape, "schema": _shape(name, kind, most), **more}


_BEARER: Final = "token"
"""Asked for where there is a file of callers."""
_FORMS: Final = {
    "cursor": "^[A-Za-z0-9_-]*$",
    "log_id": "^([0-9A-Fa-f]{32})?$",
    "state_id": "^([0-9A-Fa-f]{32})?$",
}
"""Of texts that ``questions`` takes in one form alone."""


def _shape(name: str, kind: str, most: int) -> Json:
    """With the bounds that ``questions`` checks."""
    if name in _FORMS:
        return {"type": kind, "pattern": _FORMS[name]}
    if kind != "integer":
        return {"type": kind}
    if name == "token":
        return {"type": kind, "minimum": MIN_TOKEN, "maximum": MAX_TOKEN}
    return {"type": kind, "minimum": int(name == "limit"), "maximum": most}


_EPOCH: Final = _parameter("epoch", "integer", "The state at this epoch; the newest by default.")
_LEVEL: Final = {
    "name": "level",
    "in": "query",
    "description": "How new: what this process has, what the log's end holds, or a NOOP read back.",
    "schema": {"enum": list(LEVELS), "default": LEVELS[0]},
}
_AT: Final = (_EPOCH, _LEVEL)
_PAGED: Final = (
    *_AT,
    _parameter(
        "limit",
        "integer",
        f"Rows at most; {PAGE_ROWS} by default, {MAX_PAGE_ROWS} at most.",
        MAX_PAGE_ROWS,
    ),
    _parameter("cursor", "string", "next_cursor of the page before; it fixes the epoch."),
)
_FROM: Final = _parameter("from", "integer", "First epoch; for a stream the next one by default.")
_RESUME: Final = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "Resume a stream after this epoch.",
    "schema": _shape("Last-Event-ID", "integer", MAX_NUMBER),
}
_AFTER: Final = _parameter(
    "state_id",
    "string",
    "State id of the epoch before a stream: rejected when the log has another one.",
)
_LOG: Final = _parameter(
    "log_id", "string", "Log id of the state that was read: rejected by another log."
)


def _path(name: str, kind: str = "string") -> Json:
    return {"name": name, "in": "path", "required": True, "schema": _shape(name, kind, MAX_NUMBER)}


def _filters(section: str) -> tuple[Json, ...]:
    return tuple(_filter(name, known) for name, known in filters().get(section, {}).items())


def _filter(name: str, known: Filter) -> Json:
    if {*known.values} == {"true", "false"}:
        return _parameter(name, "boolean", f"{known.what}.")
    found = _parameter(name, "string", f"{known.what}.")
    return {**found, "schema": {"enum": list(known.values)}} if known.values else found


_READS: Final[dict[str, tuple[str, type, tuple[Json, ...]]]] = {
    "/v1/topology": ("Versions, coordinator, open transitions", answers.TopologyAnswer, _AT),
    "/v1/nodes": ("Nodes in pages", answers.NodesPage, (*_filters("nodes"), *_PAGED)),
    "/v1/services": ("Services and what they support, in pages", answers.ServicesPage, _PAGED),
    "/v1/requests": ("Requests in pages", answers.RequestsPage, (*_filters("requests"), *_PAGED)),
    "/v1/requests/{request_id}": (
        "One request and its transition",
        answers.RequestAnswer,
        (_path("request_id"), *_AT),
    ),
    "/v1/keyspaces": ("Keyspaces in pages", answers.KeyspacesPage, _PAGED),
    "/v1/tables": ("Tables in pages", answers.TablesPage, _PAGED),
    "/v1/schema": (
        "All tables with their columns, types, functions and aggregates",
        answers.SchemaAnswer,
        _AT,
    ),
    "/v1/catch_up": (
        "Catch-up replicas, readers of the log, and how far it is truncated",
        answers.CatchUpAnswer,
        _AT,
    ),
    "/v1/table_snapshots": ("Snapshots of tables in pages", answers.TableSnapshotsPage, _PAGED),
    "/v1/placements": (
        "Rows of a placement in pages",
        answers.PlacementsPage,
        (
            _parameter(
                "keyspace",
                "string",
                "The placement of this keyspace, or of a table, as keyspace.table. It or placement is needed.",
            ),
            _parameter(
                "placement", "string", "A placement by its own name. It or keyspace is needed."
            ),
            _parameter("range", "string", "start:end, only rows that share a token with it."),
            _parameter("token", "integer", "Only the row that holds this token."),
            *_PAGED,
        ),
    ),
    "/v1/repairs": (
        "When each tablet of a table was repaired last, in pages",
        answers.RepairsPage,
        (
            _parameter("table", "string", "The table, as keyspace.table."),
            _parameter("tablet", "integer", "Only the tablet of this number."),
            *_PAGED,
        ),
    ),
    "/v1/transitions/{transition_id}": (
        "The plan of an open transition in pages",
        answers.TransitionPage,
        (_path("transition_id"), *_PAGED),
    ),
    "/v1/settings": ("Features, and settings in pages", answers.SettingsPage, _PAGED),
    "/v1/cdc/generations": ("CDC generations in pages", answers.CdcGenerationsPage, _PAGED),
    "/v1/cdc/streams": (
        "Streams of a CDC generation in pages",
        answers.CdcStreamsPage,
        (
            _parameter("generation", "string", "Its id; the newest committed one by default."),
            _parameter("token", "integer", "Only the stream of the range that holds this token."),
            *_PAGED,
        ),
    ),
    "/v1/state": ("All that is true at an epoch", StateAnswer, _AT),
    "/v1/epochs/search": (
        "Epochs that were searched for, the newest first: a slice of the history at each call",
        SearchAnswer,
        (
            _parameter("actor", "string", "The actor of the decision."),
            _parameter("command", "string", "The command, such as create_keyspace."),
            _parameter("request", "string", "The request's id, or one that a fact names."),
            _parameter("facts", "string", "Names of facts with commas: one of them is there."),
            _parameter("about", "string", "A node, keyspace, keyspace.table or id in a fact."),
            _parameter("text", "string", "Words that are all somewhere in the texts."),
            _parameter("refused", "boolean", "true: only commands that were refused."),
            _parameter("since_ms", "integer", "By the writer's clock, ms since 1970."),
            _parameter("until_ms", "integer", "The same; the last that is meant."),
            _parameter("before", "integer", "Look at what is before this epoch: next_before."),
            _parameter(
                "limit", "integer", "Largest number of epochs; 20 by default, 1000 at most.", 1000
            ),
            _LOG,
        ),
    ),
    "/v1/epochs/stats": (
        "The content of epochs, oldest first: one slice of the history per call",
        StatsAnswer,
        (
            _parameter("from", "integer", "First epoch; the oldest by default: next_from."),
            _parameter("to", "integer", "Last epoch; the newest by default."),
        ),
    ),
    "/v1/epochs/{epoch}": ("One epoch", EpochAnswer, (_path("epoch", "integer"), _LOG)),
    "/v1/diff": (
        "The difference between two epochs",
        DiffAnswer,
        (
            _parameter("from", "integer", "Epoch before.", required=True),
            _parameter("to", "integer", "Epoch after; the newest by default."),
        ),
    ),
    "/v1/position": ("Where this process stands", Position, ()),
}
"""GET paths that answer one type."""

_FILE: Final[Json] = {
    "description": "An Avro container file as the archive's snapshots are, without what was decided.",
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
}
_TYPES: Final[tuple[type, ...]] = (
    CommandRequest,
    SchemaRequest,
    OutcomeAnswer,
    SchemaOutcome,
    ErrorBody,
    Health,
    ChangesAnswer,
    *(answer for _, answer, _ in _READS.values()),
)


def openapi() -> Json:
    """OpenAPI 3.1."""
    schema, components = schemas_of(_TYPES, schema_of_column)
    error = response("Why not, and what to do.", schema[ErrorBody])
    reads = {
        path: {"get": _get(summary, response(summary, schema[answer]), error, parameters)}
        for path, (summary, answer, parameters) in _READS.items()
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Stele metadata-log",
            "version": "1",
            "description": "The metadata of one cluster as an ordered log of epochs.",
        },
        "paths": {
            "/v1/commands": {
                "post": _post_command(
                    schema, error, "Submit a command and wait for its outcome", CommandRequest
                )
            },
            **reads,
            "/v1/schema": {
                **reads["/v1/schema"],
                "post": _post_command(
                    schema, error, "Change the schema in one epoch", SchemaRequest, SchemaOutcome
                ),
            },
            "/v1/epochs": {"get": _get_epochs(schema, error)},
            "/v1/changes": {"get": _get_changes(schema, error)},
            "/v1/dump": {"get": _get("All of the state as a file", _FILE, error, (*_AT, _LOG))},
            "/healthz": health_path(schema[Health]),
        },
        "components": {
            "schemas": components,
            "securitySchemes": {_BEARER: {"type": "http", "scheme": "bearer"}},
        },
    }


@cache
def query_parameters() -> dict[str, frozenset[str]]:
    """By path of a read: the names that may stand in its query."""
    return {
        path: frozenset(p["name"] for p in methods["get"]["parameters"] if p["in"] == "query")
        for path, methods in openapi()["paths"].items()
        if "parameters" in methods.get("get", ())
    }


def _post_command(
    schema: Schemas, error: Json, summary: str, body: type, applied: type = OutcomeAnswer
) -> Json:
    return {
        "summary": summary,
        "security": [{}, {_BEARER: []}],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": schema[body]}},
        },
        "responses": {
            "200": response("Applied", schema[applied]),
            "409": response("Rejected: nothing was changed", schema[OutcomeAnswer]),
            "400": error,
            "401": response("A token is needed, and this is none", schema[ErrorBody]),
            "403": response("Not for whose token it is", schema[ErrorBody]),
            "410": response("Too old to be remembered, and never decided again", schema[ErrorBody]),
            "412": response(
                "Nothing was decided: the log is another one, or none", schema[ErrorBody]
            ),
            "413": error,
            "422": response("An id that stands for another command", schema[ErrorBody]),
            "423": response("Nothing was decided: the log is frozen", schema[ErrorBody]),
            "503": error,
            "504": response("Unknown: ask again with the same request id", schema[ErrorBody]),
        },
    }


def _get_epochs(schema: Schemas, error: Json) -> Json:
    limit = _parameter(
        "limit", "integer", "Largest number of epochs; 100 by default, 1000 at most.", 1000
    )
    facts = _parameter(
        "facts",
        "string",
        "Names of facts with commas: each epoch has these alone. Not for a stream.",
    )
    found = _get(
        "Epochs in order; as text/event-stream: also those to come, each with its number as id",
        response("Epochs", {"type": "array", "items": schema[EpochAnswer]}),
        error,
        (_FROM, limit, facts, _RESUME, _AFTER, _LOG),
    )
    found["responses"]["200"]["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    return found


def _get_changes(schema: Schemas, error: Json) -> Json:
    events = {"text/event-stream": {"schema": schema[ChangesAnswer]}}
    answer = {"description": "One event an epoch, its number as id", "content": events}
    return _get(
        "The changes of each epoch, as a stream", answer, error, (_FROM, _RESUME, _AFTER, _LOG)
    )


_OF_A_HISTORY: Final = {"cursor", "log_id", "state_id"}
"""Parameters that name a state: 410 where the log was recovered without it."""


def _get(summary: str, answer: Json, error: Json, parameters: tuple[Json, ...]) -> Json:
    gone = {"410": error} if _OF_A_HISTORY & {each["name"] for each in parameters} else {}
    responses = {"200": answer, "400": error, "404": error, **gone, "503": error}
    return {"summary": summary, "parameters": list(parameters), "responses": responses}
