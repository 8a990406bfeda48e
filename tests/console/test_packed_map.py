"""Packed maps: the browser reads the rows of the placement, before and after a change."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import msgspec
import numpy as np

from stele.console.epoch_text import MapChange, live_epoch_text
from stele.console.maps import TOKENS, RowState, differing, map_of, packed_map
from stele.domain.commands import CreateKeyspace, CreateTable
from stele.domain.evolve import evolve
from stele.domain.image import EMPTY_FOR_FOLLOWERS, Image
from stele.domain.ring.placement import Placement
from stele.domain.ring.ranges import MIN_TOKEN, RangeReplicas
from tests.domain.history import History, join, three_nodes

KINDS = {"f4": np.float32, "i2": np.int16, "u1": np.uint8, "i4": np.int32}


def unpack_as_the_page(raw: bytes) -> dict[str, Any]:
    """Unpack the bytes like the page, without the packing code."""
    assert raw[:4] == b"STM1"
    length = int.from_bytes(raw[4:8], "little")
    head: dict[str, Any] = json.loads(raw[8 : 8 + length])
    at = 8 + length
    for name, kind, count in head["columns"]:
        assert at % 8 == 0
        column = np.frombuffer(raw, np.dtype(KINDS[kind]), count, at)
        head[name] = column.copy()
        at += -(-column.nbytes // 8) * 8
    assert at == len(raw)
    return head


@cache
def grown() -> History:
    """Return a history in which a node joins, with a keyspace in ranges and a table in tablets."""
    history, world = three_nodes()
    made = CreateKeyspace("shop", {"dc1": 2}, tablets=True, initial_tablets=8)
    assert history.apply(made) is None
    assert history.apply(CreateTable("shop.orders")) is None
    assert history.apply(join(4)) is None
    world.run()
    return history


@cache
def images(history: History) -> list[Image]:
    found = [EMPTY_FOR_FOLLOWERS]
    for epoch in history.epochs:
        found.append(evolve(found[-1], epoch))
    return found


def test_packed_row_has_its_nodes_reads_and_start() -> None:
    image = images(grown())[-1]
    for name in (*image.ring.placements, TOKENS):
        placement = map_of(image, name)
        assert placement is not None
        found = unpack_as_the_page(packed_map(name, image.epoch, placement))
        assert found["rows"] == len(placement.rows)
        lists = found["replicas"].reshape(found["width"], found["rows"]).T.tolist()
        for place, row in enumerate(placement.rows):
            assert tuple(found["nodes"][n] for n in lists[place] if n >= 0) == row.writes
            assert found["reads"][place] == len(row.reads)
            if not found["even"]:
                part = (row.start - MIN_TOKEN) / 2**64
                assert abs(found["starts"][place] - part) < 1e-6


def test_moving_rows_differ_from_rows_at_rest() -> None:
    rest = RangeReplicas(MIN_TOKEN, 0, ("n1",), ("n1",))
    moving = RangeReplicas(0, 5, ("n1",), ("n1", "n2"))
    nobody = RangeReplicas(5, MIN_TOKEN, (), ())
    found = unpack_as_the_page(packed_map("dc1=1", 3, Placement.of((rest, moving, nobody))))
    assert found["state"].tolist() == [RowState.AT_REST, RowState.MOVING, RowState.NOBODY]


def test_only_rows_with_other_bounds_or_replicas_differ() -> None:
    before = Placement.of(
        (
            RangeReplicas(MIN_TOKEN, 0, ("n1",), ("n1",)),
            RangeReplicas(0, 9, ("n2",), ("n2",)),
            RangeReplicas(9, MIN_TOKEN, ("n1",), ("n1",)),
        )
    )
    after = Placement.of(
        (
            RangeReplicas(MIN_TOKEN, 0, ("n1",), ("n1",)),
            RangeReplicas(0, 5, ("n2",), ("n2",)),
            RangeReplicas(5, 9, ("n2",), ("n2",)),
            RangeReplicas(9, MIN_TOKEN, ("n3",), ("n3",)),
        )
    )
    assert differing(before, after).tolist() == [0, 1, 1, 1]
    assert differing(after, after).tolist() == [0, 0, 0, 0]


def test_rows_of_an_event_update_the_previous_map_in_place() -> None:
    """Applies to each epoch of a history and each map that is not read again."""
    history, in_place = grown(), 0
    for before, epoch, after in zip(
        images(history), history.epochs, images(history)[1:], strict=False
    ):
        told = live_epoch_text(before, epoch, after)
        for name, placement in after.ring.placements.items():
            change = told.maps.get(name, MapChange())
            old = before.ring.placements.get(name)
            if change.anew or old is None:
                continue
            known = unpack_as_the_page(packed_map(name, 0, old.renumbered(after.ring.nodes)))
            wanted = unpack_as_the_page(packed_map(name, 0, placement.renumbered(after.ring.nodes)))
            if known["width"] < wanted["width"]:  # the page detects that the change does not fit
                assert any(len(numbers) > known["width"] for *_, numbers in change.rows)
                continue
            in_place += bool(change.rows)
            _write(known, change)
            lists = wanted["replicas"].reshape(wanted["width"], -1)
            assert known["replicas"].reshape(known["width"], -1)[: len(lists)].tolist() == (
                lists.tolist()
            )
            for column in ("state", "reads", "version"):
                assert known[column].tolist() == wanted[column].tolist(), (epoch.epoch, name)
    assert in_place > 0


def _write(known: dict[str, Any], change: MapChange) -> None:
    """Write the changed rows like ``map_data.js``."""
    lists = known["replicas"].reshape(known["width"], known["rows"])
    for place, state, reads, version, numbers in change.rows:
        known["state"][place], known["reads"][place] = state, reads
        known["version"][place] = version
        lists[:, place] = [*numbers, *[-1] * (known["width"] - len(numbers))]


def test_event_has_actor_reason_and_changes_as_text() -> None:
    history = grown()
    all_ = [*zip(images(history), history.epochs, images(history)[1:], strict=False)]
    told = [live_epoch_text(before, epoch, after) for before, epoch, after in all_]
    assert [each.epoch for each in told] == list(range(1, len(told) + 1))
    assert all(each.live for each in told)
    assert any("library" in line for each in told for line in each.lines)
    assert {"ring", "topology", "membership"} <= {name for each in told for name in each.touched}
    assert msgspec.json.encode(told[-1])
