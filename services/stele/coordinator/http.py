"""The coordinator's HTTP interface: progress, dry runs of commands, its OpenAPI document, its health.

``POST /v1/plan`` is a dry run of a command, beside the coordinator's work, without any effect.
"""

import asyncio
import time
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stele.coordinator.driver import Driver
from stele.coordinator.dry_run import dry_run, largest_sources, with_sizes
from stele.coordinator.probes import held_bytes
from stele.domain.base import Rejection
from stele.domain.commands import Envelope
from stele.domain.image import Image
from stele.runtime.answers.common import ErrorBody, Position
from stele.runtime.answers.coordinator import Progress
from stele.runtime.answers.plans import PlanAnswer, PlanRequest
from stele.runtime.follow import Followed
from stele.runtime.http import ErrorCode, Health, HttpError, JsonResponse, read_json
from stele.runtime.request_ids import new_request_id
from stele.words.openapi import Json, Schemas, health_path, response, schemas_of

WAITING: Final = 4
"""A new plan is refused as busy while more than this many are waiting or being made. Each may take
seconds of one processor.
"""

_TYPES: Final[tuple[type, ...]] = (Progress, PlanRequest, PlanAnswer, ErrorBody, Health, Position)
_PLAN_ERRORS: Final = {
    "400": "No JSON, or no command for an operation",
    "409": "The command would be refused: why, and what to do",
    "412": "The command is meant for another log",
    "413": "The body is too long",
    "503": "Not known yet who is up, or too many plans are being made: ask again",
}


def routes(driver: Driver) -> list[Route]:
    async def progress(_: Request) -> Response:
        return JsonResponse(driver.progress())

    async def document(_: Request) -> Response:
        return JsonResponse(openapi())

    return [
        Route("/v1/progress", progress, methods=["GET"]),
        Route("/v1/plan", PlanHandler(driver).plan, methods=["POST"]),
        Route("/openapi.json", document, methods=["GET"]),
    ]


def health(driver: Driver, followed: Followed) -> Health:
    """Return the health: a standby is as healthy as the active instance.

    An instance that cannot take part in the election is not healthy.
    """
    found = followed.health()
    if found.ok and driver.election.failure:
        return Health(
            ok=False, epoch=found.epoch, state_id=found.state_id, reason=driver.election.failure
        )
    return found


class PlanHandler:
    """Makes one plan at a time, in a thread."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._planning = asyncio.Lock()
        self._waiting = 0

    async def plan(self, request: Request) -> Response:
        asked = await read_json(request, PlanRequest)
        image = self._driver.image
        self._check_ready(image, asked)
        envelopes = [
            Envelope(
                request_id=new_request_id(),
                command=command,
                actor=asked.actor,
                reason=asked.reason,
                origin=asked.origin or "http",
            )
            for command in (asked.command, *asked.together)
        ]
        self._waiting += 1
        try:
            async with self._planning:
                found = await self._dry_run(envelopes, asked.bytes_per_s)
        finally:
            self._waiting -= 1
        if isinstance(found, Rejection):
            raise HttpError.refused(409, found)
        return JsonResponse(found)

    async def _dry_run(
        self, envelopes: list[Envelope], bytes_per_s: float | None
    ) -> PlanAnswer | Rejection:
        driver, seen = self._driver, self._driver.seen()
        found = await asyncio.to_thread(dry_run, driver.memory, seen, driver.limits, *envelopes)
        if isinstance(found, Rejection):
            return found
        nodes = seen.image.membership.nodes
        sources = [nodes[node_id] for node_id in largest_sources(found.plan)]
        held = await held_bytes(sources)
        rate = bytes_per_s or driver.rates.newest_of_node
        return await asyncio.to_thread(with_sizes, found, seen.image, held, rate)

    def _check_ready(self, image: Image, asked: PlanRequest) -> None:
        """Raise HttpError if the log or the liveness of nodes is not known yet, or too many plans
        wait.

        A command for another log is an error, too.
        """
        limits = self._driver.limits
        listened_s = time.monotonic() - self._driver.listening_since_s
        if not self._driver.caught_up or listened_s < limits.down_after_s:
            raise HttpError(
                503,
                ErrorCode.UNAVAILABLE,
                "The coordinator has just started, and does not know yet who is up.",
                hint="Ask again in a few seconds, or ask another instance.",
            )
        if asked.log_id and asked.log_id != image.log_id.hex():
            raise HttpError(
                412,
                "other_log",
                f"The command is meant for log {asked.log_id}; this is {image.log_id.hex()}.",
                hint="Ask the coordinator of the cluster that you mean.",
            )
        if self._waiting > WAITING:
            raise HttpError(
                503,
                "busy",
                f"{self._waiting} plans are being made already.",
                hint="Try again in a moment.",
            )


def openapi() -> Json:
    """OpenAPI 3.1."""
    schema, components = schemas_of(_TYPES)
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
            "/healthz": health_path(schema[Health]),
        },
        "components": {"schemas": components},
    }


def _plan(schema: Schemas) -> Json:
    errors = {status: response(why, schema[ErrorBody]) for status, why in _PLAN_ERRORS.items()}
    body = {"required": True, "content": {"application/json": {"schema": schema[PlanRequest]}}}
    return {
        "summary": "The effects of an operation's command, without running it",
        "requestBody": body,
        "responses": {"200": response("The plan", schema[PlanAnswer]), **errors},
    }


def _get(summary: str, schema: Json) -> Json:
    return {"summary": summary, "responses": {"200": response(summary, schema)}}
