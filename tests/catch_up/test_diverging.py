"""A replica that has diverged reports it, serves nothing, and starts again with an empty folder."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import msgspec
import pytest

from stele.catch_up import diverging
from stele.catch_up.announcements import next_command
from stele.catch_up.diverging import (
    DivergenceMark,
    mark,
    restart_after_divergence,
    set_aside,
    why_not_served,
)
from stele.catch_up.http import CatchUpApi
from stele.catch_up.identity import identity_of
from stele.domain.commands import AdmitDivergence, AnnounceReplica
from stele.domain.model.archive import UPKEEP
from stele.log.archive.archive import Archive
from stele.log.follower import LogFollower
from stele.runtime.http import build_app
from tests.catch_up.test_announcements import ME, NOW_MS, announce_next, head, own
from tests.domain.archive.announced import replica
from tests.domain.archive.logs import founded
from tests.domain.epochs import History


def diverged() -> tuple[History, Any]:
    """Return a log in which cu-1 has another snapshot than two others, and the content of cu-1."""
    history = founded()
    history.enable(UPKEEP)
    other = own(head(history.image))._replace
    for name in ("cu-2", "cu-3"):
        assert history.apply(replica(name)) is None
        theirs = other(identity=msgspec.structs.replace(ME, replica_id=name, folder_id=""))
        theirs = theirs._replace(address=f"http://{name}:8086")
        while announce_next(history, theirs) is not None:
            pass
    held = own(head(history.images[-1], epoch=theirs.held[0].head.epoch))
    wrong = msgspec.structs.replace(held.held[0], hash="cd" * 32, head=theirs.held[0].head)
    held = held._replace(held=(wrong,))
    assert isinstance(announce_next(history, held), AnnounceReplica)
    announce_next(history, held)
    return history, held


def test_diverged_replica_announces_it_once_until_it_has_a_new_folder() -> None:
    history, held = diverged()
    assert why_not_served(history.image, ME)
    assert isinstance(announce_next(history, held), AdmitDivergence)
    assert next_command(history.image, held, NOW_MS) is None
    assert why_not_served(history.image, ME)
    anew = msgspec.structs.replace(ME, folder_id="another")
    assert not why_not_served(history.image, anew)
    empty = held._replace(identity=anew, held=(), points=(), spans=())
    assert isinstance(announce_next(history, empty), AnnounceReplica)
    assert next_command(history.image, empty, NOW_MS) is None


async def test_diverged_replica_serves_nothing(tmp_path: Path) -> None:
    history, _ = diverged()
    follower = SimpleNamespace(image=history.image, failure=None, trouble="")
    api = CatchUpApi(ME, Archive(tmp_path), cast(LogFollower, follower), *[cast(Any, None)] * 3)
    app: Any = build_app("catch-up", api.routes(), lambda: None)  # type: ignore[arg-type,return-value]
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://replica"
    ) as client:
        for path in ("/v1/start", "/v1/records", "/v1/history", "/v1/snapshots/any"):
            answer = await client.get(path)
            assert answer.status_code == 503, path
            assert answer.json()["code"] == "replica_diverged"
        shown = (await client.get("/v1/archive")).json()
        assert "majority of the members" in shown["trouble"]


async def test_diverged_replica_marks_its_folder_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history, held = diverged()
    ended = list[bool]()
    monkeypatch.setattr(diverging, "LOOK_S", 0.01)
    task = asyncio.create_task(
        restart_after_divergence(tmp_path, ME, lambda: history.image, lambda: ended.append(True))
    )
    await asyncio.sleep(0.05)
    assert not task.done() and set_aside(tmp_path) is None
    announce_next(history, held)
    await asyncio.wait_for(task, 240)
    assert ended == [True]
    assert (tmp_path / diverging.MARK).exists()


def made(folder: Path) -> str:
    identity = identity_of(folder, "cu-1", "demo")
    for name in ("segments", "snapshots"):
        (folder / name).mkdir()
        (folder / name / "file").write_text(identity.folder_id)
    return identity.folder_id


@pytest.mark.parametrize("moved", range(4))
def test_interrupted_move_of_diverged_files_is_completed(tmp_path: Path, moved: int) -> None:
    """The folder gets a new id. A folder that was set aside earlier is deleted."""
    first = made(tmp_path)
    mark(tmp_path, DivergenceMark(first, 7))
    set_aside(tmp_path)
    second = made(tmp_path)
    mark(tmp_path, DivergenceMark(second, 9))
    aside = tmp_path / f"diverged-{second}"
    aside.mkdir()
    for name in ("segments", "snapshots", "replica.json")[:moved]:
        (tmp_path / name).replace(aside / name)
    assert set_aside(tmp_path) == aside
    assert [path.name for path in tmp_path.iterdir()] == [aside.name]
    assert {path.name for path in aside.iterdir()} == {"segments", "snapshots", "replica.json"}
    assert (aside / "segments" / "file").read_text() == second
    assert identity_of(tmp_path, "cu-1", "demo").folder_id != second
    assert set_aside(tmp_path) is None
