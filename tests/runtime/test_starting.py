"""The start of a process, and the floor below which it acknowledges nothing, by the answers of replicas."""

import asyncio
import time
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from stele.log.errors import OtherHistoryError
from stele.log.fold import BEGINNING, Start
from stele.log.follower import Floor
from stele.log.port import Ends
from stele.runtime.answers.catch_up import Known, SnapshotAnswer, StartAnswer
from stele.runtime.catch_up import CatchUp
from stele.runtime.starting import Beginning, begin

OLD, NEW = "0a" * 16, "0b" * 16


def answer(name: str, last: int, log_id: str = OLD, **more: Any) -> StartAnswer:
    more = {"known": Known.SAME, "tail_bytes": 0, **more}
    state = f"{last:032x}"
    return StartAnswer(replica_id=name, log_id=log_id, last=last, last_state_id=state, **more)


def snapshot(epoch: int, log_id: str) -> SnapshotAnswer:
    return SnapshotAnswer(
        name=f"{epoch}-{log_id}",
        epoch=epoch,
        state_id="00" * 16,
        log_id=log_id,
        at_ms=0,
        size_bytes=1,
        decided_bytes=1,
        next_offset=epoch + 1,
        anchor_offset=epoch,
    )


class Replicas:
    """Replicas that answer ``after_s`` seconds after the first request."""

    def __init__(self, *answers: tuple[float, StartAnswer], known: int = 3) -> None:
        self.replicas = known
        self.asked = list[dict[str, object]]()
        self.loaded = list[str]()
        self.silent = {"http://away": "nothing answers"}
        self._answers = answers
        self._began_s = time.monotonic()

    async def starts(self, grace_s: float = 0.05, **question: object) -> list[Any]:
        """Like ``CatchUp.starts``: yields the nearest answer first, and others only within the grace period."""
        self.asked.append(question)
        await asyncio.sleep(0)
        there = [(s, a) for s, a in self._answers if s <= time.monotonic() - self._began_s]
        return [(a.replica_id, a) for _, a in there]

    async def load(self, url: str, which: SnapshotAnswer, *, decided: bool) -> Start:
        self.loaded.append(which.name)
        return BEGINNING

    async def with_places(self, url: str, start: Start) -> Start:
        return start


async def started(
    replicas: Replicas, begin_offset: int = 0, floor: Floor | None = None, patience_s: float = 5.0
) -> Beginning:
    async def ends() -> Ends:
        return Ends(begin_offset, 10_000)

    return await begin(
        cast(CatchUp, replicas), "", ends, floor, decided=True, patience_s=patience_s
    )


async def test_start_waits_for_a_majority_of_replicas_to_detect_a_lost_end() -> None:
    """After a power failure replicas may start later than metadata-log."""
    late = Replicas((0.0, answer("new", 0)), (0.3, answer("full", 90)))
    _, floor = await started(late)
    assert floor is not None
    assert floor.epoch == 90


async def test_start_continues_without_a_majority_of_replicas_after_patience() -> None:
    _, floor = await started(Replicas((0.0, answer("one", 7))), patience_s=0.3)
    assert floor is not None
    assert floor.epoch == 7
    with capture_logs() as lines:
        await started(Replicas(known=2), patience_s=0.3)
    assert lines[0]["event"] == "waits for most catch-up replicas"
    (begins,) = (line for line in lines if line["log_level"] == "warning")
    assert begins["event"] == "begins without most catch-up replicas"
    assert (begins["answered"], begins["of"], begins["why"]) == (0, 2, Replicas().silent)
    assert (await started(Replicas(), patience_s=0.0)).floor is None
    assert (await started(Replicas(known=0))).floor is None


async def test_snapshot_of_a_replica_that_missed_a_recovery_is_not_used() -> None:
    stale = answer("stale", 340, OLD, snapshot=snapshot(340, OLD))
    right = answer("right", 339, NEW, snapshot=snapshot(339, NEW), recovered=True)
    replicas = Replicas((0.0, stale), (0.0, right))
    _, floor = await started(replicas)
    assert replicas.loaded == [f"339-{NEW}"]
    assert floor is not None
    assert floor.epoch == 339


