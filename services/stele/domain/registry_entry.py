"""The entry of a domain in the registry: one shape for evolve, decide, snapshot, view and diff."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from stele.domain.base import Fact
from stele.domain.hashing import hash_of_facts
from stele.domain.tables import changed_sections, in_order


class Filter(msgspec.Struct, frozen=True):
    """A filter for rows of a section: its description, its test, and its values if they are few."""

    what: str
    fits: Callable[[Any, str], bool]
    values: tuple[str, ...] = ()


class Domain(msgspec.Struct, frozen=True, kw_only=True):
    """One domain of the image.

    ``name`` is its attribute of ``Image``. ``apply`` folds a fact of the domain into the domain's
    own image and has no other input. ``to_facts`` writes the image as facts from the empty one, in
    one fixed order: the snapshot. ``rows`` returns sections of the whole state: each is a struct,
    or structs by id, in any order. ``view`` returns the sections as people see them: structs,
    sequences of them, or plain values. The caller encodes them. By default they are those of
    ``rows``, ordered by id. ``diff`` returns the differences in the same sections, as plain values.
    By default it compares ``rows``. ``delta`` returns those of one epoch from its facts, for domains
    where ``diff`` would compare too much. ``filters`` are the filters for the rows of a section:
    section -> name -> ``Filter``. ``hash`` is a number below 2**128 that is equal for equal images,
    after any history. By default it is the sum of the hashes of the facts from ``to_facts``.
    """

    name: str
    empty: Any
    apply: Mapping[type, Callable[[Any, Any], Any]]
    to_facts: Callable[[Any], Iterable[Fact]]
    decide: Mapping[type, Callable[..., Any]] = {}
    rows: Callable[[Any], dict[str, Any]] = lambda image: {}
    view: Callable[[Any], dict[str, Any]] | None = None
    diff: Callable[[Any, Any], dict[str, Any]] | None = None
    delta: Callable[[Any, Any, Iterable[Fact]], dict[str, Any]] | None = None
    filters: Mapping[str, Mapping[str, Filter]] = {}
    hash: Callable[[Any], int] | None = None
    features: Mapping[type, str] = {}
    """Facts that a reader can fold only with a feature. They are not written before it
    is enabled.
    """
    enables: Mapping[type, Callable[[Any], Iterable[str]]] = {}
    """Facts that enable features, with the names of the features."""
    shared: bool = True
    """True if every process keeps the domain, which is then part of the state's hash."""

    def hash_of(self, image: Any) -> int:
        """Return the hash of the domain's image, a number below 2**128."""
        return hash_of_facts(self.to_facts(image)) if self.hash is None else self.hash(image)

    def view_of(self, image: Any) -> dict[str, Any]:
        """Return the domain's image as people see it, by section."""
        return in_order(self.rows(image)) if self.view is None else self.view(image)

    def diff_of(self, before: Any, after: Any) -> dict[str, Any]:
        """Return the differences between two images of the domain, by section."""
        if self.diff is not None:
            return self.diff(before, after)
        return changed_sections(self.rows(before), self.rows(after))
