"""Records are handed to the event loop in their order, and nothing stays in hand, whatever goes wrong there."""

import asyncio
import threading
from math import inf

import pytest

from stele.log.delivered import Delivered
from stele.log.errors import AnchorLostError
from stele.log.hand_over import MAX_IN_HAND, HandOver
from stele.log.port import OnRecords, Record, always
from stele.log.pulse import Moment


def record(offset: int) -> Record:
    return Record(offset, b"value %d" % offset)


def hand_over(on_records: OnRecords, stop: threading.Event | None = None) -> HandOver:
    """From offset 0 on; reports count however old the proof is."""
    made = HandOver(asyncio.get_running_loop(), 0, on_records, always, stop or threading.Event())
    made._delivered = Delivered(0, inf)
    return made


def in_hand(which: HandOver) -> int:
    taken = 0
    while which._in_hand.acquire(blocking=False):
        taken += 1
    for _ in range(taken):
        which._in_hand.release()
    return MAX_IN_HAND - taken


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_what_breaks_who_takes_the_records_leaves_nothing_in_hand() -> None:
    errors = list[str]()

    def breaks(records: list[Record]) -> None:
        raise ValueError(f"offset {records[0].offset}")

    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: errors.append(str(context["exception"]))
    )
    given = hand_over(breaks)
    for offset in range(3 * MAX_IN_HAND):
        given.reported(*record(offset), Moment.now())
        given.fetched([record(offset)])
        given.reported(*record(offset), Moment.now())
        await turns()
        assert in_hand(given) == 0
    assert errors == [f"offset {offset}" for offset in range(3 * MAX_IN_HAND)]


async def test_reports_that_cannot_be_handed_over_are_fetched() -> None:
    read = list[Record]()
    given = hand_over(read.extend)
    given.reported(*record(0), Moment.now())
    given.fetched([record(0)])
    for offset in range(1, 3 * MAX_IN_HAND):
        given.reported(*record(offset), Moment.now())
    assert in_hand(given) == MAX_IN_HAND
    await turns()
    assert read == [record(offset) for offset in range(MAX_IN_HAND)]
    given.fetched([record(offset) for offset in range(1, 3 * MAX_IN_HAND)])
    await turns()
    assert read == [record(offset) for offset in range(3 * MAX_IN_HAND)]
    assert in_hand(given) == 0


async def test_nothing_is_given_after_the_end() -> None:
    read = list[Record]()
    given = hand_over(read.extend)
    given.reported(*record(0), Moment.now())
    given.fetched([record(0)])
    given.end()
    given.reported(*record(1), Moment.now())
    await turns()
    assert read == [record(0)]
    assert in_hand(given) == 0


async def test_a_loss_is_told_and_leaves_nothing_in_hand() -> None:
    read = list[Record]()
    given = hand_over(read.extend)
    given.reported(*record(0), Moment.now())
    given.fetched([record(0)])
    given.reported(*record(1), Moment.now())
    with pytest.raises(AnchorLostError):
        given.fetched([Record(1, b"another")])
    given.reported(*record(2), Moment.now())
    await turns()
    assert read == [record(0), record(1)]
    assert in_hand(given) == 0


async def test_who_waits_for_room_in_hand_is_released_by_the_stop() -> None:
    stop = threading.Event()
    given = hand_over(lambda _: None, stop)
    for offset in range(MAX_IN_HAND):
        given.fetched([record(offset)])
    waiting = threading.Thread(target=given.fetched, args=([record(MAX_IN_HAND)],))
    waiting.start()
    stop.set()
    waiting.join(10)
    assert not waiting.is_alive()
    await turns()
    assert in_hand(given) == 0
