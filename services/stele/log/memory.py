"""The log in memory, for unit tests and the simulator: the port's contract without a broker."""

import asyncio
from collections.abc import Callable

from stele.log.port import OnRecords, Record


class MemoryPartition:
    """What a broker holds: the records, and who follows them. Shared by any number of logs."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.followers: list[OnRecords] = []

    def append(self, value: bytes) -> Record:
        record = Record(len(self.records), value)
        self.records.append(record)
        return record


class MemoryLog:
    """One process's access to a partition. Records are delivered in later turns of the event loop."""

    def __init__(self, partition: MemoryPartition) -> None:
        self._partition = partition
        self._follower: OnRecords | None = None
        self._loop = asyncio.get_running_loop()

    def append(self, value: bytes, key: bytes | None = None) -> None:
        record = self._partition.append(value)
        for follower in self._partition.followers:
            self._loop.call_soon(follower, [record])

    async def end_offset(self) -> int:
        return len(self._partition.records)

    def follow(
        self, offset: int, on_records: OnRecords, on_error: Callable[[Exception], None]
    ) -> None:
        self._follower = on_records
        past = self._partition.records[offset:]
        if past:
            self._loop.call_soon(on_records, past)
        self._partition.followers.append(on_records)

    async def read(self, offset: int, limit: int) -> list[Record]:
        return self._partition.records[offset : offset + limit]

    async def close(self) -> None:
        if self._follower is not None:
            self._partition.followers.remove(self._follower)
            self._follower = None
