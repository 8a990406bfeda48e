"""Consumers that follow the changes of captured tables, and checks of what they are given.

D1: an acknowledged write has its change on the disks of a quorum (``stores``).
D2: a change is in the stream that its token and its time select, and the streams of a time cover the ring.
D3: each acknowledged write is seen at least once.
D4: the changes of a key are seen in the order of its writes.

The checks take generations and their times from the log. Production's choice of streams is
not used.
"""

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from stele.domain.image import Image
from stele.domain.ring.ranges import MAX_TOKEN, MIN_TOKEN
from stele.runtime.answers.node import ChangesView, StreamSetView, StreamsView, StreamView
from stele_simulator.generation_checks import ends_of
from stele_simulator.kernel import Clock
from stele_simulator.messages import text_in, token_of_key
from stele_simulator.processes.callers import Caller

if TYPE_CHECKING:
    from stele_simulator.processes.world import World

STREAMS: Final = "D2"
SEEN: Final = "D3"
ORDER: Final = "D4"
LIMIT: Final = 3
"""Changes of a page, so that a stream has several."""
ROUNDS: Final = 4
"""A consumer reads its streams so often before it lists them again."""
PAUSE_S: Final = 0.5
ANSWER_S: Final = 8.0
OK: Final = 200
STREAM_BYTES: Final = 16
BEGIN_US: Final = 1000 * Clock.EPOCH_MS
"""All writes are later. The founding has older generations, whose changes have expired."""


def is_captured(image: Image | None, name: str) -> bool:
    """Return whether the log says that the changes of a table are captured."""
    table = None if image is None else image.schema.table_named(name)
    if image is None or table is None:
        return False
    columns = image.schema.schemas.get(table.table_id)
    literal = table.options.cdc if columns is None else columns.parameters.get("cdc", "")
    return "'enabled': 'true'" in literal


class Acknowledged(NamedTuple):
    """A write of a captured table. ``age`` is that of the data; times are virtual seconds."""

    data_id: str
    key: str
    value: str
    began_s: float
    ended_s: float
    time_us: int
    age: int


class Given(NamedTuple):
    """The place of a change in what a consumer was given first, and its values without the key.

    A column that was dropped since has no value.
    """

    place: int
    values: set[str]


class ChangeWitness:
    """Records acknowledged writes and the changes that consumers are given."""

    def __init__(self, world: "World") -> None:
        self.seen = 0
        """Number of changes that consumers were given."""
        self._world = world
        self._written = defaultdict[str, list[Acknowledged]](list)
        """By table."""
        self._given = defaultdict[str, dict[tuple[str, int], Given]](dict)
        """By consumer, then by key and time of a change."""

    def wrote(
        self, table: str, key: str, value: str, began_s: float, written: dict[str, Any]
    ) -> None:
        """Note the answer to a write, if its node captured the table."""
        image = self._world.witness.image_of_epoch(written["epoch"])
        data = None if image is None else image.schema.serving(table)
        if data is None or not is_captured(image, table):
            return
        done = Acknowledged(
            data.data_id,
            key,
            value,
            began_s,
            self._world.kernel.now_s,
            written["timestamp"],
            self._world.stores.age(),
        )
        self._written[table].append(done)

    def newest_us(self, table: str) -> int:
        """Return the time of the newest acknowledged write."""
        return max((each.time_us for each in self._written[table]), default=0)

    # -- streams --

    def listed(self, table: str, sets: list[StreamSetView]) -> None:
        """Check that the streams of each time cover the ring, each token once."""
        for each in sets:
            pieces = sorted((r[0], _last(r[1])) for s in each.streams for r in s.ranges)
            ends = [MIN_TOKEN, *(end for _, end in pieces)]
            self._demand(
                [start for start, _ in pieces] == ends[:-1] and ends[-1] == MAX_TOKEN,
                STREAMS,
                f"the streams of {table} cover the ring",
                f"those since {each.since_ms} have the ranges {pieces}",
            )

    def gave(
        self,
        consumer: str,
        generation: str,
        stream: StreamView,
        key: str,
        values: set[str],
        at: int,
    ) -> None:
        """Check that a change of this time is in the right stream, and note its place."""
        self.seen += 1
        token = token_of_key(("", key))
        if generation:
            expected = self._stream_at(token, at)
            self._demand(
                expected in ("", stream.stream),
                STREAMS,
                f"the change of {key} at {at} us is in stream {expected}",
                f"it is in {stream.stream} of generation {generation}",
            )
        self._demand(
            any(start < token <= _last(end) for start, end in stream.ranges),
            STREAMS,
            f"stream {stream.stream} of {stream.ranges} has changes of its tokens",
            f"it has {key} of token {token}",
        )
        given = self._given[consumer]
        given.setdefault((key, at), Given(len(given), values - {key}))

    def _stream_at(self, token: int, time_us: int) -> str:
        """Return the stream of a token in the generation that held at a time; empty for none."""
        generations = self._world.witness.image.cdc.generations.values()
        held = [g for g in generations if g.committed_epoch and 1000 * g.since_ms <= time_us]
        if not held:
            return ""
        streams = max(held, key=lambda generation: generation.since_ms).streams
        ends = ends_of(streams)
        place = next((at for at, end in enumerate(ends) if token <= end), 0)
        return streams[STREAM_BYTES * place : STREAM_BYTES * (place + 1)].hex()

    # -- at rest --

    def check(self, consumer: str, table: str) -> None:
        """Check that a consumer, which has read up to the newest write, has seen all in order."""
        given, data = self._given[consumer], self._world.witness.image.schema.serving(table)
        data_id = "" if data is None else data.data_id
        # Writes of data that was truncated since, or of epochs that were lost, need not be there.
        counted = [w for w in self._written[table] if w.data_id == data_id]
        counted = [w for w in counted if w.age >= 0 and w.age == self._world.rows.age]
        self._demand(
            bool(self._written[table]),
            SEEN,
            f"writes of {table} are acknowledged",
            "there are none",
        )
        nothing = Given(-1, {""})
        found = {each: given.get((each.key, each.time_us), nothing) for each in counted}
        missing = [w for w, seen in found.items() if seen.values and w.value not in seen.values]
        self._demand(
            not missing,
            SEEN,
            f"{consumer} has seen the {len(counted)} acknowledged writes of {table}",
            f"it has not seen {len(missing)}, such as {missing[:2]}",
        )
        by_key = defaultdict[str, list[Acknowledged]](list)
        for each in counted:
            by_key[each.key].append(each)
        for writes in by_key.values():
            for one in writes:
                later = [two for two in writes if one.ended_s < two.began_s]
                early = [two for two in later if found[two].place < found[one].place]
                self._demand(
                    not early,
                    ORDER,
                    f"the change of {one} is seen before those of later writes",
                    f"{early[:1]} was seen before",
                )

    def _demand(self, holds: bool, rule: str, expected: str, found: str) -> None:
        if self._world.stores.age() >= 0:
            self._world.demand(holds, rule, expected, found)


