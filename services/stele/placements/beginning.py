"""Behind which snapshot a cluster goes on whose topic lost records that the tables do not hold."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from stele.log.archive.snapshots import UnreadableSnapshotError
from stele.log.errors import OtherHistoryError
from stele.log.follower import Floor
from stele.log.port import Ends
from stele.log.start import Start
from stele.placements.chain import Head
from stele.placements.watch import TopicState
from stele.runtime.catch_up import CatchUp
from stele.runtime.starting import begin

PATIENCE_S: Final = 15.0
"""For one attempt; the next one is made while the other clusters go on."""
AT_ONCE: Final = 4
"""Clusters whose snapshots are loaded at the same time: bounds memory."""
CLUSTER: Final = "{cluster}"
"""In an address: stands for the cluster's name, since each cluster of a fleet has replicas of its own."""


def addresses_of(urls: Sequence[str], cluster: str) -> tuple[str, ...]:
    return tuple(url.replace(CLUSTER, cluster) for url in urls)


def snapshots(
    urls: Sequence[str], behind: Mapping[str, tuple[Head, TopicState]]
) -> dict[str, Start | str]:
    """By cluster: where to go on, or why that is not known and what to do. Blocks for some seconds at most."""
    return asyncio.run(_snapshots(urls, behind))


async def _snapshots(
    urls: Sequence[str], behind: Mapping[str, tuple[Head, TopicState]]
) -> dict[str, Start | str]:
    limit = asyncio.Semaphore(AT_ONCE)

    async def ask(cluster: str) -> Start | str:
        async with limit:
            return await snapshot(addresses_of(urls, cluster), cluster, *behind[cluster])

    found = await asyncio.gather(*map(ask, behind))
    return dict(zip(behind, found, strict=True))


async def snapshot(urls: Sequence[str], cluster: str, head: Head, topic: TopicState) -> Start | str:
    """A snapshot that holds what the tables hold and from which the topic goes on; else why there is none."""
    lost = _lost(head, topic)
    if not urls:
        return f"{lost} Set STELE_CATCH_UP_URLS to the addresses of its catch-up."
    floor = Floor(head.epoch, head.state_id, "the table events holds") if head.epoch else None
    catch_up, replicas = CatchUp(urls), ", ".join(urls)
    try:
        async with asyncio.timeout(PATIENCE_S):
            start, _ = await begin(catch_up, cluster, lambda: _ends(topic), floor, decided=False)
    except TimeoutError:
        return f"{lost} None of {replicas} gives a snapshot to go on from: see that catch-up runs."
    except (OtherHistoryError, UnreadableSnapshotError) as error:
        remedy = f" {_forget(cluster)}" if isinstance(error, OtherHistoryError) else ""
        return f"{lost} {error}{remedy}"
    finally:
        await catch_up.close()
    if start.anchor is None:
        return f"{lost} None of {replicas} has a snapshot yet."
    if start.image.epoch < head.epoch:
        return (
            f"the log goes on from epoch {start.image.epoch}, and the tables hold others up to {head.epoch} "
            f"that are not in it. {_forget(cluster)}"
        )
    return start


async def _ends(topic: TopicState) -> Ends:
    return Ends(topic.begin, topic.end)


def _forget(cluster: str) -> str:
    return (
        "If what the log has counts, have tables and topic forget this cluster, of which you may copy the rows "
        f"before: python -m stele.placements.forget {cluster}. Then start again."
    )


def _lost(head: Head, topic: TopicState) -> str:
    if topic.begin > head.next_offset:
        return f"records {head.next_offset} to {topic.begin - 1} left its topic unread."
    return f"its log does not go on from epoch {head.epoch}, which the tables hold."
