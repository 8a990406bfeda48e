"""Results of production's pure functions, cached for a while: all processes of a run compute the same.

In production each process computes them on its own machine. Here they share a core. Only results that depend
on the arguments alone are cached, and the witness computes them again: a function that is not pure is a
finding.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from stele.domain.facts import Epoch
from stele.domain.image import Image
from stele.log import codec, fold, pipeline
from stele_simulator.patching import Patch

R = TypeVar("R")

MOST: Final = 256
"""So many are kept. Processes read the same records within seconds of each other."""


def remember(patch: Patch) -> None:
    """For as long as the patch lasts."""
    decode = _by_bytes(vars(fold)["decode_epoch"])
    evolve = _by_identity(vars(fold)["evolve"])
    for module in (fold, pipeline):
        patch.attribute(module, "decode_epoch", decode)
        patch.attribute(module, "evolve", evolve)
    patch.function(codec.decode_ack, _by_bytes(codec.decode_ack))


def _by_bytes(plain: Callable[[bytes], R]) -> Callable[[bytes], R]:
    known: dict[bytes, R] = {}

    def remembered(value: bytes) -> R:
        found = known.get(value)
        if found is None:
            found = plain(value)
            _keep(known, value, found)
        return found

    return remembered


def _by_identity(plain: Callable[[Image, Epoch], Image]) -> Callable[[Image, Epoch], Image]:
    """Cache by object identity. The objects are kept, so that no others get their ids. Equal images share one
    object.
    """
    known: dict[tuple[int, int], tuple[Image, Epoch, Image]] = {}
    after: dict[bytes, tuple[Image, ...]] = {}

    def remembered(image: Image, epoch: Epoch) -> Image:
        key = id(image), id(epoch)
        found = known.get(key)
        if found is None:
            others = after.get(epoch.state_id, ())
            result = _one_of(others, plain(image, epoch))
            if not any(each is result for each in others):
                _keep(after, epoch.state_id, (*others, result))
            found = image, epoch, result
            _keep(known, key, found)
        return found[2]

    return remembered


def _one_of(others: Iterable[Image], result: Image) -> Image:
    alike = (each for each in others if (each.decided is None) == (result.decided is None))
    return next((each for each in alike if each == result), result)


def _keep(known: dict[Any, Any], key: object, found: object) -> None:
    if len(known) >= MOST:
        del known[next(iter(known))]
    known[key] = found
