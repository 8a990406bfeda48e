"""A log in memory for unit tests: the port's contract without a broker."""

import asyncio
import uuid
from collections.abc import Callable

from stele.log.port import (
    ROOM_POLL_S,
    Ends,
    HasRoom,
    OnDoubt,
    OnRecords,
    Record,
    TopicProbe,
    always,
    ignore,
)


class MemoryPartition:
    """The records of a partition and its followers. Any number of logs share it."""

    def __init__(self) -> None:
        self.topic_id = uuid.uuid4().hex
        self.records: list[Record] = []
        self.followers: list[OnRecords] = []

    def append(self, value: bytes) -> Record:
        record = Record(len(self.records), value)
        self.records.append(record)
        return record

    def recreate(self) -> None:
        """Inject a fault: delete the topic and create it again. Followers keep their offsets."""
        self.topic_id = uuid.uuid4().hex
        self.records.clear()

    def truncate(self, end: int) -> None:
        """Inject a fault: lose the records from ``end`` on."""
        del self.records[end:]


class MemoryLog:
    """One process's access to a partition. It delivers records in later turns of the event loop."""

    def __init__(self, partition: MemoryPartition) -> None:
        self._partition = partition
        self._follower: OnRecords | None = None
        self._loop = asyncio.get_running_loop()

    def append(self, value: bytes, key: bytes | None = None) -> None:
        record = self._partition.append(value)
        for follower in self._partition.followers:
            self._loop.call_soon(follower, [record])

    async def ends(self) -> Ends:
        return Ends(0, len(self._partition.records))

    async def look(self, offset: int | None) -> TopicProbe:
        end, held = (await self.ends()).end, self._partition.records
        there = offset is not None and offset < len(held)
        return TopicProbe(self._partition.topic_id, end, held[offset].value if there else None)  # type: ignore[index]

    def follow(
        self,
        offset: int,
        on_records: OnRecords,
        on_error: Callable[[Exception], None],
        on_doubt: OnDoubt = ignore,
        has_room: HasRoom = always,
    ) -> None:
        position, waiting = offset, list[Record]()

        def give(records: list[Record]) -> None:
            """Deliver records at or behind the consumer's position, and drop earlier ones."""
            nonlocal position
            fresh = [record for record in records if record.offset >= position]
            if not fresh:
                return
            position = fresh[-1].offset + 1
            waiting.extend(fresh)
            if len(waiting) == len(fresh):
                hand_over()

        def hand_over() -> None:
            if self._follower is None:
                return
            if not has_room():
                self._loop.call_later(ROOM_POLL_S, hand_over)
                return
            records = [*waiting]
            waiting.clear()
            on_records(records)

        self._follower = give
        past = self._partition.records[offset:]
        if past:
            self._loop.call_soon(give, past)
        self._partition.followers.append(give)

    async def read(self, offset: int, limit: int) -> list[Record]:
        return self._partition.records[offset : offset + limit]

    async def close(self) -> None:
        if self._follower is not None:
            self._partition.followers.remove(self._follower)
            self._follower = None
