"""Arbitrary answers of processes: each affects only its own part of the page."""

from collections.abc import Mapping
from types import SimpleNamespace

import msgspec
import pytest

from stele.console.upstream import AwayError
from stele.console.watch import MOST_TEXT, Hub, Watch
from stele.domain.image import EMPTY_FOR_FOLLOWERS
from stele.domain.model.schema_objects import SchemaVersion
from stele.runtime.answers.session_guard import SchemaAgreement
from stele.runtime.transport import HttpReply


class Upstream:
    """One process with this answer."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    async def one(self, url: str, limit_s: float) -> HttpReply:
        return HttpReply(200, self.body)


def watching(body: bytes) -> Watch:
    watch = object.__new__(Watch)
    watch._upstream = Upstream(body)  # type: ignore[assignment]
    return watch


@pytest.mark.parametrize(
    "body", [b'{"ok":true,"x":' + b"[" * 5000 + b"]" * 5000 + b"}", b"no JSON", b"[]"]
)
async def test_invalid_health_answer_marks_only_its_process(body: bytes) -> None:
    shown = await watching(body)._process("node n1", "http://n1")
    assert (shown.up, shown.ok) == (True, False)
    assert "none of a service of this project" in shown.reason


async def test_long_health_reasons_are_cut() -> None:
    body = b'{"ok":false,"epoch":0,"reason":"' + b"x" * 100_000 + b'"}'
    shown = await watching(body)._process("node n1", "http://n1")
    assert len(shown.reason) <= MOST_TEXT + 4


class Guard:
    """A session-guard with these answers by path. No other service answers."""

    services: Mapping[str, tuple[str, ...]] = {}

    def __init__(self, answers: Mapping[str, object]) -> None:
        self.answers = answers

    async def ask(self, service: str, path: str, *, limit_s: float) -> HttpReply:
        if service != "session-guard" or path not in self.answers:
            raise AwayError(service, "it is away")
        return HttpReply(200, msgspec.json.encode(self.answers[path]))


@pytest.mark.parametrize("behind", [("n2",), ()])
async def test_poll_has_nodes_that_lag_behind_the_schema(
    behind: tuple[str, ...],
) -> None:
    agreement = SchemaAgreement(
        epoch=7,
        schema_version=SchemaVersion(7, "ab"),
        agreed=not behind,
        behind=behind,
        members=(),
    )
    mirror = SimpleNamespace(image=EMPTY_FOR_FOLLOWERS, trouble="", silent_s=lambda: 0.0)
    for answers in ({"/v1/schema/agreement": agreement}, {}):
        watch = Watch(Guard(answers), mirror, Hub(), 1.0)  # type: ignore[arg-type]
        assert (await watch._look()).schema_behind == (behind if answers else ())
