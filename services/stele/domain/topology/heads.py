"""The topology but for the plans: versions and their fence, what is open, who drives it (seeds 000 and 001)."""

import msgspec

from stele.domain.names import RequestKind, TransitionState


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """``version`` goes up with every change of routing; ``fence_version`` follows once older versions are
    drained or fenced out. ``since_epoch`` is the epoch of the newest version: a barrier waits for it.
    ``fence_epoch`` is the epoch that wrote ``fence_version``. ``relaxed_to`` is the level that the barrier of
    this version was relaxed to, ``let_through`` the level of a relaxed barrier that the newest of these epochs
    passed. Both are empty when it was not relaxed, the second also when everybody had answered.
    """

    version: int = 1
    fence_version: int = 1
    since_epoch: int = 0
    fence_epoch: int = 0
    relaxed_to: str = ""
    let_through: str = ""


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A node that a transition is about: its request, and its tokens after a join or before a leave.

    ``replaced_id`` is the node whose tokens it takes over.
    """

    request_id: str
    node_id: str
    tokens: tuple[int, ...] = ()
    replaced_id: str = ""


class TransitionHead(msgspec.Struct, frozen=True, kw_only=True):
    """One operation under way, but for the placements of its steps.

    ``session`` is open while data moves. ``entered_version`` and ``entered_epoch`` are those of its newest
    step. ``mark`` says why it goes back: it does so with its next step, or is on its way. ``blamed`` are the
    requests that end with it; the others wait anew.
    """

    transition_id: str
    kind: RequestKind
    state: TransitionState
    session: str = ""
    entered_version: int = 0
    entered_epoch: int = 0
    subjects: tuple[Subject, ...] = ()
    keyspace_id: str = ""
    table_id: str = ""
    mark: str = ""
    blamed: tuple[str, ...] = ()

    def nodes(self) -> tuple[str, ...]:
        return tuple(subject.node_id for subject in self.subjects)

    def request_ids(self) -> tuple[str, ...]:
        """The requests that it carries out."""
        return tuple(s.request_id for s in self.subjects) or (self.transition_id,)


class TransitionSummary(TransitionHead, frozen=True, kw_only=True):
    """A transition as people see it: ``ranges`` says how many ranges change, by placement."""

    ranges: dict[str, int] = {}


class Coordinator(msgspec.Struct, frozen=True):
    """The newest claim to drive the topology. Commands of an older term are rejected."""

    term: int = 0
    holder: str = ""
