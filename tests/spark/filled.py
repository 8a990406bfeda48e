"""Tables of a random log, written without Spark."""

from pathlib import Path

from stele.domain.evolve import Delta
from stele.placements.derived_tables import Derived
from stele.placements.events_table import Events
from stele.placements.fold import ClusterFold, PastRow
from stele.placements.progress import ProgressTable, row_of
from stele.placements.reports_table import Movements, Reports
from stele.placements.schema_history import schema_changes
from stele.placements.store import TableStore
from stele.placements.streams import opened
from stele.placements.summaries import Ended, Row, ended_requests
from tests.spark.histories import random_log
from tests.spark.reported import decoded, sessions, told
from tests.spark.test_chain import arrow, rows_of


def fill(folder: Path, cluster: str, seed: int = 1) -> ClusterFold:
    """Fill all tables as the job does at the end of the log. The newest session has no reports. Nodes name
    their sources only if the seed is even.
    """
    store, log = TableStore(folder), random_log(seed)
    events = Events(store)
    records = arrow(log, cluster=cluster)
    assert events.commit(rows_of(events.heads, records, certain={cluster: len(log)}), {})
    fold, past, streams, ended = ClusterFold(), list[PastRow](), list[Row](), list[Ended]()
    history = list[Row]()
    for each in events.epochs_of(cluster):
        before = fold.image
        past += fold.apply(each)[0]
        streams += opened(before, fold.image)
        ended += ended_requests(Delta(before, each))
        history += schema_changes(before, each, fold.image)
    derived, epochs = Derived(store), {cluster: fold.image.epoch}
    derived.write_past({cluster: past}, epochs)
    derived.write_current({cluster: fold.placements}, epochs)
    derived.write_summaries({cluster: fold.image}, {cluster: ended})
    derived.write_streams({cluster: streams}, epochs)
    derived.write_schema_history({cluster: history}, epochs)
    newest = [*sessions(log)][-1].encode()
    reports = [v for v in told(log, seed, says_sources=seed % 2 == 0) if newest not in v]
    Movements(store).write(
        Reports(store).append(decoded(reports, cluster=cluster), {cluster: "of the topic"})
    )
    epoch = fold.image.epoch
    ProgressTable(store).write({cluster: row_of(cluster, len(log), len(log), epoch, epoch, epoch)})
    return fold
