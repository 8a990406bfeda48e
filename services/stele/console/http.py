"""The console's routes: the page, its data, its stream, and commands."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Final

import msgspec
from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from stele.console.mirror import Mirror, refused
from stele.console.operations import (
    ORIGIN,
    CommandAsked,
    PlanAsked,
    command_of,
    envelope_of,
    mark_of,
    operation_of,
    plan_text,
    verdict_text,
)
from stele.console.reads import named, number
from stele.console.stream import Pages
from stele.console.upstream import AwayError, Upstream
from stele.domain.base import Command
from stele.domain.commands import Envelope
from stele.runtime.answers.plans import PlanAnswer
from stele.runtime.http import HttpError, JsonResponse, read_json
from stele.runtime.tokens import authorization_of

PAGE: Final = Path(__file__).parent / "page"
NO_PING_S: Final = 86_400
"""The stream sends its own pings."""
SEND_TIMEOUT_S: Final = 60.0
"""A page that reads nothing for this long is disconnected."""


def page_routes() -> list[Route | Mount]:
    async def index(_: Request) -> Response:
        return FileResponse(PAGE / "index.html", headers={"cache-control": "no-cache"})

    return [
        Route("/", index, methods=["GET"]),
        Mount("/page", _Fresh(directory=PAGE), name="page"),
    ]


class _Fresh(StaticFiles):
    """Static files that the browser revalidates by ETag each time.

    A page therefore never mixes two releases.
    """

    def file_response(self, *args: object, **kwargs: object) -> Response:
        answer = super().file_response(*args, **kwargs)  # type: ignore[arg-type]
        answer.headers["cache-control"] = "no-cache"
        return answer


def stream_route(pages: Pages) -> Route:
    async def stream(request: Request) -> Response:
        after, state_id = number(request, "after", 0), request.query_params.get("state_id", "")
        events = pages.events(after, state_id, request.app.state.stopping)
        events = _while(getattr(request.state, "is_let_in", _always), events)
        headers = {"cache-control": "no-store"}
        return EventSourceResponse(
            events, ping=NO_PING_S, send_timeout=SEND_TIMEOUT_S, headers=headers
        )

    return Route("/api/stream", stream, methods=["GET"])


def _always() -> bool:
    return True


async def _while(
    is_let_in: Callable[[], bool], events: AsyncGenerator[bytes]
) -> AsyncGenerator[bytes]:
    """Yield events until the caller's token is withdrawn."""
    async with aclosing(events):
        async for event in events:
            if not is_let_in():
                return
            yield event


def command_routes(mirror: Mirror, upstream: Upstream, *, may_command: bool) -> list[Route]:
    async def planned(command: Command) -> PlanAnswer:
        body = msgspec.json.encode({"command": command, "actor": ORIGIN})
        answer = await upstream.ask("coordinator", "/v1/plan", body=body)
        if not answer.ok:
            raise refused(answer)
        return msgspec.json.decode(answer.body, type=PlanAnswer)

    async def check_plan(asked: CommandAsked, envelope: Envelope) -> None:
        """Raise HttpError if the plan that the user confirmed is no longer what would be done.

        A request that was already accepted is not checked: it has its outcome.
        """
        if not asked.planned or mirror.image.request(envelope.request_id) is not None:
            return
        try:
            found = await planned(envelope.command)
        except AwayError as error:
            text = f"Nothing was asked for: nobody can say whether the plan still holds. {error}."
            raise HttpError(409, "plan_unknown", text, hint="Try again in a moment.") from error
        if mark_of(found) != asked.planned:
            text = f"Nothing was asked for: at epoch {found.epoch} it would do something else."
            raise HttpError(409, "plan_changed", text, hint="Look at the plan, then confirm it.")

    async def plan(request: Request) -> Response:
        asked = await read_json(request, PlanAsked)
        operation = operation_of(asked)
        if operation.comes:
            _check_may(may_command)  # it has the console ask an address that the page names
        command = await command_of(asked, "", upstream)
        line = operation.command_line(asked.fields)
        if not operation.plans:
            return JsonResponse({"verdict": "immediate", "text": "", "command_line": line})
        found = await planned(command)
        return JsonResponse(
            {
                "epoch": found.epoch,
                "verdict": found.verdict,
                "mark": mark_of(found),
                "text": plan_text(found, mirror.image.schema.names_by_id()),
                "why": verdict_text(found),
                "foreseen": [*found.plan.foreseen],
                "steps": [step.state for step in found.plan.steps],
                "final_from": next(
                    (at for at, step in enumerate(found.plan.steps) if not step.can_be_undone), None
                ),
                "receivers": [stream.node_id for stream in found.streams],
                "size_bytes": found.size_bytes,
                "duration_s": found.duration_s,
                "at_least": found.at_least,
                "excludes": [*found.plan.excludes],
                "concerns": [concern.message for concern in found.plan.concerns],
                "command_line": line,
            }
        )

    async def commands(request: Request) -> Response:
        _check_may(may_command)
        asked = await read_json(request, CommandAsked)
        caller = getattr(request.state, "caller", None)
        log_id = mirror.newest().log_id.hex()
        envelope = await envelope_of(asked, upstream, caller, log_id)
        await check_plan(asked, envelope)
        body = msgspec.json.encode(envelope)
        shown = authorization_of(request.headers) if caller else ""
        answer = await upstream.ask("metadata-log", "/v1/commands", body=body, authorization=shown)
        return Response(answer.body, answer.status, media_type="application/json")

    return [
        Route("/api/plan", named(plan), methods=["POST"]),
        Route("/api/commands", named(commands), methods=["POST"]),
    ]


def _check_may(may_command: bool) -> None:
    if not may_command:
        raise HttpError(
            403,
            "read_only",
            "This console only shows.",
            hint="Start it with STELE_CONSOLE_COMMANDS=true, or use the command line.",
        )