async def test_replica_that_missed_a_recovery_does_not_judge_acknowledged_epochs() -> None:
    """Two histories grew from one log. The recovery took that of the process, not that of the replica."""
    floor = Floor(339, b"s" * 16, log_id=OLD)
    stale = answer("stale", 360, OLD, known=Known.OTHER)
    right = answer("right", 340, NEW, snapshot=snapshot(340, NEW), recovered=True)
    replicas = Replicas((0.0, stale), (0.0, right))
    assert (await started(replicas, floor=floor)).floor is not None
    assert replicas.loaded == [f"340-{NEW}"]
    with pytest.raises(OtherHistoryError, match="another state id in the archive at stale"):
        await started(Replicas((0.0, stale)), floor=floor)
    other = answer("other", 340, NEW, known=Known.OTHER)
    with pytest.raises(OtherHistoryError, match="another state id in the archive at other"):
        await started(Replicas((0.0, stale), (0.0, other)), floor=floor)


async def test_stopped_replica_does_not_judge_acknowledged_epochs() -> None:
    """The stopped replica may have epochs that a recovery gave up, while the recovering replica restarts."""
    floor = Floor(80, b"s" * 16)
    stopped = answer("a", 82, known=Known.OTHER, stopped="the log was recovered")
    assert (await started(Replicas((0.0, stopped), known=1), floor=floor)).floor is not None


@pytest.mark.parametrize(
    ("own", "known", "least"),
    [(0, Known.SAME, 90), (50, Known.SAME, 90), (95, Known.UNKNOWN, 95), (50, Known.UNKNOWN, 50)],
)
async def test_later_of_two_floors_is_used(own: int, known: Known, least: int) -> None:
    found = await started(
        Replicas((0.0, answer("a", 90, known=known)), known=1), floor=Floor(own, b"s" * 16)
    )
    assert found.floor is not None
    assert found.floor.epoch == least


async def test_acknowledged_epoch_before_the_archive_is_an_error() -> None:
    """Whether the epoch is of this history is unknown, so waiting would not end."""
    replicas = Replicas((0.0, answer("a", 90, known=Known.UNKNOWN, begins=60)), known=1)
    with pytest.raises(OtherHistoryError, match="begins at epoch 60"):
        await started(replicas, begin_offset=70, floor=Floor(59, b"s" * 16))
    found = await started(replicas, floor=Floor(60, b"s" * 16))
    assert found.floor is not None
    assert (await started(replicas, floor=Floor(0, b""))).floor is not None


@pytest.mark.parametrize("begin_offset", [0, 20])
async def test_snapshot_comes_from_a_replica_that_reads_the_log(
    begin_offset: int,
) -> None:
    """The stopped replica has later epochs that an unclean election lost. A process that starts with them stops
    at once, again and again.
    """
    lost = answer(
        "lost", 90, snapshot=snapshot(90, OLD), stopped="its anchor is not there any more"
    )
    right = answer("right", 80, snapshot=snapshot(80, OLD))
    replicas = Replicas((0.0, lost), (0.0, right))
    await started(replicas, begin_offset)
    assert replicas.loaded == [f"80-{OLD}"]
    alone = Replicas((0.0, lost), known=1)
    await started(alone, begin_offset)
    assert alone.loaded == [f"90-{OLD}"]


async def test_log_is_read_from_its_beginning_without_a_usable_snapshot() -> None:
    lost = answer(
        "lost", 90, snapshot=snapshot(90, OLD), stopped="its anchor is not there any more"
    )
    replicas = Replicas((0.0, lost), (0.0, answer("right", 80)))
    assert (await started(replicas)).start == BEGINNING
    assert replicas.loaded == []
    await started(replicas, 20)
    assert replicas.loaded == [f"90-{OLD}"]
