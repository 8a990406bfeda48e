"""Answers of a replica to invalid requests."""

import asyncio
import io
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from stele.catch_up import holdings, http
from stele.catch_up.http import CatchUpApi
from stele.catch_up.identity import ReplicaIdentity
from stele.catch_up.recovering import NotRecoverable, RecoverQuestion
from stele.domain.facts import Epoch
from stele.domain.image import EMPTY
from stele.log.archive.archive import Archive
from stele.log.archive.container import Archived, as_container
from stele.log.chain import FROZEN
from stele.log.codec import encode_epoch
from stele.log.errors import AnchorLostError
from stele.log.follower import LogFollower
from stele.runtime.answers.catch_up import RecoverableAnswer, RecoveredAnswer
from stele.runtime.callers import LOOK_S, Callers, line_of
from stele.runtime.catch_up import CatchUp
from stele.runtime.recent import BYTES, Recent
from tests.catch_up.stories import story_of
from tests.client_transport import ClientTransport

RECORD_BYTES = 1 << 20
TOKEN = "adas-token"


class Recoveries:
    """Counts started recoveries."""

    def __init__(self) -> None:
        self.begun = 0
        self.ends_with: Exception = NotRecoverable("not now")

    async def recover(self, asked: RecoverQuestion, more: list[Archived]) -> RecoveredAnswer:
        self.begun += 1
        raise self.ends_with

    async def check(self, asked: RecoverQuestion, more: list[Archived]) -> RecoverableAnswer:
        raise self.ends_with


@pytest.fixture
def recoveries() -> Recoveries:
    return Recoveries()


@pytest.fixture
def follower() -> SimpleNamespace:
    return SimpleNamespace(image=EMPTY, failure=None, trouble="")


@pytest.fixture
def client(tmp_path: Path, recoveries: Recoveries, follower: SimpleNamespace) -> httpx.AsyncClient:
    return client_of(tmp_path, recoveries, follower)


async def nothing_unwritten() -> None:
    """All received epochs are on disk."""


def client_of(
    folder: Path,
    recoveries: Recoveries,
    follower: SimpleNamespace,
    callers: Callers | None = None,
    written: Callable[[], Awaitable[None]] = nothing_unwritten,
) -> httpx.AsyncClient:
    identity = ReplicaIdentity("cu-1", "demo", "folder")
    api = CatchUpApi(
        identity,
        Archive(folder),
        cast(LogFollower, follower),
        recoveries.recover,
        recoveries.check,
        written,
        callers,
    )
    app: Any = api.app("catch-up", lambda: None)  # type: ignore[arg-type,return-value]
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://replica")


