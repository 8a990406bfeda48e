"""Records reach the event loop in order, and each batch frees its slot, even if the callback raises."""

import asyncio
import threading

from stele.log.kafka import MAX_IN_HAND, HandOver
from stele.log.port import OnRecords, Record


def record(offset: int) -> Record:
    return Record(offset, b"value %d" % offset)


def hand_over(on_records: OnRecords, stop: threading.Event | None = None) -> HandOver:
    return HandOver(asyncio.get_running_loop(), on_records, stop or threading.Event())


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


async def test_records_arrive_in_order() -> None:
    read = list[Record]()
    given = hand_over(read.extend)
    for offset in range(MAX_IN_HAND):
        given.fetched([record(offset)])
    assert in_hand(given) == MAX_IN_HAND
    await turns()
    assert read == [record(offset) for offset in range(MAX_IN_HAND)]
    assert in_hand(given) == 0


async def test_reader_that_raises_frees_its_slot() -> None:
    errors = list[str]()

    def breaks(records: list[Record]) -> None:
        raise ValueError(f"offset {records[0].offset}")

    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: errors.append(str(context["exception"]))
    )
    given = hand_over(breaks)
    for offset in range(3 * MAX_IN_HAND):
        given.fetched([record(offset)])
        await turns()
        assert in_hand(given) == 0
    assert errors == [f"offset {offset}" for offset in range(3 * MAX_IN_HAND)]


async def test_a_full_queue_does_not_block_the_stop() -> None:
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
