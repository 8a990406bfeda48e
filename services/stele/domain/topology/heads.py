"""The topology without its plans: versions, fence, open transitions, and the coordinator's term.

See docs/design.md, rules 19 and 23.
"""

import msgspec

from stele.domain.names import RequestKind, TransitionState


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """The routing version, its fence, and the level of its barrier.

    ``version`` rises with every change of routing. ``fence_version`` follows once older versions
    are drained or fenced out. ``since_epoch`` is the epoch of the newest version: a barrier waits
    for it. ``fence_epoch`` is the epoch that wrote ``fence_version``.

    ``relaxed_to`` is the level to which this version's barrier was relaxed. ``let_through`` is the
    level of a relaxed barrier that the newest of these epochs passed. Both are empty without a
    relaxation; ``let_through`` is also empty if all members had answered.
    """

    version: int = 1
    fence_version: int = 1
    since_epoch: int = 0
    fence_epoch: int = 0
    relaxed_to: str = ""
    let_through: str = ""


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A node that a transition is about: its request, and its tokens after a join or before a
    leave.

    ``replaced_id`` is the node whose tokens it takes over.
    """

    request_id: str
    node_id: str
    tokens: tuple[int, ...] = ()
    replaced_id: str = ""


class TransitionHead(msgspec.Struct, frozen=True, kw_only=True):
    """One operation under way, without the placements of its steps.

    ``session`` is open while work is done. ``entered_version`` and ``entered_epoch`` are those of
    its newest step. ``mark`` is the reason why it goes back, with its next step or already.
    ``blamed`` are the requests that end with it; the others become pending again.
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
        """Return the requests that it carries out."""
        return tuple(s.request_id for s in self.subjects) or (self.transition_id,)


class TransitionSummary(TransitionHead, frozen=True, kw_only=True):
    """A transition for display: ``ranges`` is the number of changed ranges, by placement."""

    ranges: dict[str, int] = {}


class Coordinator(msgspec.Struct, frozen=True):
    """The newest claim to drive the topology. Commands of an older term are rejected."""

    term: int = 0
    holder: str = ""
