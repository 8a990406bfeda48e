"""Tables of a random log, made without Spark."""

from pathlib import Path

from stele.placements.derived_tables import Derived
from stele.placements.events_table import Events
from stele.placements.fold import ClusterFold, PastRow
from stele.placements.store import Store
from tests.spark.histories import random_log
from tests.spark.test_chain import arrow, rows_of


def fill(folder: Path, cluster: str, seed: int = 1) -> ClusterFold:
    """All tables as the job leaves them behind the end of the log."""
    store, log = Store(folder), random_log(seed)
    events = Events(store)
    records = arrow(log, cluster=cluster)
    assert events.commit(rows_of(events.heads, records, certain={cluster: len(log)}), {})
    fold, past = ClusterFold(), list[PastRow]()
    for epoch in events.epochs_of(cluster):
        past += fold.apply(epoch)[0]
    derived, epochs = Derived(store), {cluster: fold.image.epoch}
    derived.write_past({cluster: past}, epochs)
    derived.write_current({cluster: fold.placements}, epochs)
    derived.write_summaries({cluster: fold.image})
    return fold
