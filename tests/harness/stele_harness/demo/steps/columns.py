"""Change the columns of a table while rows are written, and read its change log later."""

from __future__ import annotations

import time
from typing import Final

from stele.domain.commands import AlterSchema
from stele.runtime.answers.node import ChangesView, ChangeView
from stele.words.cql_parser import parse_cql
from stele_harness.demo.rows import ADDED, NUMBER, RowLoad
from stele_harness.demo.scene import Scene

TABLE: Final = "loans.counts"
CREATE: Final = f"""
CREATE KEYSPACE loans WITH replication = {{'class': 'NetworkTopologyStrategy', 'dc1': 3}}
    AND tablets = {{'enabled': true, 'initial': 2}};
CREATE TABLE {TABLE} (desk text, reader text, book text, {NUMBER} int,
    PRIMARY KEY ((desk, reader, book))) WITH cdc = {{'enabled': 'true'}};
"""
ADD: Final = f"ALTER TABLE {TABLE} ADD {ADDED} text"
RENAME: Final = f"ALTER TABLE {TABLE} RENAME book TO title"
DROP: Final = f"ALTER TABLE {TABLE} DROP {ADDED}"
WRITES: Final = 50
"""Acknowledged writes between two changes of the columns."""
PAGE: Final = 10_000
DEADLINE_S: Final = 300.0


async def run(scene: Scene) -> None:
    load = RowLoad(scene.site.http, TABLE, await _change(scene, CREATE))
    scene.rows = load
    load.start(tuple((await scene.members()).values()))
    try:
        await _write_more(scene, load)
        load.version = await _change(scene, ADD)
        load.columns = (NUMBER, ADDED)
        await _write_more(scene, load)
        load.version = await _change(scene, RENAME)
        await _write_more(scene, load)
        # The client is not informed: a node refuses its next row with the version to read.
        dropped_at = await _change(scene, DROP)
        await _write_more(scene, load)
    finally:
        await load.stop()
    refused, account = load.refused(), load.account
    for text, times in account.failures.most_common(3):
        scene.timeline.note(f"{times} x {text}", "yellow")
    scene.timeline.check(
        "columns are added, renamed and dropped, and no request fails",
        not refused and load.dropped_at == {dropped_at},
        "; ".join(refused[:3])
        or f"{account.writes_acknowledged} rows written and {account.reads_answered} read; clients"
        f" that sent the dropped column were referred to versions {sorted(load.dropped_at)}",
    )


async def read_changes(scene: Scene) -> None:
    """Check the rows, and read the change log of the table through one member."""
    load = scene.rows
    assert load is not None
    load.nodes = tuple((await scene.members()).values())
    lost = [*load.account.stale_reads, *await load.lost_writes()]
    scene.timeline.check(
        "no acknowledged row is lost while columns change",
        not lost and load.account.writes_acknowledged > 0,
        "; ".join(lost[:3])
        or f"{len(load.acknowledged)} rows, each read through {len(load.nodes)} nodes",
    )
    began = time.monotonic()
    changes = await _changes(scene, load.nodes[0])
    scene.timeline.figure("changes_read_s", time.monotonic() - began)
    missing = load.missing_changes(changes)
    writes = sum(map(len, load.acknowledged.values()))
    scene.timeline.check(
        "every acknowledged row is in the change log, in order",
        not missing and bool(changes),
        "; ".join(missing[:3]) or f"{writes} acknowledged writes in {len(changes)} changes",
    )


async def _change(scene: Scene, cql: str) -> int:
    """Apply CQL statements. Return the table's version after them, which is the epoch."""
    outcome = await scene.site.submit(AlterSchema(parse_cql(cql)), "demo")
    last = cql.strip().rpartition("\n")[2] if cql is not CREATE else f"CREATE TABLE {TABLE} (...)"
    scene.timeline.note(f"epoch {outcome.epoch:>4}  {last}", "cyan")
    return outcome.epoch


async def _write_more(scene: Scene, load: RowLoad) -> None:
    goal = load.account.writes_acknowledged + WRITES

    async def are_written() -> bool:
        return load.account.writes_acknowledged >= goal

    await scene.site.until(f"{WRITES} more rows", are_written, DEADLINE_S)


async def _changes(scene: Scene, url: str) -> list[ChangeView]:
    """Read the change log until it is complete up to the newest acknowledged write."""
    assert scene.rows is not None
    newest_us = max(writes[-1].time_us for writes in scene.rows.acknowledged.values())
    found, cursor = list[ChangeView](), ""

    async def is_complete() -> bool:
        nonlocal cursor
        page = await scene.site.get(
            f"{url}/v1/cdc/changes", ChangesView, table=TABLE, limit=PAGE, after=cursor
        )
        found.extend(page.changes)
        cursor = page.cursor
        return page.complete_to_us >= newest_us

    await scene.site.until("the change log to be complete", is_complete, DEADLINE_S)
    return found
