"""What Spark made of the log: the Delta table and the compacted topic must equal the state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stele.cli.errors import CliError
from stele.domain.ring.ranges import RangeReplicas
from stele.log.brokers import Brokers
from stele.placements.store import placements_at
from stele.runtime.answers.history import StateAnswer
from stele_harness.demo.scene import Scene
from stele_harness.demo.site import Never
from stele_harness.tables import current_placements, read_placements

DEADLINE_S = 300.0
"""A batch of Spark's takes a second or two on an idle machine; the first ones much longer."""

EPOCHS_OF_HISTORY = 12

Row = tuple[str, int, int, tuple[str, ...], tuple[str, ...]]


async def run(scene: Scene) -> None:
    view = await scene.site.get(
        scene.site.url("metadata-log", "/v1/state"), StateAnswer, level="barrier"
    )
    expected = _rows_of(view)
    try:
        began = time.monotonic()
        await _wait(scene, view)
        waited_s = time.monotonic() - began
        scene.timeline.note(f"Spark stands at epoch {view.epoch}, waited {waited_s:.1f} s for it")
        topic = await asyncio.to_thread(_topic_rows, scene, view)
        table = await asyncio.to_thread(_table_rows, scene, view)
    except (CliError, TimeoutError) as error:
        scene.timeline.check("Spark has materialized the newest epoch", False, str(error))
        return
    ranges = len(expected)
    for name, found in (("the compacted topic", topic), ("Spark's Delta table", table)):
        same = found == expected and ranges > 0
        scene.timeline.check(
            f"{name} holds the placements of the newest epoch",
            same,
            f"{ranges} ranges of epoch {view.epoch}, row by row"
            if same
            else f"{len(found - expected)} rows too many, {len(expected - found)} missing "
            f"of {ranges}",
        )
    await _history(scene, view)


async def _wait(scene: Scene, view: StateAnswer) -> None:
    url = f"{scene.site.service('placements').url}/v1/position"

    async def reached() -> bool:
        position = await scene.site.get(url, dict[str, Any])
        if why := position["stopped"].get(view.cluster):
            raise Never("placements", why)
        return int(position["epoch"]) >= view.epoch

    what = f"Spark to reach epoch {view.epoch}"
    await scene.site.until_of("placements", what, reached, DEADLINE_S)


def _rows_of(view: StateAnswer) -> set[Row]:
    return {
        (name, row.start, row.end, tuple(row.reads), tuple(row.writes))
        for name, rows in view.placements.items()
        for row in rows
    }


def _topic_rows(scene: Scene, view: StateAnswer) -> set[Row]:
    servers = scene.site.stack().environment["STELE_KAFKA_BOOTSTRAP"]
    topic = read_placements(Brokers(servers), view.cluster)
    if topic.marker.state_id != view.state_id:
        raise CliError(
            f"The topic's marker is {topic.marker}, not epoch {view.epoch} {view.state_id}."
        )
    by_name: dict[str, list[RangeReplicas]] = {}
    for (name, _), told in topic.rows.items():
        by_name.setdefault(name, []).append(told.row)
    return _of_tables(by_name)


def _table_rows(scene: Scene, view: StateAnswer) -> set[Row]:
    return _of_tables(current_placements(_delta(scene), view.cluster))


async def _history(scene: Scene, view: StateAnswer) -> None:
    """The table of history, at epochs all over the past, against the log's own answer."""
    step = max(1, view.epoch // EPOCHS_OF_HISTORY)
    epochs = range(view.epoch, 0, -step)
    wrong: list[str] = []
    rows = 0
    url = f"{scene.site.service('metadata-log').url}/v1/state"
    for epoch in epochs:
        past = await scene.site.get(url, StateAnswer, epoch=epoch)
        tables = await asyncio.to_thread(placements_at, _delta(scene), view.cluster, epoch)
        rows += len(_rows_of(past))
        if _of_tables(tables) != _rows_of(past):
            wrong.append(str(epoch))
    scene.timeline.check(
        "Spark's history table gives the placements of past epochs",
        not wrong,
        f"they differ at epoch {', '.join(wrong)}"
        if wrong
        else f"{len(epochs)} epochs from {epochs[-1]} to {epochs[0]}, {rows} ranges",
    )


def _delta(scene: Scene) -> Path:
    return scene.directory / "services" / "placements" / "delta"


def _of_tables(tables: Mapping[str, Iterable[RangeReplicas]]) -> set[Row]:
    return {
        (name, row.start, row.end, row.reads, row.writes)
        for name, rows in tables.items()
        for row in rows
    }
