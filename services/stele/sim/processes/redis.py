"""A simulated Redis: one server, the replica that takes its place, and the client that processes have.

The scripts that production sends run as they are. What goes wrong: everything is flushed; a replica that has
not got the last writes takes over; nobody answers. A call that was given up may be carried out later.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from stele.sim.kernel import Clock, Owner, us
from stele.sim.processes.lua import run_script

if TYPE_CHECKING:
    from stele.sim.processes.machine import Machine
    from stele.sim.processes.world import World

SOCKET_S: Final = 2.0
"""As the clients' ``socket_timeout``."""
BEHIND_S: Final = 1.5
"""So late a replica may be."""
MILLISECOND_US: Final = 1000

Hash = dict[str, str]


class Server(Owner):
    """What is in Redis: hashes that end at a time of its clock."""

    def __init__(self, world: "World") -> None:
        super().__init__("redis")
        self.clock = Clock(world.kernel, 700, 300)
        self._world = world
        self._chance = world.kernel.random("redis").random
        self._hashes: dict[str, Hash] = {}
        self._ends_ms: dict[str, int] = {}
        self._past: list[tuple[int, dict[str, Hash], dict[str, int]]] = []
        """What it held before each write of the last seconds, as a replica may still have it."""

    # -- what happens to it

    def flush(self) -> None:
        self._hashes, self._ends_ms = {}, {}
        self._world.trace("Redis is flushed")

    def fail_over(self) -> None:
        """A replica takes over that lacks the writes of the last while."""
        since_us = self._world.kernel.now_us - us(BEHIND_S * self._chance())
        for at_us, hashes, ends_ms in self._past:
            if at_us >= since_us:
                self._hashes, self._ends_ms = hashes, ends_ms
                break
        self._past = []
        self._world.trace("a replica of Redis takes over")

    # -- what it does

    def run(self, script: str, keys: list[str], args: list[str]) -> Any:
        now_us = self._world.kernel.now_us
        kept = {name: dict(fields) for name, fields in self._hashes.items()}
        self._past.append((now_us, kept, dict(self._ends_ms)))
        self._past = [each for each in self._past if now_us - each[0] < us(2 * BEHIND_S)]
        return _as_answer(run_script(script, keys, args, self._call))

    def _call(self, command: str, *args: Any) -> Any:
        now_ms = self.clock.wall_ms()
        for name in [name for name, end_ms in self._ends_ms.items() if end_ms <= now_ms]:
            self._delete(name)
        key = str(args[0]) if args else ""
        if command == "TIME":
            micros = self._world.kernel.now_us % MILLISECOND_US
            return [str(now_ms // 1000), str(now_ms % 1000 * 1000 + micros)]
        if command == "HMGET":
            fields = self._hashes.get(key, {})
            return [fields.get(str(name), False) for name in args[1:]]
        if command == "HSET":
            pairs = [_text(each) for each in args[1:]]
            self._hashes.setdefault(key, {}).update(zip(pairs[::2], pairs[1::2], strict=True))
            return len(pairs) // 2
        if command == "DEL":
            for name in args:
                self._delete(str(name))
            return len(args)
        if command == "PTTL":
            return self._ends_ms[key] - now_ms if key in self._ends_ms else -2
        assert command in ("PEXPIRE", "PEXPIREAT"), command
        if key in self._hashes:
            self._ends_ms[key] = int(args[1]) + (now_ms if command == "PEXPIRE" else 0)
        return 1

    def _delete(self, name: str) -> None:
        self._hashes.pop(name, None)
        self._ends_ms.pop(name, None)


class Client:
    """As ``redis.asyncio.Redis``, as far as production asks: scripts."""

    def __init__(self, machine: "Machine", server: Server) -> None:
        self._machine = machine
        self._server = server

    async def eval(self, script: str, numkeys: int, *given: Any) -> Any:
        """Raises what redis raises."""
        machine, server = self._machine, self._server
        network, kernel = machine.world.network, machine.world.kernel
        luck = network.chance(server.name, machine.name)
        words = [_text(each) for each in given]
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def answer(found: Any) -> None:
            if not future.done():
                future.set_result(found)

        def arrive() -> None:
            found = server.run(script, words[:numkeys], words[numkeys:])
            if network.reaches(server.name, machine.name):
                kernel.at(kernel.now_us + network.delay_us(luck), machine, answer, found)

        if network.reaches(machine.name, server.name):
            kernel.at(kernel.now_us + network.delay_us(luck), server, arrive)
        elif luck() < 0.5:
            raise RedisConnectionError("Connection refused")
        try:
            async with asyncio.timeout(SOCKET_S):
                return await future
        except TimeoutError:
            raise RedisTimeoutError("Timeout reading from redis:6379") from None

    async def aclose(self) -> None:
        """Nothing is kept."""


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _as_answer(value: Any) -> Any:
    """As the client gives it: text as bytes, false as nothing."""
    if isinstance(value, list):
        return [_as_answer(each) for each in value]
    if isinstance(value, str):
        return value.encode()
    return None if value is None or value is False else int(value)
