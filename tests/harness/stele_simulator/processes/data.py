"""Clients that write and read rows at any node, and checks of their observations.

Acknowledged writes survive power failures, changes of members and a lost log, unless the log lost epochs
permanently: the quorums of the lost topology may then be out of reach. An age of the data ends there, and the
next one begins once nodes know of it.
"""

from collections.abc import Iterator
from math import inf
from random import Random
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from stele.runtime.answers.common import code_in
from stele_simulator.messages import KvOp, begun
from stele_simulator.processes.simulated_client import SimulatedClient
from stele_simulator.registers import check_registers

if TYPE_CHECKING:
    from stele_simulator.processes.disaster import Disaster
    from stele_simulator.processes.world import World

DC: Final = "dc1"
"""The first datacentre, which is the only one in most runs."""
KEYSPACE: Final = "rows"
TABLETS: Final = "wide"
"""The keyspace whose tables have tablets."""
TABLE: Final = f"{TABLETS}.t"
OTHER_TABLE: Final = f"{TABLETS}.u"
"""Co-located with the first one, where there is one."""
TABLE_TRUNCATED: Final = f"{TABLETS}.v"
COLUMNS_TABLES: Final = (f"{TABLETS}.c", f"{KEYSPACE}.c")
"""Tables with columns, in some runs: one with tablets, one without."""
COLUMNS_TYPES: Final = {
    "a": "text",
    "b": "int",
    "c": "set<text>",
    "d": "frozen<person>",
    "e": "text",
}
"""Columns that they may have beside their keys, which a rename changes."""
KEYSPACE_TRUNCATED: Final = "brief"
"""A keyspace that is sometimes truncated, in some disasters, while clients write to it."""
KEYS: Final = 6
TABLE_KEYS: Final = 8
MEETING_S: Final = 0.04
"""A write takes about so long."""
TABLES_SHARE: Final = 0.6
HOT_SHARE: Final = 0.5
"""Share of requests for the first key, so that clients meet."""
HOT_KEY: Final = "key0"
THINK_S: Final = 0.4
ANSWER_S: Final = 12.0
"""Longer than a node tries."""
AGAIN_S: Final = 1.0
LAST_TRIES: Final = 60
PUT: Final = "PUT"
OK: Final = 200
NOT_FOUND: Final = 404
REFUSED: Final = 0
UNKNOWN: Final = "outcome_unknown"
NO_KEY: Final = "not_found"


def all_keys(*, tablets: bool, colocated: bool) -> set[str]:
    """Which clients write to."""
    tables = [TABLE] * tablets + [OTHER_TABLE] * colocated
    of_tables = {f"{table}/key{number}" for table in tables for number in range(TABLE_KEYS)}
    return {f"key{number}" for number in range(KEYS)} | of_tables


def some_key(scenario: "Disaster", chance: Random) -> str:
    """Return a key of the keyspace without tablets, or of a table by its name."""
    if scenario.tablets and chance.random() < TABLES_SHARE:
        table = chance.choice((TABLE, OTHER_TABLE)) if scenario.colocated else TABLE
        return f"{table}/key{_number(scenario, chance, TABLE_KEYS)}"
    return f"key{_number(scenario, chance, KEYS)}"


def _number(scenario: "Disaster", chance: Random, keys: int) -> int:
    """Return a random number of a key."""
    is_hot = scenario.pressed and chance.random() < HOT_SHARE
    return 0 if is_hot else chance.randrange(keys)


class Rows:
    """Requests and answers of clients. ``age`` counts losses of acknowledged epochs."""

    def __init__(self) -> None:
        self.age = 0
        self.writes = 0
        self.reads = 0
        self._asked: list[tuple[int, int, KvOp]] = []
        """The ages in which it began and ended; -1: it has not ended."""

    def begins(self, operation: KvOp) -> int:
        self._asked.append((self.age, -1, operation))
        return len(self._asked) - 1

    def ends(self, number: int, operation: KvOp) -> None:
        self._asked[number] = (self._asked[number][0], self.age, operation)
        self.writes += operation.write and operation.done
        self.reads += not operation.write and operation.done

    def check(self) -> int:
        """How many operations were checked. Raises Violation."""
        return check_registers(each for age in range(self.age + 1) for each in self._of(age))

    def _of(self, age: int) -> Iterator[KvOp]:
        """Yield the operations of an age, with the age in their keys. Writes of ages before may have been lost
        or not: they take effect when they are read, if ever.
        """
        for began, ended, operation in self._asked:
            within = began == age == ended
            named = replace(operation, key=f"{operation.key} in age {age}")
            if within:
                yield named
            elif operation.write and began <= age and (operation.done or not operation.known):
                since = operation.began if began == age else -inf
                yield replace(named, began=since, ended=inf, done=False, known=False)


class DataClient(SimulatedClient):
    """Writes and reads, one request after the other."""

    def __init__(self, name: str, world: "World") -> None:
        super().__init__(name, world, "data")
        self._written = 0

    async def _work(self) -> None:
        while self.world.callers_work:
            await self.sleep(2 * THINK_S * self.chance.random())
            key = some_key(self.world.scenario, self.chance)
            if self.chance.random() < 0.5:
                if self.world.scenario.pressed:
                    self.spawn(self._meet(key))
                await self._write(key)
            else:
                await self._read(key)

    async def _meet(self, key: str) -> None:
        """Read what is being written just now."""
        await self.sleep(MEETING_S * self.chance.random())
        await self._read(key)

    async def read_all(self, keys: set[str]) -> None:
        """Read each of these keys from a quorum after the last fault. The results are checked with the rest."""
        for key in sorted(keys):
            for _ in range(LAST_TRIES):
                if await self._read(key):
                    keys.discard(key)
                    break
                await self.sleep(AGAIN_S)

    async def _write(self, key: str) -> bool:
        """True when it was acknowledged."""
        self._written += 1
        value = f"{self.name}:{self._written}"
        pending = self._begun(key, value)
        number = self.world.rows.begins(pending)
        status, content = await self._call(pending.node, key, value.encode())
        done = status == OK
        surely_not = not done and status >= REFUSED and code_in(content) != UNKNOWN
        ended = replace(pending, ended=self.world.kernel.now_s, done=done, known=surely_not)
        if (done or surely_not) and self._counts(pending):
            self.world.rows.ends(number, ended)
        return done

    async def _read(self, key: str) -> bool:
        pending = self._begun(key, None)
        number = self.world.rows.begins(pending)
        status, content = await self._call(pending.node, key, None)
        is_there = status == OK
        if is_there or (status == NOT_FOUND and code_in(content) == NO_KEY):
            value = content.decode() if is_there else None
            ended = self.world.kernel.now_s
            done = replace(pending, ended=ended, value=value, done=True, known=True)
            if self._counts(pending):
                self.world.rows.ends(number, done)
            return True
        return False

    def _counts(self, pending: KvOp) -> bool:
        """Return whether its end is known to belong to this request."""
        return True

    def _node(self) -> str:
        return self.chance.choice(self.world.nodes).name

    def _begun(self, key: str, value: str | None) -> KvOp:
        return begun(self.world.kernel.now_s, self._node(), key, value)

    async def _call(self, node: str, key: str, body: bytes | None) -> tuple[int, bytes]:
        """Return status and body; -1 for no answer, 0 for a refused connection."""
        url = f"http://{node}/v1/data/{key if '/' in key else f'{KEYSPACE}/{key}'}"
        method = "" if body is None else PUT
        return await self.fetch(url, ANSWER_S, body=body, method=method)
