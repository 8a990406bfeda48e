"""The OpenAPI document, built from the types that the service decodes and answers with."""

from typing import Any, Final

import msgspec

from stele.metadata_log.api import (
    CommandRequest,
    DiffAnswer,
    EpochAnswer,
    ErrorAnswer,
    OutcomeAnswer,
    StateAnswer,
)
from stele.runtime.answers import Position
from stele.runtime.http import Health

Json = dict[str, Any]
Schemas = dict[type, Json]

_TYPES: Final[tuple[type, ...]] = (
    CommandRequest,
    OutcomeAnswer,
    StateAnswer,
    EpochAnswer,
    DiffAnswer,
    Position,
    Health,
    ErrorAnswer,
)


def openapi() -> Json:
    """OpenAPI 3.1."""
    shapes, components = msgspec.json.schema_components(
        _TYPES, ref_template="#/components/schemas/{name}"
    )
    schema: Schemas = dict(zip(_TYPES, shapes, strict=True))
    error = _answer("Why not, and what to do.", schema[ErrorAnswer])
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Stele metadata-log",
            "version": "1",
            "description": "The metadata of one cluster as an ordered log of epochs.",
        },
        "paths": {
            "/v1/commands": {"post": _post_command(schema, error)},
            "/v1/state": {"get": _get_state(schema, error)},
            "/v1/epochs": {"get": _get_epochs(schema, error)},
            "/v1/epochs/{epoch}": {
                "get": _get(
                    "One epoch", _answer("The epoch", schema[EpochAnswer]), error, [_PATH_EPOCH]
                )
            },
            "/v1/diff": {
                "get": _get(
                    "What differs between two epochs",
                    _answer("The differences", schema[DiffAnswer]),
                    error,
                    [
                        _query("from", "Epoch before.", required=True),
                        _query("to", "Epoch after; the newest by default."),
                    ],
                )
            },
            "/v1/position": {
                "get": _get("Where this process stands", _answer("", schema[Position]), error, [])
            },
            "/healthz": {
                "get": {
                    "summary": "Whether this process is well",
                    "responses": {
                        "200": _answer("It is", schema[Health]),
                        "503": _answer("It is not, and why", schema[Health]),
                    },
                }
            },
        },
        "components": {"schemas": components},
    }


_PATH_EPOCH: Final = {
    "name": "epoch",
    "in": "path",
    "required": True,
    "schema": {"type": "integer", "minimum": 1},
}


def _post_command(schema: Schemas, error: Json) -> Json:
    return {
        "summary": "Submit a command and wait for its outcome",
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": schema[CommandRequest]}},
        },
        "responses": {
            "200": _answer("Applied", schema[OutcomeAnswer]),
            "409": _answer("Rejected: nothing was changed", schema[OutcomeAnswer]),
            "400": error,
            "410": _answer(
                "Too old to be remembered, and never decided again", schema[ErrorAnswer]
            ),
            "412": _answer(
                "Nothing was decided: the log is another one, or none", schema[ErrorAnswer]
            ),
            "413": error,
            "422": _answer("No command, or an id that stands for another one", schema[ErrorAnswer]),
            "503": error,
            "504": _answer("Unknown: ask again with the same request id", schema[ErrorAnswer]),
        },
    }


def _get_state(schema: Schemas, error: Json) -> Json:
    level = {
        "name": "level",
        "in": "query",
        "description": "How new: what this process has, what the log's end holds, or a NOOP read back.",
        "schema": {"enum": ["local", "barrier", "linearizable"], "default": "local"},
    }
    return _get(
        "All that is true at an epoch",
        _answer("The state", schema[StateAnswer]),
        error,
        [_query("epoch", "The newest by default."), level],
    )


def _get_epochs(schema: Schemas, error: Json) -> Json:
    found = _get(
        "Epochs in order; as text/event-stream: also those to come, each with its number as id",
        _answer("Epochs", {"type": "array", "items": schema[EpochAnswer]}),
        error,
        [
            _query("from", "First epoch; 1 by default, for a stream the next one to come."),
            _query("limit", "At most so many; 100 by default, 1000 at most."),
            {
                "name": "Last-Event-ID",
                "in": "header",
                "description": "Resume a stream after this epoch.",
                "schema": {"type": "integer"},
            },
        ],
    )
    found["responses"]["200"]["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    return found


def _get(summary: str, answer: Json, error: Json, parameters: list[Json]) -> Json:
    responses = {"200": answer, "400": error, "404": error, "503": error}
    return {"summary": summary, "parameters": parameters, "responses": responses}


def _query(name: str, description: str, *, required: bool = False) -> Json:
    return {
        "name": name,
        "in": "query",
        "description": description,
        "required": required,
        "schema": {"type": "integer", "minimum": 0},
    }


def _answer(description: str, schema: Json) -> Json:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
