"""Streams that operations need, from the log alone: receiver, sources and request. Pure.

A session is open for a transition while data moves for one of its states, and its id is unique. By
the session, a reported stream gets its reason from here.
"""

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from stele.domain.image import Image
from stele.domain.model.transitions import Transition
from stele.domain.names import OrderKind
from stele.domain.topology.operations.table import OPERATIONS
from stele.placements.columns import NUMBER, TEXT, TEXTS, columns
from stele.placements.fold import FoldError

WHY: Final = columns(
    (TEXT, "transition_id transition_kind transition_state"),
    (TEXTS, "request_ids"),
    (TEXT, "actor reason keyspace_id table_id"),
    (TEXTS, "placements"),
    (NUMBER, "range_count range_start range_end"),
    (TEXTS, "possible_sources"),
    (NUMBER, "opened_epoch"),
)
"""Columns that the log contains for a stream."""
SCHEMA: Final = pa.schema({**columns((TEXT, "cluster session to_node")), **WHY})
"""``range_start`` and ``range_end`` are set for a stream of one range, such as a tablet's; else
null.

``possible_sources`` are the nodes that may send its ranges, by the rules and by the members that
the log excludes.
"""

Row = dict[str, Any]


def opened(before: Image, image: Image) -> Iterator[Row]:
    """Yield the streams of sessions that are open in ``image`` but not in ``before``, without
    their cluster.

    Raises FoldError.
    """
    old, new = before.topology.transitions, image.topology.transitions
    if old is new:
        return
    for transition in new.values():
        known = old.get(transition.transition_id)
        if transition.session and (known is None or known.session != transition.session):
            try:
                yield from _streams(image, transition)
            except Exception as error:  # a fault in a winner stops its cluster alone
                raise FoldError(
                    f"epoch {image.epoch} has a plan of {transition.transition_id} that says not who "
                    f"streams: {error!r}. Restore the topic."
                ) from error


def _streams(image: Image, transition: Transition) -> Iterator[Row]:
    operation = OPERATIONS[transition.kind]
    state = operation.states.get(transition.state)
    if state is None or not state.streams or state.streams_by is not OrderKind.STREAM:
        return
    shared = _why(image, transition)
    for node_id in operation.receiving(image, transition):
        ranges = _ranges(image, transition, node_id)
        if ranges["range_count"]:  # a join before the first keyspace streams no data
            place = {"session": transition.session, "to_node": node_id}
            yield {**place, **shared, **ranges}


def _why(image: Image, transition: Transition) -> Row:
    ids = transition.request_ids()
    requests = [r for each in ids if (r := image.requests.requests.get(each)) is not None]
    return {
        "transition_id": transition.transition_id,
        "transition_kind": str(transition.kind),
        "transition_state": str(transition.state),
        "request_ids": list(ids),
        "actor": ", ".join(dict.fromkeys(r.actor for r in requests if r.actor)),
        "reason": ", ".join(dict.fromkeys(r.reason for r in requests if r.reason)),
        "keyspace_id": transition.keyspace_id,
        "table_id": transition.table_id,
        "opened_epoch": image.epoch,
    }


def _ranges(image: Image, transition: Transition, node_id: str) -> Row:
    """Return the ranges that the node receives, and their possible sources."""
    sources_of = OPERATIONS[transition.kind].sources
    excluded = image.membership.excluded()
    placements, sources, count = list[str](), set[str](), 0
    only: tuple[int, int] | None = None
    for name, plan in sorted(transition.plans.items()):
        asked = [
            (row, found[0])
            for row in plan.rows
            if (found := sources_of(image, transition, row, node_id, excluded)) is not None
        ]
        if asked:
            placements.append(name)
            count += len(asked)
            only = asked[0][0].start, asked[0][0].end
            sources.update(*(nodes for _, nodes in asked))
    start, end = only if only is not None and count == 1 else (None, None)
    return {
        "placements": placements,
        "range_count": count,
        "range_start": start,
        "range_end": end,
        "possible_sources": sorted(sources),
    }
