"""At rest, replica by replica: who has what, and whether that is a quorum."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import aiohttp

from stele.agent.judging import Code
from stele.domain.image import Image
from stele.domain.ring.partitioner import token_of
from stele.domain.routed import REPLICA
from stele.node.wire import BATCH_PATH, Read, ReadMode, decode_answers, encode
from stele_simulator.live.clients import keyspace_of, name_of, value_in
from stele_simulator.live.history import Copy, DataOp, History
from stele_simulator.violation import require

TIMEOUT_S: Final = 10.0


async def record_copies(
    http: aiohttp.ClientSession, image: Image, history: History, keys: Sequence[str]
) -> None:
    """Ask each replica of each key for its row. Replicas without an answer are not recorded."""
    reads = defaultdict[str, list[tuple[str, Read]]](list)
    for key in keys:
        keyspace = image.schema.serving(keyspace_of(key))
        if keyspace is None:
            continue
        token = token_of(name_of(key).encode())
        for node_id in image.ring.placements[keyspace.placement].row_for(token).reads:
            read = Read(
                version=image.topology.version,
                epoch=image.epoch,
                coordinating=node_id,
                data_id=keyspace.data_id,
                token=token,
                key=name_of(key).encode(),
                mode=ReadMode.CELL,
            )
            reads[node_id].append((key, read))
    limit = aiohttp.ClientTimeout(total=TIMEOUT_S)
    for node_id, asked in sorted(reads.items()):
        began, address = history.now(), image.membership.nodes[node_id].address
        ops = encode([read for _, read in asked])
        try:
            async with http.post(
                address + BATCH_PATH, data=ops, headers={REPLICA: node_id}, timeout=limit
            ) as answer:
                answers = decode_answers(await answer.read())
        except (aiohttp.ClientError, TimeoutError) as error:
            history.event(f"{node_id} tells nothing of what it has: {error!r}")
            continue
        for (key, _), told in zip(asked, answers, strict=True):
            if told.code is Code.OK:
                value = None if told.cell is None else value_in(told.cell.value)
                now = history.now()
                history.add(Copy(began=began, ended=now, key=key, node=node_id, value=value))


def check_copies(operations: Iterable[DataOp], copies: Iterable[Copy]) -> int:
    """The newest acknowledged value of each key, or one that may be newer, is on a quorum of its replicas.

    ``operations`` are those since the key was truncated last. The number of keys that were checked.
    """
    held, writes = defaultdict[str, list[Copy]](list), defaultdict[str, list[DataOp]](list)
    for copy in copies:
        held[copy.key].append(copy)
    for op in operations:
        if op.write and (op.done or not op.known):
            writes[op.key].append(op)
    checked = 0
    for key, replicas in sorted(held.items()):
        newest = max((op.began for op in writes[key] if op.done), default=None)
        if newest is None:
            continue
        checked += 1
        fresh = {op.value for op in writes[key] if not op.done or op.ended >= newest}
        having = [copy.node for copy in replicas if copy.value in fresh]
        require(
            2 * len(having) > len(replicas),
            "I14",
            f"a quorum of {[copy.node for copy in replicas]} has the newest value of {key}",
            f"only {having} have one of {sorted(map(str, fresh))}",
        )
    return checked
