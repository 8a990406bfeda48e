"""Deletions from the topic: only those in the log, and only of this log."""

import asyncio
import contextlib

import msgspec
import pytest

from stele.catch_up import trimming
from stele.catch_up.trimming import truncate
from stele.domain.model.archive import LogTruncated
from stele.log.port import Ends
from tests.domain.history import three_nodes

replace = msgspec.structs.replace


@pytest.mark.parametrize(
    ("certain", "same_log", "deleted"), [(True, True, 7), (False, True, 0), (True, False, 0)]
)
async def test_truncation_deletes_no_record_while_the_log_is_in_doubt(
    certain: bool, same_log: bool, deleted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets of a lost or recovered log do not apply to the present topic."""
    image = three_nodes()[0].image
    log_id = image.log_id.hex() if same_log else "0a" * 16
    fact = LogTruncated(epoch=7, offset=7, log_id=log_id, hash="", members=())
    image = replace(image, archive=replace(image.archive, truncated=fact))
    said = list[int]()
    monkeypatch.setattr(trimming, "LOOK_S", 0.01)

    async def ends() -> Ends:
        return Ends(0, 100)

    task = asyncio.create_task(truncate(said.append, lambda: image, ends, lambda: certain))
    await asyncio.sleep(0.2)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert said == ([deleted] if deleted else [])
