"""What is done to the log as a whole."""

from collections.abc import Callable
from typing import Final

from stele.domain.commands import RestrictCommits, SetSetting
from stele.domain.names import COORDINATOR, CommitMode
from stele.sim.kernel import us
from stele.sim.scenario import Action
from stele.sim.world import World

BESIDE: Final = 4
"""Commands that are asked for in the moment of the freeze, and as many a moment later."""
ACTORS: Final = (COORDINATOR, "admin")


def _freeze(world: World, action: Action, index: int) -> None:
    """The log is frozen for ``seconds``, or left to one actor, as ``number`` says; others ask all the while."""
    single = action.number % 3 == 0
    mode = CommitMode.SINGLE_USER if single else CommitMode.FROZEN
    actor = ACTORS[action.number // 3 % len(ACTORS)] if single else ""
    for number in range(2 * BESIDE):
        if number == BESIDE:
            world.request(RestrictCommits(mode=mode, actor=actor))
        world.request(SetSetting(f"beside{number}", f"value{index}"))
    world.kernel.at(world.kernel.now_us + us(action.seconds), None, _thaw, world)


def _thaw(world: World) -> None:
    world.request(RestrictCommits(mode=CommitMode.OPEN))


LOG_ACTIONS: Final[dict[str, Callable[[World, Action, int], None]]] = {"freeze": _freeze}