@pytest.mark.parametrize("why", ["slow disk", "full disk"])
async def test_history_is_served_once_all_read_epochs_are_on_disk(
    why: str,
    tmp_path: Path,
    recoveries: Recoveries,
    follower: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A recovery from this replica would lose epochs that are only in memory."""
    monkeypatch.setattr(http, "WRITTEN_S", 0.05)
    go = asyncio.Event()

    async def written() -> None:
        if why == "full disk" and not go.is_set():
            raise OSError("the disk did not take what came before")
        await go.wait()

    client = client_of(tmp_path, recoveries, follower, written=written)
    answer = await client.get("/v1/history")
    assert (answer.status_code, answer.json()["code"]) == (503, "archive_behind")
    go.set()
    assert (await client.get("/v1/history")).status_code == 200
    await client.aclose()


async def test_history_contains_requested_old_epochs(
    tmp_path: Path,
    recoveries: Recoveries,
    follower: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(holdings, "COMPARED_EPOCHS", 2)
    story = story_of(9)
    archive = Archive(tmp_path)
    archive.segments.adopt(
        Archived(e.epoch, e.epoch - 1, e.at_ms, encode_epoch(e)) for e in story.epochs
    )
    client = client_of(tmp_path, recoveries, follower)
    told = {str(each.epoch): each.state_id.hex() for each in story.epochs}

    async def states(asked: str) -> dict[str, str]:
        found: dict[str, str] = (await client.get(f"/v1/history{asked}")).json()["states"]
        return found

    newest = {each: told[each] for each in ("7", "8", "9")}
    assert await states("") == newest
    assert await states("?epochs=3,5,0,12") == newest | {each: told[each] for each in ("3", "5")}
    for wrong in ("x", "1,-2", ",".join(map(str, range(101)))):
        assert (await client.get(f"/v1/history?epochs={wrong}")).status_code == 400
    await client.aclose()


async def test_replica_of_a_lost_log_reports_the_offsets_of_its_winners(
    tmp_path: Path, recoveries: Recoveries
) -> None:
    """A process that starts from the snapshot detects by these offsets that the log is lost."""
    story = story_of(12)
    archive = Archive(tmp_path)
    archive.segments.adopt(
        [Archived(e.epoch, e.epoch - 1, e.at_ms, encode_epoch(e)) for e in story.epochs]
    )
    start = archive.fold_on(archive.begin(decided=False)[0], 12)._replace(before=())
    gone = AnchorLostError(3, "it is gone")
    follower = SimpleNamespace(image=start.image, failure=gone, trouble="")
    async with client_of(tmp_path, recoveries, follower) as client:
        catch_up = CatchUp(["http://replica"], ClientTransport(client))
        found = await catch_up.with_places("http://replica", start)
    assert [each.offset for each in found.before] == [*range(11)]


@pytest.mark.parametrize(
    "question",
    [
        "/v1/start?epoch=" + "9" * 5000,
        "/v1/start?epoch=-1",
        "/v1/start?epoch=٣",
        "/v1/start?decided=2",
        "/v1/start?floor_state_id=" + "zz" * 16,
        "/v1/records?from=1&limit_bytes=1000000000",
        "/v1/records?from=1e9",
    ],
)
async def test_invalid_numbers_are_refused_with_the_valid_range(
    client: httpx.AsyncClient, question: str
) -> None:
    answer = await client.get(question)
    assert answer.status_code == 400
    assert "It is" in answer.text


async def test_invalid_epochs_in_a_recovery_are_refused(
    client: httpx.AsyncClient, recoveries: Recoveries
) -> None:
    for body in (b"garbage", b"Obj\x01" + b"\xff" * 100):
        answer = await client.post("/v1/recover", content=body)
        assert answer.status_code == 409
    assert recoveries.begun == 0


async def test_check_has_the_answer_of_a_refused_recovery(
    client: httpx.AsyncClient, recoveries: Recoveries
) -> None:
    recoveries.ends_with = NotRecoverable("another log is written here")
    checked = await client.post("/v1/recover/check")
    assert recoveries.begun == 0, "it only looks"
    refused = await client.post("/v1/recover")
    assert checked.status_code == refused.status_code == 409
    assert checked.json() == refused.json()


@pytest.mark.parametrize("path", ["/v1/recover", "/v1/recover/check"])
async def test_token_withdrawn_during_the_request_recovers_nothing(
    tmp_path: Path, recoveries: Recoveries, follower: SimpleNamespace, path: str
) -> None:
    file, now_s = tmp_path / "callers", 0.0
    file.write_text(f"{line_of('ada', TOKEN)}\n")
    callers = Callers(file, lambda: now_s)

    async def body() -> AsyncIterator[bytes]:
        nonlocal now_s
        yield b""
        file.write_text(f"{line_of('bob', 'another')}\n")
        now_s += LOOK_S

    async def unread() -> AsyncIterator[bytes]:
        read.append(path)
        yield b""

    read = list[str]()
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with client_of(tmp_path, recoveries, follower, callers) as client:
        for sent in (body(), unread()):
            answer = await client.post(path, content=sent, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (401, "token_needed")
    assert recoveries.begun == 0
    assert not read, "nothing is taken from whom may not ask"


async def test_recovery_whose_record_is_not_read_back_has_an_unknown_outcome(
    client: httpx.AsyncClient, recoveries: Recoveries
) -> None:
    recoveries.ends_with = TimeoutError()
    answer = await client.post("/v1/recover")
    assert (answer.status_code, answer.json()["code"]) == (504, "outcome_unknown")
    assert "recover again" in answer.json()["hint"]


async def test_request_with_another_log_id_gets_no_epochs(client: httpx.AsyncClient) -> None:
    """This replica may have epochs that a recovery gave up."""
    here = EMPTY.log_id.hex()
    assert (await client.get(f"/v1/records?from=1&log_id={here}")).status_code == 200
    other = await client.get("/v1/records?from=1&log_id=" + "0b" * 16)
    assert other.status_code == 404
    assert "other_log" in other.text


async def test_stopped_replica_serves_no_epochs_of_the_log(
    client: httpx.AsyncClient, follower: SimpleNamespace
) -> None:
    follower.failure = TimeoutError("gone")
    here = EMPTY.log_id.hex()
    assert (await client.get(f"/v1/records?from=1&log_id={here}")).status_code == 404
    assert (await client.get("/v1/records?from=1")).status_code == 200, "for whoever recovers"


async def test_recovery_accepts_the_largest_recent_records(
    client: httpx.AsyncClient, recoveries: Recoveries
) -> None:
    """Incompressible records, as many as ``/v1/recent`` returns."""
    latest, state_id, rest = Recent(), bytes(16), random.Random(1)
    for number in range(1, 2 * BYTES // RECORD_BYTES):
        before, state_id = state_id, rest.randbytes(16)
        frozen = FROZEN.pack(before, state_id, bytes(16), bytes(16), number, 0)
        value = frozen + rest.randbytes(RECORD_BYTES - len(frozen))
        latest.add(number, value, cast(Epoch, SimpleNamespace(epoch=number, at_ms=0)))
    body = io.BytesIO()
    as_container(body, latest.records())
    assert body.tell() > BYTES - RECORD_BYTES
    answer = await client.post("/v1/recover", content=body.getvalue())
    assert answer.json()["code"] == "not_recovered"
    assert recoveries.begun == 1
