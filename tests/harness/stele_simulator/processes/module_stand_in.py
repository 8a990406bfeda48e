"""A module as simulated processes have it, in place of the real one."""

import types
from collections.abc import Callable
from typing import Any, ClassVar


class ModuleStandIn(types.ModuleType):
    """Has the names that it defines, and the real module's others but for ``absent``.

    ``who`` returns what runs now: the machine of a process, or the world between turns.
    """

    absent: ClassVar[tuple[str, ...]] = ()

    def __init__(self, real: types.ModuleType, who: Callable[[], Any]) -> None:
        super().__init__(real.__name__)
        self._real = real
        self._who = who

    def __getattr__(self, name: str) -> Any:
        if name in self.absent:
            raise AttributeError(f"the simulator has no {self.__name__}.{name}")
        return getattr(self._real, name)
