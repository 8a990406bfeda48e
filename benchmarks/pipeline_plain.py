"""The plain consumer beside which the Spark job is measured: one thread, the same codec, the same outputs.

`python -m benchmarks.pipeline_plain BOOTSTRAP CLUSTER EPOCHS FOLDER` reads a log from its beginning, folds it,
publishes the topic and writes the tables `events`, `placements` and `placements_past`; prints its seconds.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

from stele.log.brokers import Brokers
from stele.log.flows import flow_topic
from stele.placements import events
from stele.placements.derived_tables import Derived
from stele.placements.events_table import Events
from stele.placements.fold import FRESH, ClusterFold, Key, PastRow
from stele.placements.store import TableStore
from stele.placements.topic import PLACEMENTS, Marker, TopicWriter

AT_ONCE = 5_000
"""Records in a commit, as in a batch of the job."""


def run(bootstrap: str, cluster: str, last: int, folder: Path) -> float:
    """Seconds from the first poll until all is written."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    consumer.assign([TopicPartition(flow_topic(cluster, "epochs"), 0, 0)])
    store = TableStore(folder)
    table, derived = Events(store), Derived(store)
    writer, fold = TopicWriter(Brokers(bootstrap), cluster, PLACEMENTS), ClusterFold()
    began_s = time.perf_counter()
    while fold.image.epoch < last:
        head = table.heads.get(cluster, FRESH)
        wanted = min(AT_ONCE, last - head.epoch)
        messages = consumer.consume(wanted, timeout=60)
        batch = pa.RecordBatch.from_pylist(
            [
                {"cluster": cluster, "offset": m.offset(), "value": m.value()}
                for m in messages
                if m.error() is None
            ]
        )
        judge = events.judge(table.heads, frozenset(), {cluster: head.next_offset + len(messages)})
        found: dict[str, events.NewRows] = {}
        table.commit(pa.Table.from_batches(judge([batch]), schema=events.SCHEMA), found)
        touched, past = set[Key](), list[PastRow]()
        for epoch in found[cluster].epochs:
            went, keys = fold.apply(epoch)
            past += went
            touched |= keys
        epochs = {cluster: fold.image.epoch}
        writer.publish(
            Marker(fold.image.epoch, fold.image.state_id.hex()), fold.placements, touched
        )
        derived.write_past({cluster: past}, epochs)
        derived.write_current({cluster: fold.placements}, epochs)
    consumer.close()
    return time.perf_counter() - began_s


if __name__ == "__main__":
    given_bootstrap, given_cluster, given_epochs, given_folder = sys.argv[1:]
    print(run(given_bootstrap, given_cluster, int(given_epochs), Path(given_folder)))
