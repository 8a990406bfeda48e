"""A simulated Redis: a server, the replica that takes its place, and the clients of the processes.

The scripts that production sends run in a real Lua interpreter. Faults: all keys are flushed; a
replica without the last writes takes over; no server answers. A call that timed out may still be
carried out later.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from lupa.lua51 import LuaRuntime, lua_type
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from stele_simulator.kernel import Clock, Owner, us

if TYPE_CHECKING:
    from stele_simulator.processes.machine import Machine
    from stele_simulator.processes.world import World

SOCKET_S: Final = 2.0
"""As the clients' ``socket_timeout``."""
BEHIND_S: Final = 1.5
"""So late a replica may be."""
MILLISECOND_US: Final = 1000

Hash = dict[str, str]

_LUA: Final = LuaRuntime(register_eval=False, register_builtins=False)  # Redis has Lua 5.1 too


class Server(Owner):
    """The content of Redis: hashes that expire by its clock."""

    def __init__(self, world: "World") -> None:
        super().__init__("redis")
        self.clock = Clock(world.kernel, 700, 300)
        self._world = world
        self._chance = world.kernel.random("redis").random
        self._hashes: dict[str, Hash] = {}
        self._ends_ms: dict[str, int] = {}
        self._past: list[tuple[int, dict[str, Hash], dict[str, int]]] = []
        """The content before each recent write, as a replica may still have it."""

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
        """Do nothing."""


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@cache
def _compiled(script: str) -> Any:
    return _LUA.execute(f"return function(KEYS, ARGV, redis) {script}\nend")


def run_script(
    script: str, keys: Sequence[str], args: Sequence[str], call: Callable[..., Any]
) -> Any:
    """Return what the script returns. ``call`` carries out its commands. Raises lupa.LuaError."""

    def as_redis(command: str, *given: Any) -> Any:
        found = call(command, *given)
        return _LUA.table_from(found) if isinstance(found, list) else found

    redis = _LUA.table_from({"call": as_redis})
    return _compiled(script)(_LUA.table_from(keys), _LUA.table_from(args), redis)


def _as_answer(value: Any) -> Any:
    """Convert a result as Redis and its client do: text to bytes, false to None."""
    if lua_type(value) == "table":
        return [_as_answer(value[at]) for at in range(1, len(value) + 1)]
    if isinstance(value, str):
        return value.encode()
    return None if value is None or value is False else int(value)
