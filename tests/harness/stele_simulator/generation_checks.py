"""CDC generations as images show them: what they count, when they are committed, and that one stays."""

from stele.domain.image import Image
from stele.domain.model.cdc_streams import Generation
from stele.domain.names import NodeState, RequestKind, TransitionState
from stele_simulator.violation import require

_RULE = "CDC generations"
_IN_THE_RING = (
    NodeState.NORMAL,
    NodeState.REBUILDING,
    NodeState.DECOMMISSIONING,
    NodeState.REMOVING,
    NodeState.MOVING,
)
"""States of nodes in the ring. Undoing their operations puts back what these took out."""
_COMMITTED = (
    TransitionState.WRITE_BOTH_READ_OLD,
    TransitionState.WRITE_BOTH_READ_NEW,
    TransitionState.FINISHING,
)
_STREAM_BYTES = 16
_TOKEN_BYTES = 8


def check_generations(before: Image, after: Image) -> None:
    """Each is written for the ring that comes, committed when it can be seen, and followed by a later one."""
    for name, generation in after.cdc.generations.items():
        was = before.cdc.generations.get(name)
        if was is None:
            _check_written(generation, after)
        if generation.committed_epoch and (was is None or not was.committed_epoch):
            _check_committed(generation, before, after)
    _check_uncommitted(after)
    _check_newest(before, after)
    _check_joins(after)


def _check_written(generation: Generation, after: Image) -> None:
    wanted = {
        token
        for node in after.membership.nodes.values()
        if node.state in _IN_THE_RING
        for token in node.tokens
    }
    transition = after.topology.transitions.get(generation.transition_id)
    if transition is not None:
        wanted |= {token for subject in transition.subjects for token in subject.tokens}
    found = ends_of(generation.streams)
    require(
        found == sorted({*found}) and wanted <= {*found},
        _RULE,
        f"a stream for each range of the ring that comes: {sorted(wanted)}",
        f"epoch {after.epoch} writes streams of {found}",
    )


def _check_committed(generation: Generation, before: Image, after: Image) -> None:
    transition = before.topology.transitions.get(generation.transition_id)
    seen = (
        transition is not None
        and transition.state is TransitionState.COMMIT_CDC_GENERATION
        and transition.entered_version <= after.topology.fence_version
    )
    require(
        seen,
        _RULE,
        "a generation is committed once the version that wrote it is fenced",
        f"epoch {after.epoch} commits {generation.generation_id} earlier",
    )
    kept = after.cdc.generations
    old = (g for g in before.cdc.generations.values() if g.committed_epoch)
    others = [g.since_ms for g in old if g.generation_id in kept]
    require(
        all(since_ms < generation.since_ms for since_ms in others),
        _RULE,
        f"the newest generation holds later than {others}",
        f"epoch {after.epoch} has it hold from {generation.since_ms}",
    )


def _check_uncommitted(after: Image) -> None:
    for generation in after.cdc.generations.values():
        transition = after.topology.transitions.get(generation.transition_id)
        waits = transition is not None and (
            transition.state is TransitionState.COMMIT_CDC_GENERATION
        )
        require(
            bool(generation.committed_epoch) or waits,
            _RULE,
            "what is written is committed, or forgotten with the operation that it was for",
            f"{generation.generation_id} is there at epoch {after.epoch}",
        )


def _check_newest(before: Image, after: Image) -> None:
    was, now = _newest(before), _newest(after)
    if was is not None:
        committed = now is not None and now.committed_epoch == after.epoch
        require(
            was.generation_id in after.cdc.generations or committed,
            _RULE,
            "the newest generation is kept until another is committed",
            f"epoch {after.epoch} forgets {was.generation_id}",
        )


def _check_joins(after: Image) -> None:
    newest = _newest(after)
    ends = set[int]() if newest is None else {*ends_of(newest.streams)}
    for transition in after.topology.open():
        goes_on = not transition.mark and transition.state in _COMMITTED
        if transition.kind is RequestKind.JOIN and goes_on:
            tokens = {token for subject in transition.subjects for token in subject.tokens}
            require(
                tokens <= ends,
                _RULE,
                f"the newest generation counts the tokens of {transition.nodes()}",
                f"at epoch {after.epoch} it lacks {sorted(tokens - ends)}",
            )


def _newest(image: Image) -> Generation | None:
    committed = [g for g in image.cdc.generations.values() if g.committed_epoch]
    return max(committed, key=lambda generation: generation.since_ms, default=None)


def ends_of(streams: bytes) -> list[int]:
    """The token in the upper half of each stream's id."""
    return [
        int.from_bytes(streams[begin : begin + _TOKEN_BYTES], "big", signed=True)
        for begin in range(0, len(streams), _STREAM_BYTES)
    ]
