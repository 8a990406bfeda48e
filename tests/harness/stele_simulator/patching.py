"""Planting a bug: replacing one function, method or table row everywhere, and putting it back."""

import inspect
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

OURS: Final = ("stele.", "stele_simulator.")
"""Packages whose modules may hold what is replaced."""


class Patch:
    """Replaces things until it is left. Modules that imported a function by name get the new one too."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo = []

    def function(self, original: Any, replacement: Any) -> None:
        """Replace a module's function in every module of ours that holds it."""
        found = 0
        for name in sorted(sys.modules):
            if not name.startswith(OURS):
                continue
            module = sys.modules[name]
            for attribute, value in sorted(vars(module).items(), key=lambda item: item[0]):
                if value is original:
                    self.attribute(module, attribute, replacement)
                    found += 1
        if not found:
            raise LookupError(f"{original} is held by no module: the mutant is out of date.")

    def attribute(self, owner: Any, name: str, replacement: Any) -> None:
        """Replace a method of a class or a name of a module.

        Raises AttributeError when it is missing, and TypeError when its signature has changed. Any test finds
        a planted bug that only breaks the call, so such a bug would prove nothing.
        """
        before = vars(owner)[name] if name in vars(owner) else getattr(owner, name)
        inherited = name not in vars(owner)
        _check_is_called_alike(name, before, replacement)
        setattr(owner, name, replacement)

        def undo() -> None:
            if inherited:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        self._undo.append(undo)

    def entry(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        """Add a row to a table. Raises KeyError when there is one."""
        if key in table:
            raise KeyError(key)
        table[key] = value
        self._undo.append(lambda: table.__delitem__(key))

    def item(self, table: dict[Any, Any], key: Any, replacement: Any) -> None:
        """Replace a row of a table. Raises KeyError when it is not there."""
        before = table[key]
        table[key] = replacement
        self._undo.append(lambda: table.__setitem__(key, before))


def _check_is_called_alike(name: str, before: Any, replacement: Any) -> None:
    if not inspect.isroutine(before) or not inspect.isroutine(replacement):
        return
    asked = inspect.signature(before).parameters.values()
    by_name = [of.name for of in asked if of.kind == of.KEYWORD_ONLY]
    by_place = [of for of in asked if of.kind in (of.POSITIONAL_ONLY, of.POSITIONAL_OR_KEYWORD)]
    try:
        inspect.signature(replacement).bind(*by_place, **dict.fromkeys(by_name))
    except TypeError as error:
        raise TypeError(
            f"'{name}' is called in another way by now ({error}): the mutant is out of date."
        ) from None
