"""I5: reads move only to nodes that have all the data of the step before, as these were seen to stream it."""

from typing import Final

from stele.domain.image import Image
from stele.domain.names import RequestKind, TransitionState
from stele.domain.ring.transition import TransitionRow
from stele_simulator.violation import require

_STREAM: Final = (
    TransitionState.WRITE_BOTH_READ_OLD,
    TransitionState.STREAMING,
    TransitionState.REBUILDING,
    TransitionState.REPAIR,
)
"""Under sessions of other states nothing is streamed."""


class StreamChecks:
    """Required and finished streams, by session."""

    def __init__(self) -> None:
        self._streamed = set[tuple[str, str]]()
        self._receivers: dict[str, dict[str, list[str]]] = {}
        """By session and placement."""

    def streamed(self, node_id: str, session: str) -> None:
        """The node has all that it was to get."""
        self._streamed.add((node_id, session))

    def note(self, image: Image) -> None:
        """Record receivers when a session opens: nodes that gain data, and those that remain where replicas
        become fewer, as they may lack acknowledged writes. Later data is written to them from the beginning.
        """
        for transition in image.topology.open():
            if transition.session and transition.session not in self._receivers:
                rebuilt = transition.nodes() if transition.kind is RequestKind.REBUILD else ()
                left_out = image.membership.excluded()
                self._receivers[transition.session] = {
                    name: sorted(
                        {
                            n
                            for r in plan.rows
                            for n in r.new
                            if n not in r.old
                            or _shifts(r, n)
                            or len(r.new) < len(r.old)
                            or (
                                transition.kind is RequestKind.TABLET_REPAIR
                                and n not in left_out
                                and not left_out.issuperset({*r.new} - {n})
                            )
                        }
                        | {*rebuilt}
                    )
                    for name, plan in transition.plans.items()
                }

    def check(self, before: Image, after: Image) -> None:
        """Check that in transitions that continue each receiver has all data that was not dropped. Raises
        Violation.
        """
        for transition in before.topology.open():
            now = after.topology.transitions.get(transition.transition_id)
            moved = now is None or now.state != transition.state
            if not transition.session or transition.mark or not moved:
                continue
            if transition.state not in _STREAM:
                continue
            gaining = self._receivers[transition.session].items()
            kept = {n for name, nodes in gaining for n in nodes if name in transition.plans}
            if transition.kind is RequestKind.TABLET_REPAIR:  # no reads move
                kept -= before.membership.excluded()
            for node_id in sorted(kept):
                require(
                    (node_id, transition.session) in self._streamed,
                    "I5",
                    f"reads move when {node_id} has all data of session {transition.session}",
                    "it has not finished streaming",
                )
                row = before.membership.nodes[node_id]
                require(
                    not row.excluded_since,
                    "I5",
                    f"reads move to {node_id}, which serves them",
                    f"it is excluded since epoch {row.excluded_since}",
                )


def _shifts(row: TransitionRow, node_id: str) -> bool:
    """It has the range on another shard afterwards."""
    before, after = (
        dict(zip(nodes, shards or (0,) * len(nodes), strict=True)).get(node_id)
        for nodes, shards in ((row.old, row.old_shards), (row.new, row.new_shards))
    )
    return before != after
