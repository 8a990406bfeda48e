"""Stop the load and go through its account."""

from __future__ import annotations

import asyncio

from stele_harness.demo.scene import Scene


async def run(scene: Scene) -> None:
    await scene.load.stop()
    await asyncio.gather(*scene.background)
    scene.load.nodes = tuple((await scene.members()).values())
    account, timeline = scene.load.account, scene.timeline
    seconds = scene.load.ended - scene.load.began
    latencies = sorted(account.latencies_s)
    p50, p99 = (latencies[int(len(latencies) * q)] * 1000 for q in (0.50, 0.99))
    timeline.note(
        f"{account.writes_acknowledged} writes acknowledged and {account.reads_answered} reads "
        f"answered in {seconds:.0f} s; write p50 {p50:.1f} ms, p99 {p99:.1f} ms; longest time "
        f"without an acknowledgement {account.longest_gap_s:.2f} s"
    )
    timeline.note(
        f"{account.writes_refused} writes refused, {account.writes_unknown} of unknown outcome, "
        f"{account.reads_failed} reads failed, {account.tried_again} tried again through another "
        "node"
    )
    for text, times in account.failures.most_common(5):
        timeline.note(f"{times} x {text}", "yellow")
    for name, value in (
        ("load_s", seconds),
        ("writes_acknowledged", account.writes_acknowledged),
        ("writes_refused", account.writes_refused),
        ("writes_unknown", account.writes_unknown),
        ("tried_again", account.tried_again),
        ("reads_answered", account.reads_answered),
        ("reads_failed", account.reads_failed),
        ("write_p50_ms", p50),
        ("write_p99_ms", p99),
        ("longest_gap_s", account.longest_gap_s),
    ):
        timeline.figure(name, value)
    timeline.check(
        "no read went back behind an acknowledged write",
        not account.stale_reads and account.reads_answered > 0,
        "; ".join(account.stale_reads[:3]) or f"{account.reads_answered} reads",
    )
    lost = await scene.load.lost_writes()
    keys = sum(len(keys) for keys in scene.load.keys)
    timeline.check(
        "no acknowledged write is lost",
        not lost and account.writes_acknowledged > 0,
        "; ".join(lost[:3])
        or f"{account.writes_acknowledged} writes to {keys} keys, the last of each key read "
        f"through each of {len(scene.load.nodes)} nodes",
    )
