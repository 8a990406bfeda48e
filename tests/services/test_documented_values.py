"""Values of the OpenAPI documents are accepted, and others are answered with 400."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import msgspec
import pytest
from httpx import Response

from stele.coordinator.http import openapi as of_coordinator
from stele.metadata_log.openapi import openapi as of_metadata_log
from tests.deployment.in_memory import Site, site_with_a_join

Json = dict[str, Any]

NEEDED: Final = {
    "/v1/placements": {"placement": "dc1:3"},
    "/v1/repairs": {"table": "library.books"},
    "/v1/diff": {"from": "1"},
}
"""Required parameters of a path beside the tested one."""
NO_NUMBERS: Final = ("x", "1.5", "1e3", "+1", " 1", "0x1", "--1", "\u0661", "1\0", "9" * 5000)
STRINGS: Final = ("x", "", "1", "a b", "%", "\0", "\u0661", "library.", ".", ":", "x" * 2000)
"""No path refuses all of them for their form, and none may break a path."""
ID: Final = "0" * 32


def document_of(found: Json) -> Json:
    """Return the document as a client receives it."""
    return dict(json.loads(msgspec.json.encode(found)))


def valid_and_invalid_values(schema: Json) -> tuple[list[str], list[str]]:
    """Return values within the bounds of a parameter, and values outside of them."""
    if "enum" in schema:
        good = list(schema["enum"])
        return good, [*(word.upper() for word in good if word.upper() not in good), "x", ""]
    if schema["type"] == "boolean":
        return ["true", "false"], ["True", "yes", "no", "1", "0", "x", ""]
    if schema["type"] == "integer":
        least, most = schema["minimum"], schema["maximum"]
        return [str(least), str(most)], [str(least - 1), str(most + 1), *NO_NUMBERS]
    return [], []


def parameters(document: Json) -> Iterator[tuple[str, Json, Json]]:
    for path, operations in document["paths"].items():
        for operation in operations.values():
            for each in operation.get("parameters", ()):
                yield path, each, operation["responses"]


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with site_with_a_join() as found:
        yield found


async def sent(site: Site, path: str, parameter: Json, value: str) -> Response | None:
    """Return None if the answer is an endless stream, or if no URL can contain the value."""
    name, where = parameter["name"], parameter["in"]
    params, headers = dict(NEEDED.get(path, {})), dict[str, str]()
    filled = path
    if where == "path":
        if not value.isascii() or set(value) & {"\0", "/", "?", "#", "%", ".", " "} or not value:
            return None
        filled = path.replace(f"{{{name}}}", value)
    elif where == "header":
        if not value or not value.isascii() or not value.isprintable() or value != value.strip():
            return None
        headers = {name: value, "accept": "text/event-stream"}
    else:
        params[name] = value
    filled = filled.replace("{request_id}", "x").replace("{transition_id}", "join-n4")
    request = site.http.build_request("GET", filled, params=params, headers=headers)
    answer = await site.http.send(request, stream=True)
    if not answer.headers["content-type"].startswith("text/event-stream"):
        await answer.aread()
    await answer.aclose()
    return answer


def is_malformed(answer: Response) -> bool:
    return answer.status_code == 400 and answer.json()["code"] == "invalid_request"


async def test_parameters_are_accepted_exactly_within_documented_bounds(
    site: Site,
) -> None:
    tried = 0
    for path, parameter, responses in parameters(document_of(of_metadata_log())):
        good, bad = valid_and_invalid_values(parameter["schema"])
        for value in (*good, *bad):
            answer = await sent(site, path, parameter, value)
            if answer is None:
                continue
            what = (path, parameter["name"], value[:40], answer.status_code)
            assert str(answer.status_code) in responses, what
            stream = answer.headers["content-type"].startswith("text/event-stream")
            refused = not stream and is_malformed(answer)
            assert refused is (value in bad), what
            tried += 1
    assert tried > 500


async def test_any_text_parameter_gets_a_documented_answer(
    site: Site,
) -> None:
    tried = 0
    for path, parameter, responses in parameters(document_of(of_metadata_log())):
        if parameter["schema"].get("type") != "string":
            continue
        for value in STRINGS:
            answer = await sent(site, path, parameter, value)
            if answer is not None:
                what = (path, parameter["name"], value[:40], answer.status_code)
                assert str(answer.status_code) in responses, what
                tried += 1
    assert tried > 200


async def test_unknown_state_id_is_410_as_documented(
    site: Site,
) -> None:
    page = (await site.http.get("/v1/nodes", params={"limit": "1"})).json()
    padded = page["next_cursor"] + "=" * (-len(page["next_cursor"]) % 4)
    epoch, _, *rest = json.loads(base64.urlsafe_b64decode(padded))
    foreign = json.dumps([epoch, ID, *rest]).encode()
    values = {"cursor": base64.urlsafe_b64encode(foreign).rstrip(b"=").decode(), "state_id": ID}
    gone = set[str]()
    for path, parameter, responses in parameters(document_of(of_metadata_log())):
        name = parameter["name"]
        if name not in values:
            continue
        assert "410" in responses, path
        assert re.search(parameter["schema"]["pattern"], values[name])
        if path == "/v1/nodes" or name == "state_id":
            params = {name: values[name], **({"limit": "1"} if name == "cursor" else {})}
            answer = await site.http.get(
                path, params=params, headers={"accept": "text/event-stream"}
            )
            assert answer.status_code == 410, answer.text
            gone.add(path)
    assert gone == {"/v1/nodes", "/v1/epochs", "/v1/changes"}


@pytest.mark.parametrize("name", ["cursor", "state_id"])
def test_cursor_and_state_id_have_a_documented_pattern(name: str) -> None:
    (pattern,) = {
        parameter["schema"]["pattern"]
        for _, parameter, _ in parameters(document_of(of_metadata_log()))
        if parameter["name"] == name
    }
    assert re.search(pattern, "")
    assert not any(re.search(pattern, text) for text in ("f\u00ae", "a b", "%", "=", "\0"))


@pytest.mark.parametrize(
    "path", ["/v1/epochs?from=1", "/v1/epochs/1", "/v1/epochs/search?limit=1", "/v1/dump?epoch=1"]
)
async def test_reads_of_the_past_with_another_log_id_are_refused(site: Site, path: str) -> None:
    """A recreated cluster has epochs with the same numbers."""
    own = {**dict(parse_qsl(urlsplit(path).query)), "log_id": site.writer.image.log_id.hex()}
    found = await site.http.get(urlsplit(path).path, params=own)
    assert found.status_code == 200, found.text
    refused = await site.http.get(urlsplit(path).path, params={**own, "log_id": "cd" * 16})
    assert (refused.status_code, refused.json()["code"]) == (410, "other_history")
    assert refused.json()["details"]["log_id"] == own["log_id"]


@pytest.mark.parametrize("path", ["/v1/epochs", "/v1/changes"])
async def test_stream_after_an_epoch_of_another_log_is_refused(site: Site, path: str) -> None:
    """The stream would be empty at first, and later contain epochs of another cluster."""
    headers = {"accept": "text/event-stream", "last-event-id": "999999"}
    asked = {"state_id": "ab" * 16, "log_id": "cd" * 16}
    refused = await site.http.get(path, params=asked, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (410, "other_history")
    assert refused.json()["details"]["log_id"] == site.writer.image.log_id.hex()
    wrong = await site.http.get(path, params={"log_id": "xyz"}, headers=headers)
    assert wrong.status_code == 400


@pytest.mark.parametrize(
    ("header", "state_id"), [("1" + "0" * 18, ""), ("x", ""), ("", "not-a-state-id")]
)
async def test_stream_parameters_are_validated_for_plain_reads_of_epochs(
    site: Site, header: str, state_id: str
) -> None:
    """An ignored value would return epochs from the beginning to a client that meant a stream."""
    sent_along = {"Last-Event-ID": header} if header else {}
    params = {"state_id": state_id} if state_id else {}
    answer = await site.http.get("/v1/epochs", params=params, headers=sent_along)
    assert is_malformed(answer)


@pytest.mark.parametrize("unfinished", ["yes", "1", "TRUE", ""])
async def test_unfinished_must_be_true_or_false(site: Site, unfinished: str) -> None:
    """A value read as false would list finished requests to a client that asked for unfinished ones."""
    answer = await site.http.get("/v1/requests", params={"unfinished": unfinished})
    assert answer.status_code == 400
    assert answer.json()["hint"] == "Use one of true, false."
    found = [await site.get("/v1/requests", unfinished=word) for word in ("true", "false")]
    ids = [{row["request_id"] for row in page["requests"]} for page in found]
    everything = {row["request_id"] for row in (await site.get("/v1/requests"))["requests"]}
    assert "join-n4" in ids[0]
    assert "join-n4" not in ids[1]
    assert ids[0] | ids[1] == everything


def test_coordinator_documents_no_untested_parameters() -> None:
    assert list(parameters(document_of(of_coordinator()))) == []


async def test_undocumented_parameter_is_refused(site: Site) -> None:
    """A misspelt parameter would be ignored, and the answer would be unfiltered."""
    taken = list[str]()
    for path, operations in document_of(of_metadata_log())["paths"].items():
        if operations.get("get", {}).get("parameters"):
            answer = await sent(site, path, {"name": "colour", "in": "query"}, "red")
            assert answer is not None
            if answer.status_code != 400 or "colour" not in answer.json()["message"]:
                taken.append(path)
    assert not taken
