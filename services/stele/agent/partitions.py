"""Where in the store the data of a shard is: a partition of it for each table and shard.

A partition is named by the id of the data, with the shard behind it where that is not 0; keys of the store
begin with it. So what a node of one shard has is named as ever, and a write to two shards is one transaction.

Which shards a node reads and writes is what the log says that it has read, not what a request was routed by:
requests go to the same node anyway, and the row's version refuses those that are too old for the step.
"""

from collections.abc import Sequence
from typing import Final

from stele.agent.spans import Span
from stele.domain.image import Image
from stele.domain.ring.ranges import RangeReplicas

_SIGN: Final = "#"
"""No id of data has it."""


def partition_of(data_id: str, shard: int) -> str:
    return f"{data_id}{_SIGN}{shard}" if shard else data_id


def parted(partition: str) -> tuple[str, int]:
    """The id of the data, and the shard."""
    data_id, _, shard = partition.partition(_SIGN)
    return data_id, int(shard or 0)


def read_partition(image: Image, node_id: str, data_id: str, token: int) -> str:
    """The partition that serves a node's reads of this."""
    return write_partitions(image, node_id, data_id, token)[0]


def write_partitions(image: Image, node_id: str, data_id: str, token: int) -> tuple[str, ...]:
    """The partitions that a node writes this to: where it is read from first, and where its tablet is going."""
    row = _row(image, node_id, data_id, token)
    if row is None or not (row.shards or row.other_shards):
        return (data_id,)
    return tuple(partition_of(data_id, shard) for shard in row.shards_of(node_id)) or (data_id,)


def placed(image: Image, node_id: str, spans: Sequence[Span]) -> list[Span]:
    """The spans in the partitions that a node reads them from; a span is of one tablet."""
    return [
        span._replace(keyspace=read_partition(image, node_id, span.keyspace, span.end))
        for span in spans
    ]


def _row(image: Image, node_id: str, data_id: str, token: int) -> RangeReplicas | None:
    node, data = image.node(node_id), image.schema.of_data(data_id)
    if node is None or node.shards == 1 or data is None:
        return None
    placement = image.ring.placements.get(data.placement)
    return None if placement is None else placement.row_for(token)
