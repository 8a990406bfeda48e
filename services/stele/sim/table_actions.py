"""What actions on the balancing of tables do: it is switched, and what tables hold and serve changes."""

from collections.abc import Callable
from typing import Final

from stele.domain import commands
from stele.sim.loads import TableLoad
from stele.sim.scenario import Action
from stele.sim.world import World

OFF_MS: Final = 5_000
GRACE_MS: Final = 1_000


def _switch_off(world: World, action: Action, index: int) -> None:
    """Balancing of ``target``, which is everything when it is empty; ``number`` says for how long."""
    now_ms = world.admin.clock.wall_ms()
    until_ms = now_ms + OFF_MS if action.number % 2 else 0
    abort_at_ms = now_ms + GRACE_MS if action.number // 2 % 2 else 0
    world.request(commands.SwitchBalancingOff(action.target, until_ms, abort_at_ms))


def _switch_on(world: World, action: Action, index: int) -> None:
    world.request(commands.SwitchBalancingOn(action.target))


def _load(world: World, action: Action, index: int) -> None:
    """Table ``target`` holds and serves so much from now on."""
    world.loads[action.target] = TableLoad.of(action.number)


TABLE_ACTIONS: Final[dict[str, Callable[[World, Action, int], None]]] = {
    "switch_off": _switch_off,
    "switch_on": _switch_on,
    "load": _load,
}