def _last(end: int) -> int:
    return MAX_TOKEN if end == MIN_TOKEN else end


class Consumer(Caller):
    """Follows the streams of a table set by set, from the time up to which it has read all of them."""

    def __init__(self, name: str, world: "World", table: str) -> None:
        super().__init__(name, world)
        self.table = table
        self.complete_us = 0
        """All changes up to this time were read."""

    async def _work(self) -> None:
        while True:
            await self.sleep(2 * PAUSE_S * self.chance.random())
            listed = await self._get("streams", {}, StreamsView)
            if listed is None:
                continue
            self.world.changes.listed(self.table, listed.sets)
            since_us = max(self.complete_us, BEGIN_US)
            now = [s for s in listed.sets if not s.until_ms or 1000 * s.until_ms - 1 > since_us]
            for each in now[:1]:
                await self._follow(each)

    async def _follow(self, streams: StreamSetView) -> None:
        cursors = dict.fromkeys((stream.stream for stream in streams.streams), self.complete_us)
        for _ in range(ROUNDS):
            for stream in streams.streams:
                read_us = await self._read(streams.generation, stream, cursors[stream.stream])
                cursors[stream.stream] = max(cursors[stream.stream], read_us)
            await self.sleep(PAUSE_S * self.chance.random())
        self.complete_us = max(self.complete_us, min(cursors.values()))

    async def _read(self, generation: str, stream: StreamView, after_us: int) -> int:
        """Read pages of a stream until its end, and return the time up to which that is complete."""
        more = True
        while more:
            after = f"{after_us:x}" if after_us else ""
            asked = {"stream": stream.stream, "after": after, "limit": str(LIMIT)}
            found = await self._get("changes", asked, ChangesView)
            if found is None:
                return after_us
            for change in found.changes:
                row = change.row or {}
                values = {text for text in map(text_in, row.values()) if text}
                given = generation, stream, change.key.decode(), values, change.time_us
                self.world.changes.gave(self.name, *given)
            after_us, more = int(found.cursor, 16), found.more
        return after_us

    async def _get(self, what: str, asked: dict[str, str], kind: type[Any]) -> Any:
        """Return the answer of any node, or None."""
        node = self.chance.choice(self.world.nodes).name
        url, params = f"http://{node}/v1/cdc/{what}", {"table": self.table, **asked}
        status, content = await self.fetch(url, ANSWER_S, params)
        return msgspec.json.decode(content, type=kind) if status == OK else None
