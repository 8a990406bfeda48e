"""What a domain must bring: the one shape that evolve, decide, snapshot, view and diff loop over."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from stele.domain.base import Fact
from stele.domain.hashing import hash_of_facts


class Filter(msgspec.Struct, frozen=True):
    """By what rows of a section can be asked for: whether a row fits a value; its values, where few."""

    what: str
    fits: Callable[[Any, str], bool]
    values: tuple[str, ...] = ()


class Domain(msgspec.Struct, frozen=True, kw_only=True):
    """One domain of the image.

    ``name`` is its attribute of ``Image``. ``apply`` folds a fact of the domain into the domain's own image and
    sees nothing else. ``to_facts`` writes the image back from nothing, in one fixed order: the snapshot.
    ``view`` gives sections of the whole state as people see it: structs, sequences of them, or plain
    values; whoever shows them encodes them. ``diff`` gives the same sections with what differs, as plain
    values. ``delta`` does so for one epoch from its facts, where ``diff`` would look at too much.
    ``filters`` says by what the rows of a section can be asked for: section -> name -> ``Filter``.
    ``hash`` is a number below 2**128 that equal images share whatever their history: by default the sum of the
    hashes of the facts that ``to_facts`` gives.
    """

    name: str
    empty: Any
    decide: Mapping[type, Callable[..., Any]]
    apply: Mapping[type, Callable[[Any, Any], Any]]
    to_facts: Callable[[Any], Iterable[Fact]]
    view: Callable[[Any], dict[str, Any]]
    diff: Callable[[Any, Any], dict[str, Any]]
    delta: Callable[[Any, Any, Iterable[Fact]], dict[str, Any]] | None = None
    filters: Mapping[str, Mapping[str, Filter]] = {}
    hash: Callable[[Any], int] | None = None
    features: Mapping[type, str] = {}
    """Facts that a reader can only fold with a feature: nobody writes them before it is enabled."""
    enables: Mapping[type, Callable[[Any], Iterable[str]]] = {}
    """Facts that enable features, and which ones such a fact names."""
    shared: bool = True
    """Every process keeps it, so that it is part of the state's hash."""

    def hash_of(self, image: Any) -> int:
        """The hash of the domain's image, a number below 2**128."""
        return hash_of_facts(self.to_facts(image)) if self.hash is None else self.hash(image)
