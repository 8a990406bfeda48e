"""What the OpenAPI document allows is taken, and what it does not is answered 400 with what to send instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from stele.metadata_log.openapi import openapi
from tests.services.test_pages import Site, site

__all__ = ["site"]

PATH_VALUES: Final = {
    "request_id": "join-n4",
    "transition_id": "join-n4",
    "epoch": "1",
    "generation_id": "g1",
}
BESIDE: Final[dict[str, dict[str, str]]] = {
    "/v1/placements": {"placement": "dc1:3"},
    "/v1/repairs": {"table": "library.books"},
    "/v1/diff": {"from": "1", "to": "2"},
}
"""What a question needs beside the parameter that is tried."""
UNLIKELY: Final = ("", " ", "é", "a" * 3000, "\x00", "'", "../..", "1e3", "٣")
BAD_NUMBERS: Final = ("", "x", "-1", "1.5", "+1", "0x1", "9" * 20, "9" * 400, "٣", " 1")


def questions() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in openapi()["paths"].items():
        if "get" in methods:
            for parameter in methods["get"].get("parameters", ()):
                yield path, parameter


def allowed(schema: dict[str, Any]) -> tuple[str, ...]:
    if "enum" in schema:
        return tuple(schema["enum"])
    if schema["type"] == "integer":
        low, high = schema["minimum"], schema["maximum"]
        return tuple(str(number) for number in {low, low + 1, high - 1, high})
    return ()


def refused(schema: dict[str, Any]) -> tuple[str, ...]:
    if "enum" in schema:
        return ("", "nothing", schema["enum"][0].upper(), schema["enum"][0] + " ")
    if schema["type"] == "integer":
        low, high = schema["minimum"], schema["maximum"]
        negative = [number for number in BAD_NUMBERS if number != "-1" or low > -1]
        return (*negative, str(low - 1), str(high + 1))
    return ()


async def ask(
    site: Site, path: str, parameter: dict[str, Any], value: str
) -> tuple[int, dict[str, Any]]:
    """Status and body; of a stream that begins the body is left."""
    params, headers = dict(BESIDE.get(path, {})), {"accept": "application/json"}
    match parameter["in"]:
        case "path":
            path = path.replace(f"{{{parameter['name']}}}", value)
        case "header":
            headers[parameter["name"]] = value
        case _:
            params[parameter["name"]] = value
    for name, known in PATH_VALUES.items():
        path = path.replace(f"{{{name}}}", known)
    async with site.http.stream("GET", path, params=params, headers=headers) as answer:
        if answer.status_code == 200:
            return 200, {}
        await answer.aread()
        return answer.status_code, answer.json()


async def test_what_the_document_allows_is_no_malformed_question(site: Site) -> None:
    for path, parameter in questions():
        for value in allowed(parameter["schema"]):
            status, body = await ask(site, path, parameter, value)
            assert status in (200, 404), (path, parameter["name"], value, status, body)


async def test_what_it_does_not_allow_is_refused_with_what_to_send(site: Site) -> None:
    for path, parameter in questions():
        for value in refused(parameter["schema"]) if parameter["in"] == "query" else ():
            status, body = await ask(site, path, parameter, value)
            assert status == 400, (path, parameter["name"], value, status, body)
            assert body["code"] and body["message"] and body["hint"], (path, value, body)


async def test_no_text_breaks_it(site: Site) -> None:
    for path, parameter in questions():
        for value in UNLIKELY if parameter["in"] == "query" else ():
            status, body = await ask(site, path, parameter, value)
            assert status in (200, 400, 404), (path, parameter["name"], value, status, body)
            assert status == 200 or body["hint"], (path, parameter["name"], value, body)


async def test_a_parameter_that_is_not_in_the_document_is_refused(site: Site) -> None:
    taken = list[str]()
    for path in sorted({path for path, _ in questions()}):
        status, body = await ask(site, path, {"name": "colour", "in": "query"}, "red")
        if status != 400 or "colour" not in body["message"]:
            taken.append(path)
    assert not taken
