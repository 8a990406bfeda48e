"""The OpenAPI document, built from the types that the coordinator decodes and answers with."""

from typing import Any, Final

import msgspec

from stele.runtime.answers.coordinator import Progress
from stele.runtime.answers.errors import ErrorBody
from stele.runtime.answers.plans import PlanAnswer, PlanRequest
from stele.runtime.answers.position import Position
from stele.runtime.http import Health
from stele.words.command_schemas import describe_commands

Json = dict[str, Any]

_TYPES: Final[tuple[type, ...]] = (Progress, PlanRequest, PlanAnswer, ErrorBody, Health, Position)
_PLAN_ERRORS: Final = {
    "400": "No JSON, or no command for an operation",
    "409": "The command would be refused: why, and what to do",
    "412": "The command is meant for another log",
    "413": "The body is too long",
    "503": "Not known yet who is up, or too many plans are being made: ask again",
}


def openapi() -> Json:
    """OpenAPI 3.1."""
    shapes, components = msgspec.json.schema_components(
        _TYPES, ref_template="#/components/schemas/{name}"
    )
    describe_commands(components)
    schema: dict[type, Json] = dict(zip(_TYPES, shapes, strict=True))
    health = {
        "200": _answer("It is", schema[Health]),
        "503": _answer("It is not, and why", schema[Health]),
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Stele coordinator",
            "version": "1",
            "description": "Executes topology operations.",
        },
        "paths": {
            "/v1/progress": {"get": _get("Current waits and progress", schema[Progress])},
            "/v1/position": {"get": _get("Where this process stands", schema[Position])},
            "/v1/plan": {"post": _plan(schema)},
            "/healthz": {"get": {"summary": "Whether this process is well", "responses": health}},
        },
        "components": {"schemas": components},
    }


def _plan(schema: dict[type, Json]) -> Json:
    errors = {status: _answer(why, schema[ErrorBody]) for status, why in _PLAN_ERRORS.items()}
    body = {"required": True, "content": {"application/json": {"schema": schema[PlanRequest]}}}
    return {
        "summary": "The effects of an operation's command, without running it",
        "requestBody": body,
        "responses": {"200": _answer("The plan", schema[PlanAnswer]), **errors},
    }


def _get(summary: str, schema: Json) -> Json:
    return {"summary": summary, "responses": {"200": _answer(summary, schema)}}


def _answer(description: str, schema: Json) -> Json:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
